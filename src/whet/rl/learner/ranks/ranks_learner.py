"""`RanksLearner`: a `Learner` that is divided among the processes of a `RankGroup`, or computes in one of its own.

So it computes while others sample. Batches go there as arrays, weights come back as files in shared memory. A call goes
to all ranks at once, a batch divided by whole groups, and returns when all have answered. Calls block: the loop makes
them from a thread. A rank that ends, stands still or fails ends all of them, at once or after `timeout_s`, with one
`LearnerLostError` that names it (`find_fault`); `restart` begins them again, as they were made.

`find_fault`: which rank is to blame where a call of all ranks does not end, and for what. Pure: no clock, no processes.

    a process has ended              at once
    an exception of one rank         at once; one that says that the connection to another broke waits for the reason
    no heartbeat                     after `timeout_s`: the process is suspended, or its machine hangs
    no phase any more, on no rank    after `timeout_s`: a collective in which they wait for each other

Ranks make the same collectives in the same order, so where none progresses the one that has named the fewest phases is
the one that the others wait for. A `WhetError` is no fault of a rank: all ranks agree on it before they raise it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import LearnerLostError, TrainingError, WhetError
from whet.inference.protocol import WeightUpdate
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams
from whet.rl.learner.ranks.local_group import LocalRankGroup
from whet.rl.learner.ranks.rank_group import LearnerFacts, RankGroup, RankResponse, Standing, divide
from whet.rl.sections.algorithm import LossConfig
from whet.rl.storage.weight_directory import Publications
from whet.rl.supervision.child_log import ChildLog

TICK_S = 0.1
SUSPENDED_S = 5.0
"""Two looks at the ranks that are further apart: this process did not run, and perhaps neither did they."""
STARTS_WITHIN_S = 1800.0
"""Seconds without progress that a start may take, where `timeout_s` is less: a large model is read from a slow disk."""
AGREED_WITHIN_S = 10.0
"""Seconds in which all ranks raise an error that they agree on."""
LAST_RESORT = 2.0
"""Times `timeout_s` after which a collective ends by itself, in case nothing is there any more that would end it."""


class RanksLearner(Learner):
    """See `whet.rl.learner.protocol.Learner`."""

    def __init__(self, group: RankGroup, model: Path, *, timeout_s: float, **options: Any) -> None:
        """Start the ranks and load the model there; `options` are those of `make_learner`.

        Raises what `make_learner` raises, and `LearnerLostError` where a rank does not come up.
        """
        self._group, self._model, self._options, self._timeout_s = group, model, options, timeout_s
        self._publications = Publications(options["publish_directory"])
        self._busiest = self._mean = 0.0  # tokens of ranks in the present step
        self._ended: str | None = None  # why the ranks have ended, as long as they have
        self.version = self.parameters = self.trained_parameters = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Begin again, with the weights that the learner was made with. Raises as when it is made."""
        self._group.kill()
        self._start()

    def forward_backward(self, batch: PackedBatch, loss: LossConfig) -> LossOutput:
        if self._group.size == 1:
            output: LossOutput = self._call("forward_backward", batch, loss)
            return output
        division = divide(batch, self._group.size)
        tokens = [0 if part is None else len(part.ids) for part in division.parts]
        self._busiest += max(tokens)
        self._mean += sum(tokens) / len(tokens)
        return division.join(self._each("forward_backward", [(part, loss) for part in division.parts]))

    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        return self._logprobs("token_logprobs", batch)

    def reference_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        return self._logprobs("reference_logprobs", batch)

    def _logprobs(self, verb: str, batch: PackedBatch) -> NDArray[np.float32]:
        if self._group.size == 1:
            logprobs_T: NDArray[np.float32] = self._call(verb, batch)
            return logprobs_T
        division = divide(batch, self._group.size)
        return division.join_logprobs(self._each(verb, [(part,) for part in division.parts]))

    def token_values(self, batch: PackedBatch) -> NDArray[np.float32]:
        if self._group.size == 1:
            values_T: NDArray[np.float32] = self._call("token_values", batch)
            return values_T
        division = divide(batch, self._group.size)
        answers = self._each("token_values", [(part,) for part in division.parts])
        return np.stack([division.join_logprobs(rows) for rows in zip(*answers, strict=True)])

    def optim_step(self, params: OptimParams) -> OptimOutput:
        output: OptimOutput = self._call("optim_step", params)
        return output

    def publish(self) -> WeightUpdate:
        update: WeightUpdate = self._call("publish")
        self._publications.published()
        return update

    def save(self, directory: Path) -> None:
        self._call("save", directory)

    def load(self, directory: Path) -> None:
        self._call("load", directory)

    def export(self, directory: Path, dtype: str = "float32") -> None:
        self._call("export", directory, dtype)

    def export_merged(self, directory: Path, dtype: str = "float32") -> None:
        self._call("export_merged", directory, dtype)

    def metrics(self) -> dict[str, float]:
        """Of the batch learned since the last call."""
        metrics = {"perf/rank_balance": self._busiest / self._mean} if self._mean else {}
        self._busiest = self._mean = 0.0
        return metrics

    def close(self) -> None:
        """End the ranks, also in the middle of a step."""
        self._ended = self._ended or "the ranks of the learner were ended"
        self._group.close()

    def describe(self) -> str:
        """Its ranks, where each computes, in words."""
        return ", ".join(rank.name for rank in self._group.standing())

    @property
    def log(self) -> ChildLog:
        """What ranks log and warn of."""
        return self._group.log

    def _start(self) -> None:
        timeout_s = max(self._timeout_s, STARTS_WITHIN_S)
        options = {**self._options, "publish_directory": self._publications.begin()}
        if self._group.size > 1:
            options["collective_timeout_s"] = LAST_RESORT * timeout_s
        self._ended = None
        self._group.start(self._model, options)
        facts: LearnerFacts = self._answers(timeout_s)[0]
        self.version, self.parameters = facts.version, facts.parameters
        self.trained_parameters = facts.trained_parameters

    def _call(self, method: str, *arguments: Any) -> Any:
        """What rank 0 answers to a call that is the same for all ranks."""
        return self._each(method, [arguments] * self._group.size)[0]

    def _each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each rank answers, in their order; the arguments are by rank."""
        if self._ended is not None:
            raise TrainingError(self._ended)
        for rank, of_rank in enumerate(arguments):
            self._group.send(rank, verb, of_rank)
        return self._answers(self._timeout_s)

    def _answers(self, timeout_s: float) -> list[Any]:
        """Wait for all ranks. Raises `LearnerLostError`, or what they raise; they end where one does not answer."""
        answers: dict[int, RankResponse] = {}
        began = looked = time.monotonic()
        raised_at: float | None = None
        while len(answers) < self._group.size:
            answer = self._group.receive(TICK_S)
            now = time.monotonic()
            if now - looked > SUSPENDED_S:
                began = now
            looked = now
            if self._ended is not None:
                raise TrainingError(self._ended)
            if answer is not None:
                answers[answer.rank] = answer
                if answer.raised is not None and raised_at is None:
                    raised_at = now
            raised_s = 0.0 if raised_at is None else now - raised_at
            self._check(RankCall(answers, now - began, raised_s, timeout_s))
        self._check(RankCall(answers, 0.0, 0.0, timeout_s))
        for number in range(self._group.size):
            if (error := _error_of(answers[number])) is not None:
                raise error
        self.version = answers[0].version
        return [answers[number].value for number in range(self._group.size)]

    def _check(self, call: RankCall) -> None:
        """End the ranks and raise where one is lost, or where one alone has raised an error of whet's."""
        if len(call.answers) == self._group.size and not any(one.raised for one in call.answers.values()):
            return
        error: WhetError | None = None
        ranks = self._group.standing()
        if len(ranks) < self._group.size:
            return  # they are being ended
        if fault := find_fault(call, ranks):
            error = LearnerLostError(fault)
        elif call.raised_s > AGREED_WITHIN_S:
            error = next(raised for one in call.answers.values() if (raised := _error_of(one)) is not None)
        if error is not None:
            self._ended = f"the ranks of the learner have ended: {error}"
            self._group.kill()
            raise error


def local_ranks(devices: Sequence[str], directory: Path, *, timeout_s: float) -> Callable[..., RanksLearner]:
    """`RanksLearner` with a process on this machine for each of `devices`; `directory` is private to the run.

    One alone waits for no other, and may take any time.
    """
    group = LocalRankGroup(devices, directory)
    return partial(RanksLearner, group, timeout_s=timeout_s if group.size > 1 else math.inf)


def _error_of(answer: RankResponse) -> WhetError | None:
    return None if answer.raised is None else answer.raised.error


REASON_WITHIN_S = 5.0
"""Seconds in which the reason of a broken connection becomes known: the end of the other process, or its exception."""
MEMORY = "a smaller learner.micro_batch_tokens, learner.activation_checkpointing or more ranks need less memory"


@dataclass(frozen=True, slots=True)
class RankCall:
    """A pending call of all ranks."""

    answers: Mapping[int, RankResponse]
    """Those that are there, by rank."""
    watched_s: float
    """Seconds since it began, or since this process continued after it was suspended itself."""
    raised_s: float
    """Seconds since the first exception."""
    timeout_s: float


def find_fault(call: RankCall, ranks: Sequence[Standing]) -> str | None:
    """What is wrong, naming the rank, in one sentence without a full stop; None as long as nothing is."""
    if ended := [rank for rank in ranks if rank.ended is not None]:
        first = min(ended, key=lambda rank: "SIGKILL" not in (rank.ended or ""))  # others may end because of it
        hint = f" (most often for its memory: {MEMORY})" if "SIGKILL" in (first.ended or "") else ""
        return _blamed(first, f"{first.ended} in: {first.phase}{hint}", call, ranks)
    if fault := _raised(call, ranks):
        return fault
    waited = [rank for rank in ranks if rank.rank not in call.answers]
    for rank in sorted(waited, key=lambda rank: not rank.suspended):
        silent = min(rank.silent_s, call.watched_s)
        if silent > call.timeout_s:
            why = "it is suspended by a signal" if rank.suspended else "its process does not run"
            text = f"stands still: {why}, and gave no heartbeat for {silent:.0f} s, in: {rank.phase}"
            return _blamed(rank, text, call, ranks)
    if waited and all(min(rank.phase_s, call.watched_s) > call.timeout_s for rank in waited):
        behind = min(waited, key=lambda rank: (not rank.suspended, rank.phases))
        limit = f"for longer than learner.rank_timeout_seconds = {call.timeout_s:g}"
        alike = all(rank.phases == behind.phases for rank in waited) and not behind.suspended
        if alike and len(waited) > 1:
            return f"{_named(waited)} have not come any further {limit}, in: {behind.phase}"
        return _blamed(behind, f"has not come any further {limit}, in: {behind.phase}", call, ranks)
    return None


def _raised(call: RankCall, ranks: Sequence[Standing]) -> str | None:
    for cause in ("memory", "other", "peer"):
        for answer in call.answers.values():
            if answer.raised is None or answer.raised.cause != cause:
                continue
            rank = ranks[answer.rank]
            if cause == "peer":
                if call.raised_s < REASON_WITHIN_S and len(call.answers) < len(ranks):
                    return None
                suspended = [one for one in ranks if one.suspended and one.rank not in call.answers]
                if suspended:
                    return _blamed(suspended[0], f"is suspended by a signal, in: {suspended[0].phase}", call, ranks)
            hint = f" ({MEMORY})" if cause == "memory" else ""
            return _blamed(rank, f"failed in: {rank.phase}: {answer.raised.text}{hint}", call, ranks)
    return None


def _blamed(rank: Standing, what: str, call: RankCall, ranks: Sequence[Standing]) -> str:
    """The sentence about a rank, and where the others were."""
    places: dict[str, list[Standing]] = {}
    for other in ranks:
        if other is not rank and other.ended is None and other.rank not in call.answers:
            places.setdefault(other.phase, []).append(other)
    waiting = [f"{_named(there)} waited for it in: {phase}" for phase, there in places.items()]
    return "; ".join([f"{rank.name} {what}", *waiting])


def _named(ranks: Sequence[Standing]) -> str:
    """`rank 0`, `ranks 0, 2 and 3`"""
    numbers = [str(rank.rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
