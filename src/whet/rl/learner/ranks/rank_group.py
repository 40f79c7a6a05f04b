"""`RankGroup`: the processes of all ranks, as `RanksLearner` uses them, wherever they are.

    start ─▶ each rank makes its part of the learner, and answers ─▶ send, receive ... ─▶ kill ─▶ start, or close

A group moves calls and answers and says where each rank stands. What is too long, which rank is to blame and what
follows is decided in one place for all groups: `ranks_learner.py`. So nothing here waits without limit.

`RankBody`: what runs in the process of a rank, whichever group has started it: calls in, answers out.

One batch for many ranks: which sequences each computes, and their results put together again. Pure.

Sequences that begin with the same prompt go to one rank, where it is computed once; so do those of one rollout. Such
groups are given out by their tokens, the longest first, each to the rank with the least so far. Where there are fewer
groups than ranks, the last ranks have no part. Losses are sums, so that who computes what changes no gradient.
"""

from __future__ import annotations

import logging
import pickle
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whet.errors import TrainingError, WhetError
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.protocol import LossOutput, TokenValues
from whet.rl.supervision.child_log import ChildLog
from whet.system.loading_time import rare_collections

MAKE = "make"
"""The verb that is answered when a rank has made its part of the learner; `start` sends it. Value: `LearnerFacts`."""

Cause = Literal["whet", "memory", "peer", "other"]
"""Of an exception: a `WhetError`; no memory left; a connection to another rank that broke; anything else."""


@dataclass(frozen=True, slots=True)
class LearnerFacts:
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
class RankResponse:
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

    alone: bool = False
    """Whether it is the whole learner."""

    @property
    def name(self) -> str:
        """`rank 1 (cuda:1, process 4711)`, `the learner (cpu, process 4711)`"""
        return f"{'the learner' if self.alone else f'rank {self.rank}'} ({self.device}, {self.process})"


class RankGroup(ABC):
    def __init__(self, devices: Sequence[str]) -> None:
        """A rank for each of `devices`, none of which is started."""
        self.size = len(devices)
        self._devices = tuple(devices)
        self.log = ChildLog()  # what ranks log and warn of
        self._answers: queue.SimpleQueue[RankResponse] = queue.SimpleQueue()

    @abstractmethod
    def start(self, model: Path, options: Mapping[str, Any]) -> None:
        """Start every rank; returns before they have answered `MAKE`.

        Each makes `make_rank_learner(model, rank=..., world_size=..., init_method=..., **options)` on its device; one
        alone makes `make_learner(model, **options)`. Only where none runs: before the first time, and after `kill`.
        """

    @abstractmethod
    def send(self, rank: int, verb: str, arguments: tuple[Any, ...]) -> None:
        """Begin a call of a rank's learner. Never waits for the rank."""

    def receive(self, timeout_s: float) -> RankResponse | None:
        """The next answer of any rank; None where none came in time."""
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @abstractmethod
    def standing(self) -> list[Standing]:
        """Of all ranks, in their order. Never waits for one of them."""

    @abstractmethod
    def kill(self) -> None:
        """End all ranks, whatever they do, and forget what they were about to answer. Returns when they have ended."""

    def close(self) -> None:
        """End all ranks for good, and leave nothing of them."""
        self.kill()
        self.log.close()


IDLE = "waiting for a call"
CALLS = {
    MAKE: "loading the model",
    "forward_backward": "forward and backward pass",
    "token_logprobs": "forward pass",
    "token_values": "forward pass, with values",
    "reference_logprobs": "forward pass of the reference",
    "optim_step": "optimiser step",
    "publish": "publishing weights",
    "save": "saving a checkpoint",
    "load": "loading a checkpoint",
    "export": "exporting weights",
    "export_merged": "exporting weights",
}
"""The first phase of each call; the learner names those within."""
NO_MEMORY = ("out of memory", "not enough memory", "cannot allocate memory", "can't allocate memory")
BROKEN_CONNECTION = ("closed by peer", "connection reset", "connection refused", "broken pipe", "gloo", "nccl")
"""Parts of messages by which an exception of torch is known, in lower case."""
LONGEST = 500
"""Characters of a message; the log has the whole exception."""

_log = logging.getLogger(__name__)


class RankBody:
    """One rank's part of the learner."""

    def __init__(self, rank: int, phase: Callable[[str], None]) -> None:
        """`phase` is called with what the rank does from now on, in words."""
        self.rank = rank
        self._phase = phase
        self._learner: Any = None

    def make(self, model: Path, options: Mapping[str, Any]) -> RankResponse:
        """Make the learner; `options` are those of `RankGroup.start`."""
        return self._answered(MAKE, lambda: self._make(model, options))

    def call(self, verb: str, arguments: tuple[Any, ...]) -> RankResponse:
        return self._answered(verb, lambda: getattr(self._learner, verb)(*arguments))

    def _make(self, model: Path, options: Mapping[str, Any]) -> LearnerFacts:
        with rare_collections():
            if "world_size" in options:
                from whet.rl.learner.ranks.rank_learner import make_rank_learner

                made: Any = make_rank_learner(model, rank=self.rank, phase=self._phase, **options)
            else:
                from whet.rl.learner.make import make_learner

                made = make_learner(model, **options)
        self._learner = made
        return LearnerFacts(made.version, made.parameters, made.trained_parameters)

    def _answered(self, verb: str, work: Callable[[], Any]) -> RankResponse:
        self._phase(CALLS[verb])
        try:
            value = work()
        except Exception as error:
            raised = as_raised(error)
            if raised.cause != "whet":
                _log.error("%s failed", CALLS[verb], exc_info=error)
            return RankResponse(self.rank, raised=raised)
        self._phase(IDLE)
        return RankResponse(self.rank, value, version=self._learner.version)


def as_raised(error: Exception) -> Raised:
    """What the run is to know of an exception of a rank."""
    line = " ".join(str(error).split())[:LONGEST]
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    if not isinstance(error, WhetError):
        return Raised(_cause(error), text)
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:  # its arguments are not those that it is made with
        error = TrainingError(str(error))
    return Raised("whet", text, error)


def _cause(error: Exception) -> Cause:
    said = f"{type(error).__name__} {error}".lower()
    if isinstance(error, MemoryError) or any(part in said for part in ("outofmemoryerror", *NO_MEMORY)):
        return "memory"
    return "peer" if any(part in said for part in BROKEN_CONNECTION) else "other"


Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The part of each rank of a batch of T tokens."""

    parts: tuple[PackedBatch | None, ...]  # None where a rank has no group
    places: tuple[Index, ...]  # where in the batch the tokens of each part are
    tokens: int  # T

    def join(self, outputs: Sequence[LossOutput]) -> LossOutput:
        """Of the whole batch, from those of all ranks, one without a part included. Peaks of devices add up."""
        joined = reduce(add, outputs)
        peaks = [output.peak_flops for output in outputs if output.peak_flops is not None]
        joined.peak_flops = sum(peaks) if len(peaks) == len(outputs) else None
        if all(output.values is not None for output in outputs):
            values = TokenValues(np.zeros(self.tokens, np.float32), np.zeros(self.tokens, np.bool_))
            for indices, output in zip(self.places, outputs, strict=True):
                assert output.values is not None
                values.logprobs_T[indices] = output.values.logprobs_T
                values.clipped_T[indices] = output.values.clipped_T
            joined.values = values
        return joined

    def join_logprobs(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """T; one number a token of the whole batch."""
        joined_T = np.zeros(self.tokens, np.float32)
        for indices, part in zip(self.places, parts, strict=True):
            joined_T[indices] = part
        return joined_T


def divide(batch: PackedBatch, ranks: int) -> Division:
    """The same division for the same batch, wherever it is made."""
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for tokens, sequences in sorted(_groups(batch), key=lambda group: (-group[0], group[1])):
        rank = loads.index(min(loads))
        loads[rank] += tokens
        chosen[rank] += sequences
    ordered = [sorted(own) for own in chosen]
    parts = tuple(batch.take(own) if own else None for own in ordered)
    return Division(parts, tuple(map(batch.tokens_of, ordered)), len(batch.ids))


def empty_part() -> PackedBatch:
    """What a rank without a part computes: no sequence."""
    return _plain(())


def one_token() -> PackedBatch:
    """What a rank computes where it has fewer micro-batches than others: the shortest sequence there is."""
    return _plain((2,))


def _groups(batch: PackedBatch) -> Iterable[tuple[int, list[int]]]:
    """Sequences that stay together, in ascending order, and about how many tokens they compute."""
    bounds = batch.cu_seqlens.tolist()
    group_of: list[int] = []
    first_of: dict[object, int] = {}  # the group of a rollout, and that of a prompt
    prompts: list[int] = []
    members: dict[int, list[int]] = {}
    for b, (start, stop) in enumerate(pairwise(bounds)):
        trained = np.flatnonzero(batch.trained[start:stop])
        prompts.append(int(trained[0]) if len(trained) else 0)
        keys = [batch.rollouts[b], *([batch.ids[start : start + prompts[b]].tobytes()] if len(trained) else [])]
        joined = sorted({group_of[first_of[key]] for key in keys if key in first_of})
        group = joined[0] if joined else b
        group_of.append(group)
        members.setdefault(group, []).append(b)
        for other in joined[1:]:  # the sequence joins two groups
            for moved in members.pop(other):
                group_of[moved] = group
                members[group].append(moved)
        for key in keys:
            first_of.setdefault(key, b)
    for sequences in members.values():
        sequences.sort()
        lengths = sum(bounds[b + 1] - bounds[b] - prompts[b] for b in sequences)
        yield lengths + max(prompts[b] for b in sequences), sequences


def _plain(lengths: tuple[int, ...]) -> PackedBatch:
    """Sequences of token 0, of which all but the first token is trained."""
    tokens = sum(lengths)
    bounds = np.cumsum([0, *lengths], dtype=np.int32)
    trained = np.ones(tokens, np.bool_)
    trained[bounds[:-1]] = False
    return PackedBatch(
        ids=np.zeros(tokens, np.int32),
        trained=trained,
        logprobs=np.zeros(tokens, np.float32),
        advantages=np.zeros(tokens, np.float32),
        versions=np.full(tokens, -1, np.int32),
        cu_seqlens=bounds,
        temperatures=np.ones(tokens, np.float32),
        rollouts=("",) * len(lengths),
    )
