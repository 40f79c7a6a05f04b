"""Several monitors as one: all are told, one that fails is named once and switched off, training goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from whet.rl.monitors import MonitorGroup, console_and_others
from whet.rl.monitors.console import ConsoleMonitor
from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport

PLAN = RunPlan("r", Path("runs/r"), "whet/tiny", ["a"], 8, 4, 10)


class Recorder(Monitor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, plan: RunPlan) -> None:
        self.calls.append("start")

    def phase(self, name: str, done: int, total: int) -> None:
        self.calls.append(f"phase {name} {done}/{total}")

    def step(self, report: StepReport) -> None:
        self.calls.append(f"step {report.step}")

    def evaluation(self, report: EvalReport) -> None:
        self.calls.append(f"evaluation {report.moment}")

    def note(self, text: str) -> None:
        self.calls.append(f"note {text}")

    def ended(self, outcome: Outcome) -> None:
        self.calls.append(f"ended {outcome.state}")


class Broken(Recorder):
    def step(self, report: StepReport) -> None:
        super().step(report)
        raise ConnectionError("the tracker is down")


def test_every_monitor_is_told_everything() -> None:
    first, second = Recorder(), Recorder()
    group = MonitorGroup([first, second])
    group.start(PLAN)
    group.phase("train", 0, 1)
    group.step(StepReport(1, {}))
    group.evaluation(EvalReport("after", 1, 1, []))
    group.note("hello")
    group.ended(Outcome("finished", 1, ""))
    expected = ["start", "phase train 0/1", "step 1", "evaluation after", "note hello", "ended finished"]
    assert first.calls == second.calls == expected


def test_a_monitor_that_fails_is_named_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Broken(), Recorder()
    group = MonitorGroup([broken, sound])
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            group.step(StepReport(step, {}))
    assert sound.calls == ["step 1", "step 2", "step 3"]
    assert broken.calls == ["step 1"]
    assert len([record for record in caplog.records if "Broken" in record.getMessage()]) == 1
    assert "Broken failed" in caplog.text
    assert "the tracker is down" in caplog.text


def test_a_request_to_stop_is_no_failure_of_a_monitor() -> None:
    class Interrupted(Recorder):
        def step(self, report: StepReport) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MonitorGroup([Interrupted()]).step(StepReport(1, {}))


def test_quiet_leaves_the_terminal_alone() -> None:
    status = Recorder()
    assert console_and_others(quiet=True, status=status).monitors == [status]
    assert [type(monitor) for monitor in console_and_others(quiet=False).monitors] == [ConsoleMonitor]
