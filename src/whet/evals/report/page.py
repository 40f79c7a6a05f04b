"""The report of an evaluation as one HTML page, from its data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from whet.display.conversation import cut, expected_html, messages_html
from whet.display.histogram import histogram, svg_histogram
from whet.display.html import SORT_SCRIPT, Html, document, join, tag
from whet.display.text import number, usage_text
from whet.evals.analysis.readiness import Readiness
from whet.evals.analysis.statistics import MeanInterval, Percentiles, spread
from whet.evals.analysis.summary import EvalSummary, MemberSummary
from whet.evals.report.data import ReportData, TaskRewards
from whet.runs.report import (
    MOST_ROWS,
    error,
    head,
    number_cell,
    sample,
    section,
    settings,
    small,
    sortable_table,
    table,
    verdict,
)
from whet.system.terminal import duration
from whet.types import RolloutOutput

MOST_ERRORS = 5
"""Classes of errors at the top of the page."""
VERDICT_COLOURS = {"good": "c2", "easy": "c4", "hard": "c4", "too easy": "c1", "too hard": "c1", "unknown": "c1"}


def page(data: ReportData) -> str:
    """The whole document."""
    return document(_title(data.summary), sections(data), script=SORT_SCRIPT)


def sections(data: ReportData) -> list[Html]:
    """What the document shows, for a page of another program too."""
    return [
        _head(data),
        _readiness(data.summary.readiness),
        _distributions(data),
        tag("div", *(tag("div", one) for one in _tables(data.summary) if one), class_="tables"),
        _failures(data),
        _samples("Best rollouts", data.best),
        _samples("Worst rollouts", data.worst),
        _samples("Rollouts at random", data.at_random),
        _tasks(data),
        settings("Settings", "metadata.json", json.dumps(data.metadata, indent=2)),
    ]


def _title(summary: EvalSummary) -> str:
    return f"{summary.environment} with {summary.model}"


def _head(data: ReportData) -> Html:
    summary, metadata = data.summary, data.metadata
    facts = [
        summary.sampling,
        f"{summary.examples:,} tasks x {summary.rollouts_per_example} rollouts",
        *(f"{name} {value}" for name, value in summary.varied.items()),
        str(metadata.get("date") or "").replace("T", " "),
    ]
    unfinished = summary.rollouts < data.planned
    note = f"It did not end: {summary.rollouts:,} of {data.planned:,} rollouts are here." if unfinished else ""
    failed = [
        error(f"{kind}, {summary.error_kinds.get(kind, 0):,} of {summary.rollouts:,} rollouts: {text}")
        for kind, text in list(summary.error_examples.items())[:MOST_ERRORS]
    ]
    return head(_title(summary), facts, _tiles(summary), join(error(note), *failed))


def _tiles(summary: EvalSummary) -> list[tuple[str, str]]:
    reward = summary.reward
    tiles = [(_interval(reward), "-" if reward is None else number(reward.mean))]
    if summary.pass_at_k:
        k = max(summary.pass_at_k, key=int)
        tiles.append((f"pass@{k}: of {k} attempts one passes", number(summary.pass_at_k[k])))
        tiles.append((f"pass^{k}: of {k} attempts all pass", number(summary.pass_all_k[k])))
    tiles.append((f"rollouts, {summary.errors:,} of them failed", f"{summary.rollouts:,}"))
    if summary.truncated_frac:
        tiles.append(("of the rollouts were cut off", f"{summary.truncated_frac:.1%}"))
    if summary.parse_failed_frac:
        tiles.append(("of the answers could not be read", f"{summary.parse_failed_frac:.1%}"))
    if summary.output_tokens is not None:
        tiles.append(("tokens out a rollout, on average", f"{summary.output_tokens:,.0f}"))
    if summary.cost is not None:
        tiles.append(("for all rollouts", f"${summary.cost:.4f}"))
    if summary.judge_usage:
        tiles.append(("for the judges of all rollouts", usage_text(summary.judge_usage)))
    tiles.append(("in all", duration(summary.seconds)))
    return tiles


def _interval(reward: MeanInterval | None) -> str:
    if reward is None:
        return "reward: every rollout failed"
    if reward.interval is None:
        return "mean reward (too few tasks for an interval)"
    return f"mean reward, 95 % interval {reward.interval}"


def _readiness(readiness: Readiness) -> Html:
    text = f": {readiness.reasons}" if readiness.reasons else ""
    title = f"Readiness for training: {readiness.verdict}"
    return verdict(title, text, readiness.advice, VERDICT_COLOURS[readiness.verdict])


def _distributions(data: ReportData) -> Html:
    means = [sum(task.rewards) / len(task.rewards) for task in data.tasks if task.rewards]
    charts = [
        ("Rewards of rollouts", data.rewards, ""),
        ("Mean rewards of tasks", means if data.summary.rollouts_per_example > 1 else (), ""),
        ("Seconds a rollout", data.seconds, " s"),
        ("Tokens out a rollout", data.output_tokens, ""),
    ]
    figures = [
        tag("div", tag("h3", title), svg_histogram(title, bins, 480, 200, unit))
        for title, values, unit in charts
        if (bins := histogram(values))
    ]
    return section("Distributions", tag("div", *figures, class_="charts") if figures else join())


def _tables(summary: EvalSummary) -> Iterator[Html]:
    members = [(name, _member_cells(member)) for name, member in summary.members.items()]
    heads = ("environment", "reward", "95 % interval", "tasks", "failed rollouts")
    yield section("Environments of the group", table(heads, members))
    metrics = [(name, [number(value)]) for name, value in summary.metrics.items()]
    yield section("Metrics", table(("metric", "mean"), metrics))
    passes = [(k, [number(value), number(summary.pass_all_k[k])]) for k, value in summary.pass_at_k.items()]
    note = f"Passed: a reward of at least {summary.pass_threshold:g}. Over tasks without failed rollouts, unbiased."
    yield section("Passes", table(("k", "pass@k", "pass^k"), passes), small(note if passes else ""))
    yield _effort(summary)


def _member_cells(member: MemberSummary) -> list[str]:
    reward = member.reward
    mean, interval = (number(reward.mean), reward.interval or "-") if reward else ("-", "-")
    return [mean, interval, f"{member.examples:,}", f"{member.errors:,}"]


def _effort(summary: EvalSummary) -> Html:
    quantities: list[tuple[str, Percentiles | None, str]] = [
        ("seconds", summary.rollout_seconds, ",.2f"),
        ("tokens in", summary.input_token_percentiles, ",.0f"),
        ("tokens out", summary.output_token_percentiles, ",.0f"),
    ]
    rows = [
        (name, [format(value, form) for value in (found.p50, found.p90, found.p99)])
        for name, found, form in quantities
        if found is not None
    ]
    heads = ("a rollout", "half within", "90 % within", "99 % within")
    return section("Time and tokens", table(heads, rows))


def _failures(data: ReportData) -> Html:
    summary = data.summary
    shares = [(kind, [f"{count:,}", f"{count / summary.rollouts:.1%}"]) for kind, count in summary.error_kinds.items()]
    if not shares:
        return join()
    note = "Failed rollouts have no reward and are left out of every mean of rewards and metrics."
    return section(
        "Failed rollouts",
        table(("kind", "rollouts", "of all"), shares[:50]),
        small(note),
        *(_sample(row, kind) for kind, row in data.failures.items()),
    )


def _samples(title: str, rows: Sequence[RolloutOutput]) -> Html:
    return section(title, *(_sample(row, opened=index == 0) for index, row in enumerate(rows)))


def _sample(row: RolloutOutput, kind: str | None = None, opened: bool = False) -> Html:
    facts = [kind or f"reward {number(row.get('reward'))}"]
    facts += [f"{name} {number(value)}" for name, value in sorted(row["metrics"].items()) if isinstance(value, float)]
    if row.get("stop_condition"):
        facts.append(str(row["stop_condition"]))
    if row.get("is_truncated"):
        facts.append("cut off")
    failure = (row.get("error") or {}).get("error_chain_repr")
    return sample(
        f"task {row['example_id']}",
        f" {', '.join(facts)}",
        error(cut(str(failure), 2000) if failure else ""),
        messages_html(row.get("prompt")),
        messages_html(row.get("completion")),
        expected_html(row),
        opened=opened,
    )


def _tasks(data: ReportData) -> Html:
    tasks = sorted(data.tasks, key=_mean_or_less)[:MOST_ROWS]
    heads = ("task", "question", "rollouts", "mean", "spread", "lowest", "highest", "passed", "failed")
    hidden = len(data.tasks) - len(tasks)
    note = f"{hidden:,} tasks with higher rewards are left out here; whet eval export has them all. " if hidden else ""
    return section(
        "Tasks",
        sortable_table(heads, (_task_cells(task, data.summary.pass_threshold) for task in tasks)),
        note=f"{note}Lowest mean reward first; a column's head sorts by it.",
    )


def _mean_or_less(task: TaskRewards) -> float:
    return sum(task.rewards) / len(task.rewards) if task.rewards else float("-inf")


def _task_cells(task: TaskRewards, threshold: float) -> list[Html]:
    rewards = task.rewards
    passed = sum(reward >= threshold for reward in rewards)
    known: list[float | None] = (
        [_mean_or_less(task), spread(rewards), min(rewards), max(rewards)] if rewards else [None] * 4
    )
    return [
        tag("td", str(task.example_id)),
        tag("td", task.question),
        number_cell(len(rewards) + task.errors, 0),
        *map(number_cell, known),
        number_cell(passed, 0),
        number_cell(task.errors, 0),
    ]
