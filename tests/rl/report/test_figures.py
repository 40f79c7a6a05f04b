"""Which curves a run's page draws."""

from __future__ import annotations

from whet.display.page.rendering import templates
from whet.rl.report.data import Figure, drawn, extremes, figures_of

SERIES = {
    "reward/mean": [0.1, 0.2],
    "reward/sort/mean": [0.1, 0.2],
    "reward/sort/order": [0.0, 1.0],
    "reward/sort/exact": [0.0, 0.5],
    "reward/sort/length": [3.0, 12.0],
    "reward/sort/num_turns": [1.0, 1.0],
    "policy/entropy": [0.7, 0.6],
    "other/thing": [1.0, None],
}


def figures(*chosen: str) -> dict[str, list[str]]:
    return {one.title: one.names for one in figures_of(SERIES, SERIES, ["sort"], chosen)}


def test_rewards_come_first_then_what_was_chosen_then_functions_then_key_metrics() -> None:
    assert figures("other/thing", "no/such") == {
        "Reward": ["reward/sort/mean"],
        "other/thing": ["other/thing"],
        "sort: reward functions": ["reward/sort/order", "reward/sort/exact"],
        "sort: other metrics": ["reward/sort/length"],
        "Entropy": ["policy/entropy"],
    }


def test_metric_that_was_chosen_is_drawn_once() -> None:
    assert [*figures("policy/entropy")].count("policy/entropy") == 1
    assert "Entropy" not in figures("policy/entropy")


def test_imitation_has_its_loss_first() -> None:
    series = {"optim/loss": [2.0, 1.0], "validation/loss": [2.0, None]}
    first = figures_of(series, series, [], [])[0]
    assert (first.title, first.names) == ("Loss", ["optim/loss", "validation/loss"])


def test_drawing_has_a_line_for_each_curve_and_a_circle_for_each_held_out_score() -> None:
    figure = Figure("Reward", ["reward/sort/mean", "gone"], ["<sort>", "gone"])
    chart = drawn(figure, [1, 2], SERIES, {"reward/sort/mean": [(0.0, 0.3), (2.0, 0.4)]}).chart
    svg = str(templates().get_template("drawings.html").module.lines(chart, 400, 170))  # type: ignore[attr-defined]
    assert svg.count("<path") == 1
    assert svg.count('class="mark') == 2
    assert "<sort>" not in svg


def test_newest_lowest_and_highest_leave_out_what_is_missing() -> None:
    assert extremes([None, 3.0, 1.0, float("nan"), 2.0, None]) == (2.0, 1.0, 3.0)
    assert extremes([None]) == (None, None, None)
