"""A server of the bigram model: in this process, and as a program to kill (`python serving.py DATA PORT`)."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from whet.gateway.serve import listen
from whet.tinker.api.app import create_tinker_app
from whet.tinker.opening import open_server
from whet.tinker.server import ServedBase, TinkerLimits, TinkerServer
from whet.tinker.wire import TokenLimits

if "bigram" not in sys.modules:
    spec = importlib.util.spec_from_file_location("bigram", Path(__file__).with_name("bigram.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["bigram"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bigram"])
bigram: Any = sys.modules["bigram"]
BASE = ServedBase("bigram", TokenLimits(bigram.VOCABULARY, 64), ("q_proj",), ("up_proj",), ("lm_head",), "bigram")


@dataclass
class Served:
    server: TinkerServer
    bank: Any
    url: str
    key: str | None


@contextlib.contextmanager
def serving(
    data: Path,
    port: int = 0,
    base_and_bank: Any = None,
    database: str | None = None,
    sampled: Any = None,
    **limits: Any,
) -> Iterator[Served]:
    """A running server."""
    base, bank = base_and_bank or (BASE, bigram.BigramBank())
    opened = open_server(data, base, bank, database, TinkerLimits(**limits), sampled)
    with listen("127.0.0.1", port) as listening, opened as (server, key):
        options = uvicorn.Config(create_tinker_app(server), log_level="warning", lifespan="off")
        options.timeout_graceful_shutdown = 1
        answering = uvicorn.Server(options)
        thread = threading.Thread(target=answering.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield Served(server, bank, f"http://127.0.0.1:{listening.getsockname()[1]}", key)
        finally:
            answering.should_exit = True
            thread.join()


if __name__ == "__main__":
    with serving(Path(sys.argv[1]), int(sys.argv[2]), state_every=3) as served:
        print(served.key or "", flush=True)
        threading.Event().wait()
