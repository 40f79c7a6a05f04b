"""metrics.jsonl and evals.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from whet.rl.monitors.jsonl import JsonlMonitor, read_evaluations
from whet.rl.monitors.protocol import EvalReport, StepReport
from whet.rollouts.totals import EvalScore


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def evaluation(moment: str, step: int, reward: float = 0.5) -> EvalReport:
    member = EvalScore("calculator/sums", "greedy", 0.75, {}, 4, by_task={"0": 0.75})
    scores = [
        EvalScore(
            "calculator", "greedy", reward, {"exact_match": 0.25}, 64, errors=1, by_task={"0": 0.75}, members=[member]
        )
    ]
    return EvalReport(moment, step, step, scores)  # type: ignore[arg-type]


def test_a_step_is_one_line_with_its_number_first_and_names_in_order(metrics: Path) -> None:
    JsonlMonitor(metrics).step(StepReport(3, {"reward/mean": 0.5, "optim/loss": -1.0}))
    assert metrics.read_text() == '{"step": 3, "optim/loss": -1.0, "reward/mean": 0.5}\n'


def test_a_loss_that_is_nan_is_null(metrics: Path) -> None:
    JsonlMonitor(metrics).step(StepReport(1, {"optim/loss": math.nan}))
    assert lines(metrics) == [{"step": 1, "optim/loss": None}]


def test_an_evaluation_is_one_line_a_score_and_reads_back_equal(metrics: Path) -> None:
    log = JsonlMonitor(metrics)
    reports = [evaluation("before", 0), evaluation("during", 5), evaluation("after", 9)]
    for report in reports:
        log.evaluation(report)
    assert lines(metrics.with_name("evals.jsonl"))[0] == {
        "step": 0,
        "moment": "before",
        "version": 0,
        "environment": "calculator",
        "sampling": "greedy",
        "reward": 0.5,
        "metrics": {"exact_match": 0.25},
        "rollouts": 64,
        "errors": 1,
        "tasks": {"0": 0.75},
        "members": [
            {
                "environment": "calculator/sums",
                "reward": 0.75,
                "metrics": {},
                "rollouts": 4,
                "errors": 0,
                "tasks": {"0": 0.75},
            }
        ],
    }
    assert read_evaluations(metrics.with_name("evals.jsonl")) == reports


def test_an_environment_where_everything_failed_has_no_reward(metrics: Path) -> None:
    JsonlMonitor(metrics).evaluation(evaluation("before", 0, math.nan))
    assert lines(metrics.with_name("evals.jsonl"))[0]["reward"] is None
    assert math.isnan(read_evaluations(metrics.with_name("evals.jsonl"))[0].scores[0].reward)


def test_resuming_cuts_off_what_will_be_done_again(metrics: Path) -> None:
    log = JsonlMonitor(metrics)
    for step in range(1, 7):
        log.step(StepReport(step, {}))
    for moment, step in (("before", 0), ("during", 2), ("during", 4), ("after", 6)):
        log.evaluation(evaluation(moment, step))
    log.truncate_after(3)
    assert [row["step"] for row in lines(metrics)] == [1, 2, 3]
    kept = [(row["moment"], row["step"]) for row in lines(metrics.with_name("evals.jsonl"))]
    assert kept == [("before", 0), ("during", 2)]


def test_resuming_a_finished_run_repeats_only_its_last_evaluation(metrics: Path) -> None:
    log = JsonlMonitor(metrics)
    log.step(StepReport(1, {}))
    log.evaluation(evaluation("before", 0))
    log.evaluation(evaluation("after", 1))
    log.truncate_after(1)
    assert [row["step"] for row in lines(metrics)] == [1]
    assert [row["moment"] for row in lines(metrics.with_name("evals.jsonl"))] == ["before"]


def test_starting_again_from_nothing_leaves_nothing(metrics: Path) -> None:
    log = JsonlMonitor(metrics)
    log.step(StepReport(1, {}))
    log.evaluation(evaluation("before", 0))
    log.truncate_after(0)
    assert metrics.read_text() == metrics.with_name("evals.jsonl").read_text() == ""


def test_a_line_torn_by_a_kill_is_gone_when_the_run_continues(metrics: Path) -> None:
    JsonlMonitor(metrics).step(StepReport(1, {"a": 1.0}))
    with metrics.open("a") as file:
        file.write('{"step": 2, "a"')
    JsonlMonitor(metrics).step(StepReport(2, {"a": 2.0}))
    assert lines(metrics) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]
