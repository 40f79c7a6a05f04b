"""A server of whet/tiny in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn

from whet.errors import WhetError
from whet.gateway.serve import listen
from whet.rl.learner.adapters.bank import AdapterBank
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, AdapterWork
from whet.tinker.api.app import create_tinker_app
from whet.tinker.opening import load_base, open_server
from whet.tinker.server import ServedBase, TinkerLimits, TinkerServer


class RecordedBank(AdapterBank):
    """A bank that keeps which models it has computed, pass by pass, and which have stepped."""

    passes: list[list[str]]
    steps: list[str]

    def forward_backward(self, works: Sequence[AdapterWork]) -> list[AdapterOutput | WhetError]:
        self.passes.append([work.adapter for work in works])
        return super().forward_backward(works)

    def optim_step(self, name: str, params: AdamParams) -> dict[str, float]:
        metrics = super().optim_step(name, params)
        self.steps.append(name)
        return metrics

    def gradient(self, name: str) -> torch.Tensor:
        """A copy of the gradients that the next step of a model applies."""
        return self._adapter(name).gradient.clone()


def recorded() -> tuple[ServedBase, RecordedBank]:
    base, bank = load_base("whet/tiny")
    bank.__class__ = RecordedBank
    bank.passes, bank.steps = [], []
    return base, bank


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
    base, bank = base_and_bank or recorded()
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
