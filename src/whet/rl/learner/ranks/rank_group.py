"""`RankGroup`: the processes of all ranks, as `RanksLearner` uses them, wherever they are.

    start ─▶ each rank makes its part of the learner, and answers ─▶ send, receive ... ─▶ kill ─▶ start, or close

A group moves calls and answers and says where each rank stands. What is too long, which rank is to blame and what
follows is decided in one place for all groups: `ranks_learner.py`. So nothing here waits without limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.errors import WhetError
from whet.rl.supervision.child_log import Deliver

MAKE = "make"
"""The verb that is answered when a rank has made its part of the learner; `start` sends it. Its value is `Facts`."""

Cause = Literal["whet", "memory", "peer", "other"]
"""Of an exception: a `WhetError`; no memory left; a connection to another rank that broke; anything else."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rank says of the learner once it is made."""

    version: int
    parameters: int
    trained_parameters: int


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a rank; it can be pickled whatever it was."""

    cause: Cause
    text: str
    """One line: `OutOfMemoryError: CUDA out of memory. Tried to allocate ...`"""
    error: WhetError | None = None
    """As it was raised, where it is whet's own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank answers to one call."""

    rank: int
    value: Any = None
    raised: Raised | None = None
    version: int = 0
    """Policy version of the rank's weights after the call."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank stands."""

    rank: int
    process: str
    """What a person finds it by: `process 4711`."""
    device: str
    """`cpu`, `cuda:1`"""
    phase: str
    """The last phase that it named: what it does, or waits for other ranks in."""
    phases: int
    """How many it has named since it was started: of ranks that do the same, the one behind has the fewest."""
    phase_s: float
    """Seconds since it named the phase."""
    silent_s: float
    """Seconds since its last heartbeat, which also comes while it computes or waits."""
    suspended: bool = False
    """Stopped by a signal (SIGSTOP)."""
    ended: str | None = None
    """How its process ended, after "it": `was killed by SIGKILL`; None while it runs."""

    @property
    def name(self) -> str:
        """`rank 1 (cuda:1, process 4711)`"""
        return f"rank {self.rank} ({self.device}, {self.process})"


class RankGroup(Protocol):
    size: int
    """How many ranks."""

    def start(self, model: Path, options: Mapping[str, Any]) -> None:
        """Start every rank; returns before they have answered `MAKE`.

        Each makes `make_rank_learner(model, rank=..., world_size=..., init_method=..., **options)` on its device. Only
        where none runs: before the first time, and after `kill`.
        """
        ...

    def send(self, rank: int, verb: str, arguments: tuple[Any, ...]) -> None:
        """Begin a call of a rank's learner. Never waits for the rank."""
        ...

    def receive(self, timeout_s: float) -> Answer | None:
        """The next answer of any rank; None where none came in time."""
        ...

    def standing(self) -> list[Standing]:
        """Of all ranks, in their order. Never waits for one of them."""
        ...

    def kill(self) -> None:
        """End all ranks, whatever they do, and forget what they were about to answer. Returns when they have ended."""
        ...

    def close(self) -> None:
        """End all ranks for good, and leave nothing of them."""
        ...

    def forwarded_to(self, deliver: Deliver) -> AbstractContextManager[None]:
        """What ranks log and warn of is given to `deliver` until the block ends; of ranks started again, too."""
        ...
