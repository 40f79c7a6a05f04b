"""Ranks as processes: calls and answers, and one error that names the rank that was lost, whatever became of it.

Their learner is a small one of these tests, which waits for the other ranks as in a collective.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet.rl.learner.ranks.rank_learner
import whet.system.children
from whet.errors import LearnerLostError, ModelLoadError, TrainingError
from whet.inference.protocol import WeightUpdate
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.protocol import OptimOutput, OptimParams
from whet.rl.learner.ranks.local_group import LocalRankGroup
from whet.rl.learner.ranks.ranks_learner import RanksLearner, local_ranks

SIZE = 2
TIMEOUT_S = 5.0
logger = logging.getLogger("somebody.else")


class SmallLearner:
    """Of one rank: its optimiser step waits for all ranks, and does what the step's rate says."""

    parameters = trained_parameters = 3

    def __init__(self, rank: int, phase: Callable[[str], None], directory: Path) -> None:
        self.rank, self.version, self.directory, self._phase = rank, 0, directory, phase

    def optim_step(self, params: OptimParams) -> OptimOutput:
        fault = FAULTS.get(params.learning_rate)
        if fault is not None and self.rank == params.denominator:
            self._await(SIZE - 1)
            fault()
        self._phase("all-reduce")
        self._meet()
        if params.learning_rate == AGREED:
            raise TrainingError("the gradient is not finite")
        self.version += 1
        return OptimOutput(1.0, params.learning_rate, self.version)

    def _meet(self) -> None:
        (self.directory / f"meet-{self.version}-{self.rank}").touch()
        self._await(SIZE)

    def _await(self, ranks: int) -> None:
        while len(list(self.directory.glob(f"meet-{self.version}-*"))) < ranks:
            time.sleep(0.001)

    def publish(self) -> WeightUpdate:
        path = self.directory / f"weights-{self.version}"
        if self.rank == 0:
            path.write_text(str(self.version))
        return WeightUpdate(self.version, path)

    def save(self, *_: Any) -> None:
        self._meet()

    def load(self, directory: Path) -> None:
        logger.warning("rank %d reads %s", self.rank, directory.name)


def no_memory() -> None:
    raise MemoryError


def hang() -> None:
    while True:
        time.sleep(0.01)


def wrong_alone() -> None:
    raise TrainingError("cannot read the file")


AGREED = 99.0
FAULTS: dict[float, Callable[[], None]] = {
    1.0: lambda: os.kill(os.getpid(), signal.SIGKILL),
    2.0: lambda: os.kill(os.getpid(), signal.SIGSTOP),
    3.0: no_memory,
    4.0: hang,
    5.0: lambda: os._exit(7),
    6.0: wrong_alone,
}


@pytest.fixture(autouse=True)
def small_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked, so that torch need not be imported again; the learner is not the subject."""
    monkeypatch.setattr(whet.system.children, "START_METHOD", "fork")

    def make(model: Path, *, rank: int, phase: Callable[[str], None], **options: Any) -> SmallLearner:
        if model.name == "no":
            raise ModelLoadError("no such model")
        assert options["world_size"] == SIZE
        return SmallLearner(rank, phase, options["publish_directory"])

    monkeypatch.setattr(whet.rl.learner.ranks.rank_learner, "make_rank_learner", make)
    monkeypatch.setattr("whet.rl.learner.ranks.ranks_learner.AGREED_WITHIN_S", 1.0)


def start(directory: Path, model: str = "yes") -> RanksLearner:
    make = local_ranks(["cpu"] * SIZE, directory, timeout_s=TIMEOUT_S)
    return make(Path(model), publish_directory=directory / "published", computation=LearnerConfig())


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[RanksLearner]:
    made = start(tmp_path)
    yield made
    made.close()
    assert not [child for child in active_children() if "rank" in child.name]


def step(learner: RanksLearner, rate: float = 0.5, rank: int = 0) -> OptimOutput:
    return learner.optim_step(OptimParams(rate, denominator=rank))


def test_a_call_goes_to_all_ranks_and_one_answer_comes_back(learner: RanksLearner) -> None:
    assert (learner.version, learner.parameters, learner.trained_parameters) == (0, 3, 3)
    assert [step(learner).version for _ in range(3)] == [1, 2, 3]
    assert learner.version == 3
    assert learner.publish().path.read_text() == "3"


@pytest.mark.parametrize(
    ("rate", "rank", "says"),
    [
        (1.0, 0, "was killed by SIGKILL in: optimiser step"),
        (1.0, 1, "was killed by SIGKILL in: optimiser step"),
        (2.0, 0, "stands still: it is suspended by a signal"),
        (2.0, 1, "stands still: it is suspended by a signal"),
        (3.0, 0, "failed in: optimiser step: MemoryError"),
        (3.0, 1, "failed in: optimiser step: MemoryError"),
        (4.0, 1, "has not come any further for longer than learner.rank_timeout_seconds = 5, in: optimiser step"),
        (5.0, 1, "exited with code 7 in: optimiser step"),
    ],
)
def test_a_lost_rank_is_named_with_what_the_other_waited_for(
    learner: RanksLearner, rate: float, rank: int, says: str
) -> None:
    with pytest.raises(LearnerLostError) as caught:
        step(learner, rate, rank)
    assert str(caught.value).startswith(f"rank {rank} (cpu, process ")
    assert says in str(caught.value)
    # The other may not have begun when one fails at once.
    assert re.search(rf"; rank {1 - rank} waited for it in: (all-reduce|waiting for a call)$", str(caught.value))
    assert not [child for child in active_children() if "rank" in child.name]
    with pytest.raises(TrainingError, match=r"the ranks of the learner have ended: rank"):
        step(learner)


def test_one_that_died_between_two_calls_is_found_by_the_next(learner: RanksLearner) -> None:
    assert isinstance(learner._group, LocalRankGroup)
    os.kill(learner._group.pids[1], signal.SIGKILL)
    with pytest.raises(LearnerLostError, match=r"rank 1 .* was killed by SIGKILL in: waiting for a call"):
        step(learner)


def test_what_all_ranks_raise_is_raised_once_and_they_live_on(learner: RanksLearner) -> None:
    with pytest.raises(TrainingError, match=r"^the gradient is not finite$") as caught:
        step(learner, AGREED)
    assert not isinstance(caught.value, LearnerLostError)
    assert step(learner).version == 1


def test_an_error_of_whets_in_one_rank_alone_is_raised_and_the_ranks_end(learner: RanksLearner) -> None:
    with pytest.raises(TrainingError, match=r"^cannot read the file$"):
        step(learner, 6.0, 1)
    assert not [child for child in active_children() if "rank" in child.name]


def test_ranks_start_again_and_publish_where_engines_read_nothing(learner: RanksLearner) -> None:
    step(learner)
    before = learner.publish()
    with pytest.raises(LearnerLostError):
        step(learner, 1.0)
    learner.restart()
    assert learner.version == 0
    step(learner)
    after = learner.publish()
    assert (before.version, before.path.exists()) == (after.version, True)
    assert before.path != after.path
    learner.publish()  # engines have the one before
    assert (before.path.exists(), after.path.exists()) == (False, True)


def test_ranks_are_ended_in_the_middle_of_a_call(learner: RanksLearner) -> None:
    raised: queue.Queue[BaseException] = queue.Queue()

    def call() -> None:
        try:
            step(learner, 4.0)
        except TrainingError as error:
            raised.put(error)

    thread = threading.Thread(target=call)
    thread.start()
    learner.close()
    assert "the ranks of the learner were ended" in str(raised.get(timeout=60))
    thread.join(timeout=60)


def test_what_ranks_warn_of_is_told_also_after_a_restart(learner: RanksLearner) -> None:
    heard: queue.Queue[str] = queue.Queue()
    with learner.log.forwarded_to(lambda record: heard.put(record.getMessage())):
        learner.load(Path("first"))
        assert {heard.get(timeout=60) for _ in range(SIZE)} == {"rank 0 reads first", "rank 1 reads first"}
        learner.restart()
        learner.load(Path("second"))
        assert {heard.get(timeout=60) for _ in range(SIZE)} == {"rank 0 reads second", "rank 1 reads second"}


def test_ranks_that_cannot_be_made_say_why_once_and_are_gone(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^no such model$"):
        start(tmp_path, "no")
    assert not [child for child in active_children() if "rank" in child.name]
    assert not list(tmp_path.glob("ranks-meet*"))


def test_a_call_larger_than_a_pipe_does_not_wait_for_a_suspended_rank(learner: RanksLearner) -> None:
    assert isinstance(learner._group, LocalRankGroup)
    os.kill(learner._group.pids[0], signal.SIGSTOP)
    with pytest.raises(LearnerLostError, match=r"rank 0 .* suspended"):
        learner._each("save", [(np.zeros(1 << 20),)] * SIZE)
