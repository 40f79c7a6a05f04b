"""One server's parts and limits, and what its requests and its training thread share."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.hub.domain.hub import Hub
from whet.rl.learner.adapters.work import AdapterSpec
from whet.tinker.names import LIVE_S
from whet.tinker.wire import TokenLimits

if TYPE_CHECKING:
    from whet.rl.learner.adapters.bank import AdapterBank
    from whet.tinker.sampling import Sampling

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The base model that all adapters are on."""

    name: str
    """As clients name it."""
    limits: TokenLimits
    attention: tuple[str, ...]
    """Names of the linear layers that `train_attn` stands for; likewise the next two."""
    mlp: tuple[str, ...]
    unembedding: tuple[str, ...]
    tokenizer: str
    """Where clients load the tokenizer from: a name on the Hugging Face hub, or a folder of this machine."""


@dataclass(frozen=True, slots=True)
class TinkerLimits:
    """What one server, or one user of it, may take; times in seconds."""

    adapter_bytes: int = 4 * GIB  # of weights, gradients and optimisers of all sessions that are live
    rank: int = 512
    waiting: int = 2000  # requests of a user
    body_bytes: int = 32 << 20
    batch_bytes: int = 16 << 20  # of the requests that are computed in one pass
    poll_s: float = 30.0
    live_s: float = LIVE_S
    keep_s: float = 7 * 24 * 3600.0  # and how long its models are kept
    answer_s: float = 3600.0  # how long an answer is kept at least
    gap_s: float = 600.0  # how long requests wait for one before them
    state_every: int = 16  # optimiser steps between two states of a model


class AnswerEvents:
    """Wakes requests that wait for an answer, whichever thread has it."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def expected(self, request: str) -> Iterator[asyncio.Event]:
        """An event that is set if the answer comes while the block runs."""
        waiting = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting[request].append(waiting)
        try:
            yield waiting[1]
        finally:
            with self._lock:
                self._waiting[request].remove(waiting)
                if not self._waiting[request]:
                    del self._waiting[request]

    def ready(self, requests: Iterable[str]) -> None:
        """These have an answer in the database."""
        with self._lock:
            for request in requests:
                for loop, event in self._waiting.get(request, ()):
                    loop.call_soon_threadsafe(event.set)


@dataclass
class TinkerServer:
    """What routes and the training thread share."""

    hub: Hub
    data: Path
    base: ServedBase
    bank: AdapterBank
    limits: TinkerLimits = field(default_factory=TinkerLimits)
    answers: AnswerEvents = field(default_factory=AnswerEvents)
    work: threading.Event = field(default_factory=threading.Event)
    """Set where a request may have become ready to be carried out."""
    computed: Counter[str] = field(default_factory=Counter)
    """Steps, and the sequences and tokens of their passes, since the start; what was repeated is in it."""
    decode: Callable[[list[int]], str] | None = None
    """What tokens say, for the texts of runs; None: they have none."""
    sampling: Sampling | None = None
    """None: the server trains only."""

    @property
    def states(self) -> Path:
        return self.data / "states"

    def spec_of(self, spec: dict[str, Any]) -> AdapterSpec:
        """The adapter that a model's row describes."""
        parts = {"train_attn": self.base.attention, "train_mlp": self.base.mlp, "train_unembed": self.base.unembedding}
        targets = tuple(name for key, names in parts.items() if spec[key] for name in names)
        return AdapterSpec(rank=spec["rank"], targets=targets, seed=spec["seed"])
