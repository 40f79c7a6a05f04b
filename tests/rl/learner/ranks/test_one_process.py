"""A learner in a process of its own: what it warns of is told, and one that cannot be made leaves nothing behind."""

from __future__ import annotations

import logging
import queue
import time
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import whet.system.children
from whet.errors import ModelLoadError
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.ranks.ranks_learner import RanksLearner, local_ranks

logger = logging.getLogger("somebody.else")


@pytest.fixture(autouse=True)
def quick_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked, so that torch need not be imported again; none of these computes."""
    monkeypatch.setattr(whet.system.children, "START_METHOD", "fork")


def one_process(directory: Path) -> RanksLearner:
    make = local_ranks(["cpu"], directory, timeout_s=1.0)
    return make(Path("anything"), publish_directory=directory, computation=LearnerConfig())


def test_what_it_warns_of_is_told_from_its_loading_to_its_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(model: Path, **options: Any) -> Any:
        logger.warning("this checkpoint is old")
        return SimpleNamespace(version=0, parameters=1, trained_parameters=1, publish=publish)

    def publish() -> None:
        logger.warning("shared memory is nearly full")
        time.sleep(1.5)  # longer than ranks may be silent

    monkeypatch.setattr("whet.rl.learner.make.make_learner", make)
    learner = one_process(tmp_path)
    heard: queue.Queue[logging.LogRecord] = queue.Queue()
    try:
        with learner.log.forwarded_to(heard.put):
            learner.publish()
            told = [heard.get(timeout=60).getMessage() for _ in range(2)]
            learner.close()  # as the watchdog does, while everybody listens
    finally:
        learner.close()
    assert told == ["this checkpoint is old", "shared memory is nearly full"]


def test_one_that_cannot_be_made_says_why_and_its_process_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(model: Path, **options: Any) -> Any:
        raise ModelLoadError("no such model")

    monkeypatch.setattr("whet.rl.learner.make.make_learner", make)
    before = set(active_children())
    with pytest.raises(ModelLoadError, match="no such model"):
        one_process(tmp_path)
    assert set(active_children()) <= before
