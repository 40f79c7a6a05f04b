"""report.html and reward.png, made from a run's files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from whet.errors import RunError
from whet.rl.report import write_report
from whet.rl.report.data import RunData
from whet.rl.report.page import pair_up, trained_samples
from whet.rl.stored.stored_run import open_run

BuildRun = Callable[..., Path]
ReadPage = Callable[[Path], Any]


def test_the_page_needs_nothing_but_itself(build_run: BuildRun, read_page: ReadPage) -> None:
    read_page(write_report(build_run())).check()


def test_a_hostile_model_changes_the_text_of_the_page_and_nothing_else(
    build_run: BuildRun, read_page: ReadPage, hostile: tuple[str, str]
) -> None:
    said, shown = hostile
    page = read_page(write_report(build_run(extra=said)))
    page.check()
    assert shown in page.text


def test_every_environment_has_its_curve_and_its_numbers(build_run: BuildRun, read_page: ReadPage) -> None:
    directory = build_run()
    page = read_page(write_report(directory))
    figures = {one["data-title"]: json.loads(one["data-labels"] or "") for one in page.named("figure")}
    assert figures["Reward"] == ["reverse-text", "shout"]
    assert {"KL, sampler to learner", "Entropy", "Gradient norm", "Seconds a step"} <= figures.keys()
    assert figures.keys() == {svg["aria-label"] for svg in page.named("svg")}
    (curves,) = (json.loads(one["data-curves"] or "") for one in page.named("div") if "data-curves" in one)
    assert len(curves["series"]["reward/shout/mean"]) == 6  # steps
    assert curves["marks"].keys() == {"reward/reverse-text/mean", "reward/shout/mean"}
    before, after = (RunData.of(open_run(directory)).evaluation(moment) for moment in ("before", "after"))
    assert before is not None
    assert after is not None
    for report in (before, after):
        for score in report.scores:
            assert f"{score.reward:.3f}" in page.text


def test_the_same_task_is_shown_before_and_after_with_reward_and_advantage(
    build_run: BuildRun, read_page: ReadPage
) -> None:
    page = read_page(write_report(build_run()))
    assert "reverse-text, task" in page.text
    assert "the largest gain" in page.text
    assert re.search(r"before reward \d\.\d{3}, advantage [+-]\d\.\d{3}", page.text)
    assert re.search(r"after reward \d\.\d{3}, advantage [+-]\d\.\d{3}", page.text)
    assert re.search(r"best reward \d\.\d{3}, advantage \+\d\.\d{3}", page.text)


def test_the_picture_beside_it_is_a_png_of_the_curve(build_run: BuildRun) -> None:
    directory = build_run()
    write_report(directory)
    with Image.open(directory / "reward.png") as image:
        assert image.size == (1200, 675)
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # both environments' lines


def test_a_run_that_was_stopped_before_its_first_step_still_has_a_report(
    build_run: BuildRun, read_page: ReadPage
) -> None:
    directory = build_run()
    for path in ("metrics.jsonl", "evals.jsonl"):
        (directory / path).unlink()
    for path in (directory / "rollouts").iterdir():
        path.unlink()
    assert "No step has been trained yet." in read_page(write_report(directory)).text


def test_a_run_in_the_middle_has_a_report_without_its_end(build_run: BuildRun, read_page: ReadPage) -> None:
    directory = build_run()
    (directory / "rollouts" / "eval_after.jsonl").unlink()
    lines = (directory / "evals.jsonl").read_text().splitlines(keepends=True)
    (directory / "evals.jsonl").write_text("".join(lines[:4]))
    text = read_page(write_report(directory)).text
    assert "Held-out tasks, before and after" in text
    assert "The same held-out task" not in text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run .*config\.toml"):
        write_report(tmp_path)


def row(
    example: int, reward: float | None, *, sampling: str = "temperature 1", error: object = None
) -> dict[str, object]:
    return {"environment": "e", "sampling": sampling, "example_id": example, "reward": reward, "error": error}


def test_pairs_are_the_largest_gain_a_typical_task_and_the_largest_loss() -> None:
    before = [row(0, 0.5), row(1, 0.5), row(2, 0.5)]
    after = [row(0, 0.4), row(1, 0.6), row(2, 1.0)]
    pairs = pair_up(before, after)
    assert [(pair.why, pair.before["example_id"]) for pair in pairs] == [
        ("the largest gain", 2),
        ("a typical task", 1),
        ("the largest loss", 0),
    ]


def test_rollouts_that_failed_are_in_no_pair_and_greedy_ones_only_where_nothing_else_is() -> None:
    failed = row(1, None, error={"error": "ModelError"})
    greedy = [row(1, 0.1, sampling="greedy")]
    assert pair_up([row(0, 0.5), failed, *greedy], [row(0, 0.6), row(1, 0.9), *greedy])[0].before["example_id"] == 0
    assert [pair.sampling for pair in pair_up(greedy, greedy)] == ["greedy"]


def test_trained_samples_come_from_the_first_the_middle_and_the_last_step(build_run: BuildRun) -> None:
    directory = build_run(steps=5)
    samples = trained_samples(directory / "rollouts", [1, 2, 3, 4, 5])
    assert list(dict.fromkeys(sample.step for sample in samples)) == [1, 3, 5]
    assert all(sample.best["advantage"] >= sample.worst["advantage"] for sample in samples)


def test_no_pair_of_losses_is_called_a_gain() -> None:
    before, after = [row(0, 0.5), row(1, 0.9)], [row(0, 0.4), row(1, 0.2)]
    assert [(pair.why, pair.before["example_id"]) for pair in pair_up(before, after)] == [
        ("a typical task", 0),
        ("the largest loss", 1),
    ]
