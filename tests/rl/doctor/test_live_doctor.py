"""The doctor's line while a run goes on, from the numbers of the last steps alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from whet.display.live import Output
from whet.rl.doctor import KEPT_FIRST, KEPT_LAST, LiveDoctor, diagnose
from whet.rl.doctor.record import RunRecord
from whet.rl.monitors.console import ConsoleMonitor, live_view
from whet.rl.monitors.progress import RunProgress
from whet.rl.monitors.protocol import Outcome, RunPlan, StepReport
from whet.rl.report.data import RunData
from whet.system.files import read_lines

Run = Callable[..., Path]


def plan_of(run: Path) -> RunPlan:
    return RunPlan("run", run, "whet/tiny", ["clinic"], 16, 4, 6)


def told(run: Path) -> str:
    """What a log shows of a run."""
    written = io.StringIO()
    monitor = ConsoleMonitor(Output(Console(file=written, width=500)))
    monitor.start(plan_of(run))
    for row in read_lines(run / "metrics.jsonl"):
        monitor.step(StepReport(row["step"], {name: value for name, value in row.items() if name != "step"}))
    return written.getvalue()


def test_the_log_of_a_sick_run_has_the_finding_once(run_of: Run) -> None:
    lines = [line for line in told(run_of("steps of a hundredfold")).splitlines() if line.startswith("doctor: ")]
    assert len(lines) == 1
    assert "the policy lost what it could do" in lines[0]
    assert "learning_rate = 0.001  (now 0.03)" in lines[0]


def test_the_log_of_a_healthy_run_has_none(run_of: Run) -> None:
    assert "doctor" not in told(run_of("healthy"))


def test_checkpoints_are_not_missed_by_who_does_not_look_for_them(run_of: Run) -> None:
    doctor = LiveDoctor({"checkpointing": {"save_every_n_steps": 2}})
    for row in read_lines(run_of("healthy") / "metrics.jsonl"):
        doctor.step(row["step"], row)
    assert doctor.line is None


def test_the_live_view_shows_it_on_one_line_and_stays_within_the_window(run_of: Run) -> None:
    progress = RunProgress(plan_of(run_of("healthy")), clock=lambda: 0.0)
    progress.finding = "the policy lost \x1b[31m what it could do: " + 60 * "learning_rate "
    console = Console(file=io.StringIO(), width=80, height=12, force_terminal=True, color_system=None)
    lines = console.render_lines(live_view(progress, 80, 12), pad=False)
    shown = ["".join(segment.text for segment in line) for line in lines]
    assert len(shown) <= 12
    assert sum("doctor: the policy lost" in line for line in shown) == 1
    assert not any("\x1b" in line for line in shown)


def test_memory_stays_flat_and_the_beginning_is_kept(run_of: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(read_lines(run_of("healthy") / "metrics.jsonl"))
    doctor = LiveDoctor({}, before=rows[:2])
    for step in range(3, 400):
        doctor.step(step, {"reward/mean": 0.5})
    seen: list[RunRecord] = []
    monkeypatch.setattr("whet.rl.doctor.diagnose", lambda run: seen.append(run) or [])
    doctor.look()
    kept = [row["step"] for row in seen[0].data.metrics]
    assert len(kept) == KEPT_FIRST + KEPT_LAST
    assert kept[:2] == [1, 2]


def test_a_directory_that_cannot_be_read_has_no_doctor(tmp_path: Path) -> None:
    assert LiveDoctor.of(tmp_path) is None


def rows_of(rewards: list[float], spread: float = 0.0, **more: float) -> list[dict[str, float]]:
    return [
        {
            "step": step,
            "reward/mean": reward,
            "reward/clinic/mean": reward,
            "reward/std": spread,
            "groups/zero_variance_frac": 1.0,
            **more,
        }
        for step, reward in enumerate(rewards, 1)
    ]


CONFIG = {"env": [{"id": "clinic"}], "batch_size": 16, "rollouts_per_example": 4}
ALL_ZERO = rows_of([0.0] * 20)
SWINGS_AND_IS_LOW = rows_of([0.0, 0.09] * 10, spread=0.02)
LOUD_IN_THE_MIDDLE = [
    {**row, "reward/std": 0.4 if 10 <= row["step"] <= 20 else 0.01} for row in rows_of([0.3, 0.38] * 60)
]


@pytest.mark.parametrize("rows", [ALL_ZERO, SWINGS_AND_IS_LOW, LOUD_IN_THE_MIDDLE], ids=["zero", "low", "long"])
def test_what_the_live_line_says_is_found_in_the_end(rows: list[dict[str, float]]) -> None:
    doctor = LiveDoctor(CONFIG)
    for row in rows:
        doctor.step(int(row["step"]), row)
    findings = diagnose(RunRecord(RunData(Path(), CONFIG, rows, [])))
    assert doctor.name is not None
    assert doctor.name in [finding.rule for finding in findings]


def test_rewards_that_are_all_equal_do_not_swing() -> None:
    findings = diagnose(RunRecord(RunData(Path(), CONFIG, ALL_ZERO, [])))
    assert [finding.rule for finding in findings] == ["reward-flat-low"]


def test_the_last_steps_are_looked_at_when_the_run_ends(run_of: Run) -> None:
    written = io.StringIO()
    monitor = ConsoleMonitor(Output(Console(file=written, width=500)))
    monitor.start(plan_of(run_of("healthy")))
    for row in rows_of([0.5] * 5 + [0.0] * 9, spread=0.1):
        monitor.step(StepReport(int(row["step"]), {name: value for name, value in row.items() if name != "step"}))
    monitor.ended(Outcome("finished", 14, ""))
    assert "doctor: the policy lost what it could do" in written.getvalue()
