"""One server's parts and limits, and what its requests and its training thread share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.hub.domain.hub import Hub
from whet.rl.learner.adapters.work import AdapterSpec
from whet.tinker.answer_box import AnswerBox
from whet.tinker.entry import LogEntry
from whet.tinker.names import LIVE_S
from whet.tinker.quota import LogQuota
from whet.tinker.unchanged import Unchanged
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
    log_bytes: int = 32 * GIB  # of bodies that wait or would be repeated after a start
    own_log_bytes: int = 8 * GIB  # of those, one user's
    body_bytes: int = 32 << 20
    batch_bytes: int = 16 << 20  # of the requests that are computed in one pass
    poll_s: float = 30.0
    live_s: float = LIVE_S
    keep_s: float = 7 * 24 * 3600.0  # and how long its models are kept
    answer_s: float = 3600.0  # how long an answer is kept at least
    gap_s: float = 600.0  # how long requests wait for one before them
    state_every: int = 16  # optimiser steps between two states of a model
    state_bytes: int = 64 << 20  # of bodies between two states, which are written after an optimiser step


@dataclass
class TinkerServer:
    """What routes and the training thread share."""

    hub: Hub
    data: Path
    base: ServedBase
    bank: AdapterBank
    limits: TinkerLimits = field(default_factory=TinkerLimits)
    answers: AnswerBox = field(default_factory=AnswerBox)
    work: threading.Event = field(default_factory=threading.Event)
    """Set where a request may have become ready to be carried out."""
    computed: Counter[str] = field(default_factory=Counter)
    """Steps, and the sequences and tokens of their passes, since the start; what was repeated is in it."""
    decode: Callable[[list[int]], str] | None = None
    """What tokens say, for the texts of runs; None: they have none."""
    sampling: Sampling | None = None
    """None: the server trains only."""

    def __post_init__(self) -> None:
        self.quota = LogQuota(self.limits.waiting, self.limits.log_bytes, self.limits.own_log_bytes)
        self.entry = LogEntry(self)
        self.unchanged = Unchanged(self.hub.database)

    @property
    def states(self) -> Path:
        return self.data / "states"

    def spec_of(self, spec: dict[str, Any]) -> AdapterSpec:
        """The adapter that a model's row describes."""
        parts = {"train_attn": self.base.attention, "train_mlp": self.base.mlp, "train_unembed": self.base.unembedding}
        targets = tuple(name for key, names in parts.items() if spec[key] for name in names)
        return AdapterSpec(rank=spec["rank"], targets=targets, seed=spec["seed"])
