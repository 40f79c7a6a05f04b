"""report.html of an evaluation, made from its directory alone."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import RunError
from whet.evals.report import RANDOM, read_report, write_report
from whet.evals.stored.export import export
from whet.evals.stored.stored import open_stored
from whet.records.directory import MOST_ROWS

Row = Callable[..., dict[str, Any]]
Stored = Callable[..., Path]
ReadPage = Callable[[Path], Any]


@pytest.fixture
def rows(row: Row) -> list[dict[str, Any]]:
    """Six tasks of two rollouts: rewards of 0, 0.5 and 1, two failures of one kind and one of another."""
    outcomes = [(1.0, 1.0), (1.0, 0.0), (0.5, 0.0), (0.0, "ModelError"), ("ModelError", "ToolError"), (0.0, 0.0)]
    return [row(task, outcome, place) for task, pair in enumerate(outcomes) for place, outcome in enumerate(pair)]


def test_the_page_needs_nothing_but_itself(stored: Stored, rows: list[dict[str, Any]], read_page: ReadPage) -> None:
    directory = stored(rows)
    path = write_report(directory / "results.jsonl")
    assert path == directory / "report.html"
    read_page(path).check()


def test_whatever_models_and_environments_write_stays_text(
    stored: Stored, row: Row, read_page: ReadPage, hostile: tuple[str, str]
) -> None:
    said, shown = hostile
    message = {"role": "assistant", "content": said, "reasoning_content": said}
    message["tool_calls"] = [json.dumps({"id": "1", "name": said, "arguments": json.dumps({"a": said})})]
    answers = [message, {"role": "tool", "tool_call_id": "1", "content": said}, {"role": said, "content": said}]
    first = row(said, 1.0, completion=answers, answer=said, metrics={said: 1.0}, stop_condition=said)
    first["prompt"] = [{"role": "user", "content": said}]
    failed = row(1, "Error")
    failed["error"] = {"error": said, "error_chain_repr": said}
    page = read_page(write_report(stored([first, failed], env_id=said, model=said)))
    page.check()
    assert page.text.count(shown) >= 12


def test_it_says_what_the_summary_says(stored: Stored, rows: list[dict[str, Any]], read_page: ReadPage) -> None:
    directory = stored(rows)
    text = read_page(write_report(directory)).text
    summary = open_stored(directory).summary()
    assert summary.reward is not None
    for said in (
        f"{summary.reward.mean:.3f}",
        f"95 % interval {summary.reward.low:.3f} to {summary.reward.high:.3f}",
        f"Readiness for training: {summary.readiness.verdict}",
        *summary.readiness.advice,
        f"exact_match {summary.metrics['exact_match']:.3f}",
        f"1 {summary.pass_at_k['1']:.3f} {summary.pass_all_k['1']:.3f}",
        f"2 {summary.pass_at_k['2']:.3f} {summary.pass_all_k['2']:.3f}",
        "tokens out 5 5 5",
        "ModelError 2 16.7%",
        "ToolError 1 8.3%",
    ):
        assert said in text


def test_rewards_are_drawn_as_bars_that_say_their_count(
    stored: Stored, rows: list[dict[str, Any]], read_page: ReadPage
) -> None:
    page = read_page(write_report(stored(rows)))
    charts = {svg["aria-label"] for svg in page.named("svg")}
    assert {"Rewards of rollouts", "Mean rewards of tasks", "Seconds a rollout", "Tokens out a rollout"} == charts
    for bar in ("0: 5", "0.5: 1", "1: 3"):
        assert bar in page.texts


def test_every_task_has_a_line_that_can_be_sorted(
    stored: Stored, rows: list[dict[str, Any]], read_page: ReadPage
) -> None:
    page = read_page(write_report(stored(rows)))
    assert len(page.named("button")) == 9
    # Lowest mean first: the task that only failed, then the others, each with its numbers for sorting.
    cells = [attributes["data-value"] for tag, attributes in page.tags if tag == "td" and "data-value" in attributes]
    lines = [cells[start : start + 7] for start in range(0, len(cells), 7)]
    assert lines[0] == ["2", "", "", "", "", "0", "2"]
    assert lines[-1] == ["2", "1", "0", "1", "1", "2", "0"]
    assert [line[1] for line in lines[1:]] == sorted(line[1] for line in lines[1:])
    assert "What is 3 + 2?" in page.text


def test_best_worst_random_and_failed_rollouts_are_chosen_and_the_same_again(
    stored: Stored, rows: list[dict[str, Any]]
) -> None:
    directory = stored(rows)
    data, again = read_report(directory), read_report(directory)
    assert [(row["example_id"], row["reward"]) for row in data.best] == [(0, 1.0), (1, 1.0), (2, 0.5)]
    assert [(row["example_id"], row["reward"]) for row in data.worst] == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert {kind: row["example_id"] for kind, row in data.failures.items()} == {"ModelError": 3, "ToolError": 4}
    assert len(data.at_random) == RANDOM
    assert data.at_random == again.at_random


def test_reasoning_tool_calls_and_the_expected_answer_are_shown(stored: Stored, row: Row, read_page: ReadPage) -> None:
    call = json.dumps({"id": "1", "name": "add", "arguments": '{"a": 1}'})
    said = [
        {"role": "assistant", "content": "", "reasoning_content": "I should add.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    text = read_page(write_report(stored([row(0, 1.0, completion=said)]))).text
    for part in ("I should add. calls add a: 1", "tool add 3 assistant It is 3. expected 4"):
        assert part in text


def test_an_evaluation_that_did_not_end_is_reported_as_far_as_it_came_and_each_attempt_once(
    stored: Stored, row: Row, read_page: ReadPage
) -> None:
    rows = [row(0, "ModelError", 0), row(1, 0.0, 0), row(0, 1.0, 0)]  # the first was run again
    directory = stored(rows, state="interrupted", num_examples=4)
    with (directory / "results.jsonl").open("a") as file:
        file.write('{"example_id": 2, "torn')
    text = read_page(write_report(directory)).text
    assert "It did not end: 2 of 8 rollouts are here." in text
    assert "rollouts, 0 failed 2" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('["no", "object"]', "line 2: expected an object"),
        ("nothing", "line 2: not JSON"),
        ('{"reward": 1.0}', "line 2: not a rollout of an evaluation: it has no example_id"),
        ('{"example_id": [1], "reward": 1.0}', "line 2: not a rollout of an evaluation"),
        ('{"example_id": 1, "reward": null}', "line 2: the rollout has neither an error nor a reward"),
        ('{"example_id": 1, "reward": 1.0, "metrics": []}', r"line 2: metrics should be an object, not \[\]"),
        (
            '{"example_id": 1, "reward": 1.0, "metrics": {"m": "high"}}',
            "line 2: 'm' of metrics is 'high', not a number",
        ),
        ('{"example_id": 1, "reward": 1.0, "timing": {"generation": 3}}', "line 2: generation should be an object"),
    ],
)
def test_a_line_that_is_no_rollout_is_named(stored: Stored, row: Row, line: str, message: str) -> None:
    directory = stored([row(0, 1.0)])
    with (directory / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=message):
        write_report(directory)


def test_a_folder_that_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no results\.jsonl here"):
        write_report(tmp_path)


def test_rows_of_other_writers_need_no_more_than_a_task_and_a_reward(stored: Stored, read_page: ReadPage) -> None:
    text = read_page(
        write_report(stored([{"example_id": "a", "reward": 2.5}, {"example_id": "b", "error": "Bad"}]))
    ).text
    assert "2.500" in text
    assert "Bad 1 50.0%" in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("role", "content", "tool_calls", "reasoning_content"), JSON)
)
ROW = st.fixed_dictionaries(
    {"example_id": st.integers() | st.text(max_size=3), "reward": st.floats(allow_nan=False) | st.integers(0, 1)},
    optional={
        **dict.fromkeys(("prompt", "completion"), JSON | st.lists(MESSAGE, max_size=3)),
        **dict.fromkeys(("error", "metrics", "token_usage", "timing", "answer", "info", "stop_condition"), JSON),
        **dict.fromkeys(("is_truncated", "is_completed", "rollout", "tool_defs", "parse_failed"), JSON),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=4))
def test_whatever_a_file_holds_there_is_a_page_and_a_table_or_one_clear_message(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    for write in (write_report, lambda path: export(path, "csv", overwrite=True)):
        with contextlib.suppress(RunError):
            write(tmp_path)


def test_a_large_evaluation_takes_little_memory_and_gives_a_small_page(stored: Stored, row: Row) -> None:
    said = "word " * 800
    tasks = MOST_ROWS + 100
    directory = stored(row(task, task % 7 / 7, place, said) for task in range(tasks) for place in range(2))
    size = (directory / "results.jsonl").stat().st_size
    tracemalloc.start()
    path = write_report(directory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 9e6
    assert peak < 5e6
    assert path.stat().st_size < 1e6
    assert "100 tasks with higher rewards are left out" in path.read_text()
