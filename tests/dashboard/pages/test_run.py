"""A run's page as the server sends it: it reads without scripts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet.dashboard.data import facts, series
from whet.records import tail
from whet.records.lock import DirectoryLock

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


def test_findings_of_long_metrics_are_of_the_first_and_the_last_steps(
    runs: Runs, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "METRICS_ENDS", 40_000)
    step = {**METRICS[0], "groups/zero_variance_frac": 1.0, "reward/std": 0.0, "reward/mean": 0.0}
    run = runs.training(metrics=[{**step, "step": number + 1} for number in range(1_000)])
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    lines[500] = "not JSON"  # in the middle, which is not read
    metrics.write_text("\n".join(lines) + "\n")
    assert len(metrics.read_bytes()) > 80_000
    items = browser.get(f"/runs/{browser.id('mine')}/findings")["items"]
    assert "unreadable" not in [one["rule"] for one in items]
    assert any("step 1000" in text or "to 1000" in text for one in items for text in one["evidence"]), items


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


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, after: int = 0) -> Iterator[threading.Event]:
    """Calls of a function wait from the one after `after` on, until the block ends. The event is set once one waits."""
    function: Callable[..., Any] = getattr(place, name)
    begun, go, calls = threading.Event(), threading.Event(), []

    def waiting(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            begun.set()
            go.wait(60)
        return function(*arguments, **more)

    monkeypatch.setattr(place, name, waiting)
    try:
        yield begun
    finally:
        go.set()


def test_page_does_not_wait_for_a_request_that_reads_the_metrics(
    runs: Runs, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.dashboard.pages.run.PATIENCE", 0.01)
    monkeypatch.setattr(series, "LONGEST_LINE", 300)
    runs.training(metrics=METRICS)
    id = browser.id("mine")
    with ThreadPoolExecutor(2) as pool:
        with held_up(monkeypatch, tail, "read_at", after=1) as begun:
            whole = pool.submit(browser.get, f"/runs/{id}/metrics")
            assert begun.wait(60)
            text = pool.submit(page, browser, "mine").result(60)  # while the other one still reads
            assert not whole.done()
        assert whole.result(60)["steps"] == [1, 2, 3, 4, 5]
    assert "The metrics are being read" in text
    assert "The metrics are being read" not in page(browser, "mine")


def test_page_does_not_wait_for_the_doctor(runs: Runs, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.dashboard.pages.run.PATIENCE", 0.01)
    runs.training(metrics=METRICS)
    with held_up(monkeypatch, facts, "_examined") as begun:
        with ThreadPoolExecutor(1) as pool:
            text = pool.submit(page, browser, "mine").result(60)
        assert begun.wait(60)
    assert "The doctor examines the run" in text
    assert browser.get(f"/runs/{browser.id('mine')}/findings")["items"] is not None
    assert "The doctor examines the run" not in page(browser, "mine")


def test_time_that_is_left_follows_from_the_steps_and_not_from_what_the_list_says(runs: Runs, browser: Browser) -> None:
    rows = [{**row, "time/step": 3.0} for row in METRICS]
    began = "2026-11-21T17:00:00+00:00"  # a service's list knows of no later moment while a run goes on
    config = 'model = "whet/tiny"\nmax_steps = 25\n[[env]]\nid = "reverse-text"\n'
    run = runs.training(metrics=rows, config=config, state="running", started=began, heartbeat=began, ended=None)
    lock = DirectoryLock(run)
    try:
        assert "<dt>left, about</dt><dd>1:00</dd>" in page(browser, "mine")
    finally:
        lock.release()
    assert "left, about" not in page(browser, "mine")


def test_held_out_reward_is_beside_the_reward_also_where_it_is_only_greedy(runs: Runs, browser: Browser) -> None:
    run = runs.training(metrics=METRICS)
    held_out(run, (0, 0.25))
    assert "<dd><span>0.250</span> <small>at step 0</small></dd>" in page(browser, "mine")
    held_out(run, (0, 0.25), (5, 0.75))
    rows = (run / "evals.jsonl").read_text().replace("temperature 1", "greedy").replace("during", "before", 1)
    (run / "evals.jsonl").write_text(rows)
    text = page(browser, "mine")
    assert '<dd><span class="up">0.750</span> <small>from 0.250</small></dd>' in text
    assert text.index("<dt>reward</dt>") < text.index("<dt>held-out reward</dt>") < text.index("<dt>entropy</dt>")


def test_cost_is_shown_where_there_are_prices(runs: Runs, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.training(metrics=METRICS)
    found = browser.library.run(None, browser.id("mine"))
    for cost, shown in ((0.0, []), (0.25, ["0.25"])):
        priced = replace(found, details={"cost": cost})
        monkeypatch.setattr(browser.library, "run", lambda viewer, id, priced=priced: priced)
        text = browser.http.get(f"/runs/{found.id}").text
        assert re.findall(r"<dt>cost</dt><dd>([^<]*)</dd>", text) == shown


def test_why_rollouts_fail_is_at_the_top(runs: Runs, browser: Browser) -> None:
    run = runs.training(metrics=METRICS, failures={"reverse-text": "EnvError: no such file <a> (env.py:12)"})
    held_out(run, (5, 0.75))
    row = json.loads((run / "evals.jsonl").read_text())
    (run / "evals.jsonl").write_text(json.dumps({**row, "error_examples": {"ModelError": "429 again"}}) + "\n")
    text = page(browser, "mine")
    assert text.index("EnvError: no such file &lt;a&gt; (env.py:12)") < text.index('<dl class="stats">')
    assert "ModelError: 429 again" in text
