"""`RanksLearner`: a `Learner` that is divided among the processes of a `RankGroup`.

Each call goes to all ranks at once, a batch divided by whole groups, and returns when all have answered. Calls block:
the loop makes them from a thread. A rank that ends, stands still or fails ends all of them, at once or after
`timeout_s`, with one `LearnerLostError` that names it (`faults.py`); `restart` begins them again, as they were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import LearnerLostError, TrainingError, WhetError
from whet.inference.protocol import WeightUpdate
from whet.rl.algorithm_config import LossConfig
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.protocol import LossOutput, OptimOutput, OptimParams
from whet.rl.learner.publications import Publications
from whet.rl.learner.ranks.division import divide
from whet.rl.learner.ranks.faults import Call, find_fault
from whet.rl.learner.ranks.local_group import LocalRankGroup
from whet.rl.learner.ranks.rank_group import Answer, Facts, RankGroup
from whet.rl.supervision.child_log import ForwardedLog

TICK_S = 0.1
SUSPENDED_S = 5.0
"""Two looks at the ranks that are further apart: this process did not run, and perhaps neither did they."""
STARTS_WITHIN_S = 1800.0
"""Seconds without progress that a start may take, where `timeout_s` is less: a large model is read from a slow disk."""
AGREED_WITHIN_S = 10.0
"""Seconds in which all ranks raise an error that they agree on."""
LAST_RESORT = 2.0
"""Times `timeout_s` after which a collective ends by itself, in case nothing is there any more that would end it."""


class RanksLearner:
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
        division = divide(batch, self._group.size)
        tokens = [0 if part is None else len(part.ids) for part in division.parts]
        self._busiest += max(tokens)
        self._mean += sum(tokens) / len(tokens)
        return division.join(self._each("forward_backward", [(part, loss) for part in division.parts]))

    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        division = divide(batch, self._group.size)
        return division.join_logprobs(self._each("token_logprobs", [(part,) for part in division.parts]))

    def optim_step(self, params: OptimParams) -> OptimOutput:
        output: OptimOutput = self._all("optim_step", params)
        return output

    def publish(self) -> WeightUpdate:
        update: WeightUpdate = self._all("publish")
        self._publications.published()
        return update

    def save(self, directory: Path) -> None:
        self._all("save", directory)

    def load(self, directory: Path) -> None:
        self._all("load", directory)

    def export(self, directory: Path, dtype: str = "float32") -> None:
        self._all("export", directory, dtype)

    def export_merged(self, directory: Path, dtype: str = "float32") -> None:
        self._all("export_merged", directory, dtype)

    def metrics(self) -> dict[str, float]:
        """Of the batch learned since the last call."""
        found = {"perf/rank_balance": self._busiest / self._mean} if self._mean else {}
        self._busiest = self._mean = 0.0
        return found

    def close(self) -> None:
        """End the ranks, also in the middle of a step."""
        self._ended = self._ended or "the ranks of the learner were ended"
        self._group.close()

    def describe(self) -> str:
        """Its ranks, where each computes, in words."""
        return ", ".join(rank.name for rank in self._group.standing())

    @property
    def log(self) -> ForwardedLog:
        """What ranks log and warn of."""
        return self._group

    def _start(self) -> None:
        timeout_s = max(self._timeout_s, STARTS_WITHIN_S)
        options = {
            **self._options,
            "publish_directory": self._publications.begin(),
            "collective_timeout_s": LAST_RESORT * timeout_s,
        }
        self._ended = None
        self._group.start(self._model, options)
        facts: Facts = self._answers(timeout_s)[0]
        self.version, self.parameters = facts.version, facts.parameters
        self.trained_parameters = facts.trained_parameters

    def _all(self, verb: str, *arguments: Any) -> Any:
        """What rank 0 answers to a call that is the same for all ranks."""
        return self._each(verb, [arguments] * self._group.size)[0]

    def _each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each rank answers, in their order; the arguments are by rank."""
        if self._ended is not None:
            raise TrainingError(self._ended)
        for rank, of_rank in enumerate(arguments):
            self._group.send(rank, verb, of_rank)
        return self._answers(self._timeout_s)

    def _answers(self, timeout_s: float) -> list[Any]:
        """Wait for all ranks. Raises `LearnerLostError`, or what they raise; they end where one does not answer."""
        answers: dict[int, Answer] = {}
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
            self._check(Call(answers, now - began, raised_s, timeout_s))
        self._check(Call(answers, 0.0, 0.0, timeout_s))
        for number in range(self._group.size):
            if (error := _error_of(answers[number])) is not None:
                raise error
        self.version = answers[0].version
        return [answers[number].value for number in range(self._group.size)]

    def _check(self, call: Call) -> None:
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
            error = next(found for one in call.answers.values() if (found := _error_of(one)) is not None)
        if error is not None:
            self._ended = f"the ranks of the learner have ended: {error}"
            self._group.kill()
            raise error


def local_ranks(devices: Sequence[str], directory: Path, *, timeout_s: float) -> Callable[..., RanksLearner]:
    """`RanksLearner` with a process on this machine for each of `devices`; `directory` is private to the run."""
    return partial(RanksLearner, LocalRankGroup(devices, directory), timeout_s=timeout_s)


def _error_of(answer: Answer) -> WhetError | None:
    return None if answer.raised is None else answer.raised.error
