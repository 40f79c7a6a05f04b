"""Evaluations and searches on a page: what their reports show."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.dashboard.pages.reports import Reports

from ..conftest import Browser, Runs, rollout

ReadPage = Callable[[str], Any]


def test_evaluations_are_listed_with_a_way_to_their_scores(runs: Runs, browser: Browser) -> None:
    assert "whet eval run" in browser.http.get("/evaluations").text
    assert "whet gepa run" in browser.http.get("/searches").text


def test_evaluation_whose_rollouts_all_failed_is_red_and_says_why(runs: Runs, browser: Browser) -> None:
    error = {"error": "ModelError", "message": "the endpoint <does> not answer (ask.py:3)"}
    rows = [rollout(task, None, error=error) for task in range(3)]
    runs.evaluation(rows, "4f1c2a9b", avg_error=1.0, avg_reward=None)
    runs.evaluation([rollout(0, 1.0)], "some", avg_error=0.25)
    id = browser.id("arithmetic with whet/tiny")
    for path in ("/runs", "/evaluations", f"/runs/{id}/report"):
        html = browser.http.get(path).text
        assert 'state-failed">every rollout failed</span>' in html
        assert "arithmetic with whet/tiny" in html or path == "/evaluations"
        assert "4f1c2a9b</" not in html
    assert 'state-warning">finished, 25 % failed</span>' in browser.http.get("/runs").text
    text = browser.http.get(f"/runs/{id}/report").text
    why = "ModelError, 3 of 3 rollouts: the endpoint &lt;does&gt; not answer (ask.py:3)"
    assert text.index(why) < text.index("Readiness for training")


def test_scores_are_those_of_the_report(runs: Runs, browser: Browser, read_page: ReadPage) -> None:
    from whet.evals.report import write_report

    rows = [rollout(task, reward) for task in range(4) for reward in (0.0, 1.0)]
    directory = runs.evaluation(rows, num_examples=4, rollouts_per_example=2)
    page = read_page(browser.http.get(f"/runs/{browser.id('one')}/report").text)
    assert "pass@2" in page.text
    report = read_page(write_report(directory)).text
    begin, end = report.index("Readiness for training"), report.index("Settings")
    assert report[begin:end] in page.text
    assert any((tag.get("href") or "").endswith("/rollouts?failed=true") for name, tag in page.tags if name == "a")


def test_a_report_follows_its_files(runs: Runs, browser: Browser) -> None:
    directory = runs.evaluation([rollout(0, 0.25)], num_examples=2)
    run, reports = browser.library.run(None, browser.id("one")), Reports(rest=0.0)
    first = reports.body(run)
    assert reports.body(run) is first
    with (directory / "results.jsonl").open("a") as file:
        file.write(json.dumps(rollout(1, 0.75)) + "\n")
    assert "1 of 2 rollouts are here" in first
    assert "1 of 2 rollouts are here" not in reports.body(run)


@pytest.mark.usefixtures("search")
def test_a_search_shows_candidates_and_what_they_changed(browser: Browser) -> None:
    html = browser.http.get(f"/runs/{browser.id('search')}/report").text
    assert "Accepted candidates" in html
    assert "slowly</ins>" in html
    assert "search" in browser.http.get("/searches").text


@pytest.mark.parametrize("name", ["results.jsonl", "metadata.json"])
def test_no_link_in_a_directory_is_followed(runs: Runs, browser: Browser, tmp_path: Path, name: str) -> None:
    directory = runs.evaluation([rollout(0, 1.0)])
    secret = tmp_path / "elsewhere"
    secret.write_text(json.dumps(rollout(0, 1.0, "of another owner") | {"env_id": "of another owner"}))
    (directory / name).unlink()
    os.symlink(secret, directory / name)
    answer = browser.http.get(f"/runs/{browser.id('one')}/report")
    assert "of another owner" not in answer.text


def test_training_has_no_scores_page(runs: Runs, browser: Browser) -> None:
    runs.training("mine")
    assert browser.http.get(f"/runs/{browser.id('mine')}/report").status_code == 404


@pytest.fixture
def search(runs: Runs) -> Path:
    """A directory as `whet gepa run` leaves one: the seed and one candidate that was accepted."""
    directory = runs.folder / "runs" / "search"
    directory.mkdir()
    (directory / "gepa.toml").write_text('model = "whet/tiny"\n')
    known = {"config": {"model": "whet/tiny", "env": [{"id": "reverse-text"}]}, "state": "finished", "reason": "done"}
    (directory / "metadata.json").write_text(json.dumps(known))
    seed: dict[str, Any] = {
        "id": "a", "number": 0, "parents": [], "texts": {"system_prompt": "Reverse the text."}, "verdict": "seed",
        "reason": "the seed", "changed": [], "iteration": 0, "calls_before": 0, "calls_after": 4,
        "val_mean": 0.25, "val_rewards": {"val/r/0": 0.25},
    }  # fmt: skip
    text = {"system_prompt": "Reverse the text, slowly."}
    better = {**seed, "id": "b", "number": 1, "parents": ["a"], "verdict": "accepted", "texts": text, "val_mean": 0.5}
    (directory / "candidates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (seed, better)))
    return directory
