"""status.json: what a run is doing, for programs outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whet.rl.monitors.protocol import Outcome, RunPlan, StepReport
from whet.rl.storage.run_directory import HEARTBEAT_SECONDS, Status


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def status(tmp_path: Path, clock: Clock) -> Status:
    return Status(tmp_path / "status.json", clock)


def read(status: Status) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(status.path.read_text())
    return fields


def started(status: Status) -> Status:
    status.start(RunPlan("r", Path("runs/r"), "whet/tiny", ["a"], 8, 4, 10, first_step=4))
    return status


def test_the_file_is_there_before_the_run_starts(status: Status) -> None:
    assert read(status)["state"] == "starting"


def test_a_run_that_starts_says_where_it_stands(status: Status) -> None:
    fields = read(started(status))
    assert (fields["state"], fields["step"], fields["max_steps"]) == ("running", 3, 10)
    assert fields["heartbeat"] >= fields["started"]


def test_news_wait_for_the_next_heartbeat(status: Status, clock: Clock) -> None:
    started(status).step(StepReport(5, {}))
    assert read(status)["step"] == 3
    clock.now += HEARTBEAT_SECONDS
    status.phase("generate", 3, 8)
    fields = read(status)
    assert (fields["step"], fields["phase"], fields["phase_done"], fields["phase_total"]) == (5, "generate", 3, 8)


def test_a_failure_is_written_at_once_with_its_error(status: Status) -> None:
    started(status).ended(Outcome("failed", 7, "no space left on the disk"))
    fields = read(status)
    assert (fields["state"], fields["step"], fields["last_error"]) == ("failed", 7, "no space left on the disk")
    assert "phase" not in fields


def test_a_run_that_finished_has_no_error(status: Status) -> None:
    started(status).ended(Outcome("finished", 10, "all done"))
    assert read(status)["last_error"] is None


def test_nothing_but_the_file_is_left_behind(status: Status) -> None:
    started(status)
    assert list(status.path.parent.iterdir()) == [status.path]


def test_a_stall_is_told_at_once_and_is_over_with_the_next_step(status: Status) -> None:
    started(status).note("stalled: the learner has waited 75 s for a batch of rollouts")
    assert read(status)["stalled"] == ["the learner has waited 75 s for a batch of rollouts"]
    status.step(StepReport(4, {}))
    assert "stalled" not in read(status)


def test_a_run_that_goes_back_to_its_checkpoint_says_so_at_once(status: Status, clock: Clock) -> None:
    started(status).step(StepReport(5, {}))
    status.rewound(3)
    assert read(status)["step"] == 3
