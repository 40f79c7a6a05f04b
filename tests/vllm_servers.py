"""vLLM servers of the tests: where vLLM is installed, and how a small one is started.

`make vllm` installs it into `.venv-vllm`; `WHET_TEST_VLLM` names the Python of another environment that has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from whet.inference.model_names import resolve_model
from whet.inference.vllm.members import EXTENSION, RECEIVER
from whet.inference.vllm.server import VllmServer

VENV = Path(__file__).parents[1] / ".venv-vllm"
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "logprobs-mode": "processed_logprobs",
    "max-model-len": 512,
    "max-num-seqs": 64,
    "kv-cache-memory-bytes": "64M",  # a server of 1.4 GB instead of 2.4
    "enforce-eager": True,
    "enable-lora": True,
    "max-lora-rank": 16,
    "max-loras": 2,
    "worker-extension-cls": RECEIVER,
}
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": ""}  # or each start would compile vLLM again, for 20 s


def python() -> Path:
    """The Python of an environment with vLLM. Skips the test where there is none."""
    if named := os.environ.get("WHET_TEST_VLLM"):
        return Path(named)
    try:
        missing = json.loads((VENV / "whet-vllm.json").read_text(encoding="utf-8"))["missing"]
    except FileNotFoundError:
        pytest.skip("there is no .venv-vllm: run make vllm")
    if missing:
        pytest.skip(missing["vllm"])
    return VENV / "bin" / "python"


def server(directory: Path, name: str = "engine-0", model: Path | None = None, **changes: Any) -> VllmServer:
    """One of whet/tiny, or of another model, not started. `changes` are of flags."""
    return VllmServer(
        model or resolve_model("whet/tiny"),
        directory,
        name=name,
        python=python(),
        flags={**FLAGS, **changes},
        environment=ENVIRONMENT,
        threads=1,
        extension=EXTENSION,
    )


@contextlib.asynccontextmanager
async def relay(path: Path) -> AsyncIterator[str]:
    """An address that leads to the server on a Unix socket."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(path)
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    async with await asyncio.start_server(connected, "127.0.0.1") as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
