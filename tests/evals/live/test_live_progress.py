"""What is known of evaluations while they run."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from whet.evals.live.progress import SAMPLE_SECONDS, SessionProgress, names
from whet.evals.live.view import live_view
from whet.rollouts.totals import KINDS_OF_ERROR


def test_rates_and_the_time_left_count_no_rollouts_that_were_kept_from_before(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan(examples=10, rollouts=2, kept=8)], clock)
    for task in range(4):
        session.rollout(0, player.row(task, 1.0))
        session.rollout(0, player.row(task, 1.0))
    assert session.rate is None
    clock.now = 2.0
    for task in (4, 5):
        session.rollout(0, player.row(task, 1.0, seconds=2.0))
        session.rollout(0, player.row(task, 1.0))
    one = session.evaluations[0]
    assert one.done == 12
    assert one.rate == session.rate == 2.0
    assert one.remaining == session.remaining == 4.0
    assert one.new_output_tokens / one.elapsed == 10.0  # 4 rollouts of 5 tokens in 2 s


def test_an_evaluation_begins_with_its_first_rollout_and_ends_when_it_is_finished(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan(), player.plan("reverse-text")], clock)
    clock.now = 5.0
    session.rollout(0, player.row(0, 1.0, seconds=4.0))
    clock.now = 9.0
    session.rollout(1, player.row(0, 1.0, seconds=2.0))
    session.finish(0)
    clock.now = 100.0
    assert session.evaluations[0].elapsed == 8.0
    assert session.evaluations[1].elapsed == 93.0


def test_failed_rollouts_are_counted_by_kind_and_left_out_of_the_means(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan()], clock)
    for outcome in (1.0, "ModelError", "ToolError", "ToolError", 0.0):
        session.rollout(0, player.row(0, outcome))
    detail = session.evaluations[0]
    assert detail.totals.error_kinds == {"ToolError": 2, "ModelError": 1}
    reward = detail.scores.reward()
    assert reward is not None
    assert reward.mean == 0.5
    assert detail.totals.averages()["avg_metrics"] == {"exact_match": 0.5}
    assert detail.totals.usage["input_tokens"].total == 100.0  # failed rollouts were paid for too


def test_what_judges_used_is_counted_apart(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan()], clock)
    for used in ({"input_tokens": 600.0, "output_tokens": 5.0, "cost": 0.5}, None):
        row = player.row(0, 1.0)
        session.rollout(0, row if used is None else {**row, "judge_usage": used})
    detail = session.evaluations[0]
    assert detail.totals.judge_usage == {"input_tokens": 600.0, "output_tokens": 5.0, "cost": 0.5}
    assert detail.totals.cost is None
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(live_view(session, 0, "latest", 100, 30))
    assert "tokens     40 in, 10 out, judges 600 in, 5 out, $0.5000" in shown.export_text()


def test_kinds_of_errors_without_end_do_not_fill_the_memory(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan()], clock)
    for number in range(3 * KINDS_OF_ERROR):
        session.rollout(0, player.row(0, f"Error{number}"))
    kinds = session.evaluations[0].totals.error_kinds
    assert len(kinds) == KINDS_OF_ERROR + 1
    assert next(iter(kinds.items())) == ("others", 2 * KINDS_OF_ERROR)


def test_the_latest_sample_stays_long_enough_to_be_read(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan()], clock)
    for second in (0.0, SAMPLE_SECONDS - 1, SAMPLE_SECONDS):
        clock.now = second
        session.rollout(0, player.row(int(second), 1.0))
        latest = session.evaluations[0].samples["latest"]["example_id"]
        assert latest == (SAMPLE_SECONDS if second == SAMPLE_SECONDS else 0)


def test_the_best_the_worst_a_failed_and_the_slowest_rollouts_are_remembered(player: Any, clock: Any) -> None:
    session = SessionProgress([player.plan()], clock)
    for task, outcome in enumerate([0.5, 1.0, "ModelError", 0.0, 1.0, 0.0, 0.5]):
        session.rollout(0, player.row(task, outcome, seconds=float(task)))
    detail = session.evaluations[0]
    assert {kind: row["example_id"] for kind, row in detail.samples.items()} == {
        "latest": 0,
        "best": 1,
        "worst": 3,
        "failed": 2,
    }
    assert detail.slowest == [(6.0, 6), (5.0, 5), (4.0, 4), (3.0, 3), (2.0, 2)]


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ([("a", "m", {}), ("b", "m", {})], ["a", "b"]),
        ([("a", "m", {}), ("a", "n", {})], ["a, m", "a, n"]),
        ([("a", "m", {"temperature": 0}), ("a", "m", {"temperature": 1})], ["a, temperature 0", "a, temperature 1"]),
        ([("a", "m", {}), ("a", "m", {}), ("b", "m", {})], ["a #1", "a #2", "b"]),
    ],
)
def test_every_evaluation_of_a_session_has_a_name_of_its_own(
    player: Any, plans: list[tuple[str, str, dict[str, Any]]], expected: list[str]
) -> None:
    made = [player.PlannedEval(env, model, "", 1, 1, varied=varied) for env, model, varied in plans]
    assert names(made) == expected
