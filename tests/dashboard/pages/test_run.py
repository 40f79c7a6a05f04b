"""A run's page as the server sends it: it reads without scripts."""

from __future__ import annotations

import json
from pathlib import Path

from ..conftest import Browser, Runs, trained

METRICS = [
    {"step": step, "reward/mean": step / 10, "reward/reverse-text/mean": step / 10, "policy/entropy": 1 / step}
    for step in range(1, 6)
]


def page(browser: Browser, name: str, query: str = "", **headers: str) -> str:
    answer = browser.http.get(f"/runs/{browser.id(name)}{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def held_out(run: Path, *rows: tuple[int, float]) -> None:
    score = {"moment": "during", "sampling": "temperature 1", "environment": "reverse-text", "metrics": {}}
    lines = [json.dumps({**score, "step": step, "version": step, "reward": reward}) for step, reward in rows]
    (run / "evals.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_curves_numbers_and_held_out_scores_are_in_the_page(runs: Runs, browser: Browser) -> None:
    held_out(runs.training(metrics=METRICS), (0, 0.25), (5, 0.75))
    text = page(browser, "mine")
    assert 'aria-label="Reward"' in text
    assert '<path d="M' in text
    assert 'data-metric="reward/mean">0.5</span>' in text
    assert "+0.500" in text
    assert "<noscript>" in text


def test_chosen_metrics_are_drawn_and_a_refresh_has_no_drawings(runs: Runs, browser: Browser) -> None:
    runs.training(metrics=METRICS)
    text = page(browser, "mine", "?metric=policy/entropy")
    assert 'data-names="[&#34;policy/entropy&#34;]"' in text
    assert 'value="policy/entropy" aria-label="Draw policy/entropy" checked' in text
    assert text.count('class="chart" role="img"') == 2
    assert 'class="chart" role="img"' not in page(browser, "mine", **{"X-Whet-Refresh": "1"})


def test_findings_have_their_evidence_and_the_change(runs: Runs, browser: Browser) -> None:
    flat = {"groups/zero_variance_frac": 1.0, "reward/std": 0.0, "policy/entropy": 0.4}
    rows = [{**row, **flat, "reward/mean": 0.0, "reward/reverse-text/mean": 0.0} for row in METRICS]
    steps = [[trained("1", 0.0, 0.0), trained("1", 0.0, 0.0)] for _ in rows]
    runs.training(metrics=rows, steps=steps, max_steps=5)
    text = page(browser, "mine")
    found = browser.get(f"/runs/{browser.id('mine')}/findings")["items"]
    assert found
    assert "What the doctor found" in text
    assert "<b>Change:</b>" in text


def test_run_without_a_step_says_what_it_waits_for(runs: Runs, browser: Browser) -> None:
    runs.training("ended", state="failed", ended="2026-11-21T17:00:00+00:00", last_error="the model is <gone>")
    text = page(browser, "ended")
    assert "It ended before its first step" in text
    assert "the model is &lt;gone&gt;" in text


def test_evaluation_leads_to_its_scores(runs: Runs, browser: Browser) -> None:
    runs.evaluation([], "two")
    (found,) = browser.get("/runs")["items"]
    answer = browser.http.get(f"/runs/{found['id']}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{found['id']}/report")
