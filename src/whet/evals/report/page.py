"""The report of an evaluation as one HTML page, from its data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from whet.display.conversation import cut, expected_html, messages_html
from whet.display.document import SORT_SCRIPT, document
from whet.display.histogram import histogram, svg_histogram
from whet.display.html import Html, join, tag
from whet.display.text import number, usage_text
from whet.evals.analysis.readiness import Readiness
from whet.evals.analysis.statistics import MeanInterval, Percentiles, spread
from whet.evals.analysis.summary import EvalSummary, MemberSummary
from whet.evals.report.data import ReportData, TaskRewards
from whet.system.terminal import duration
from whet.types import RolloutOutput

MOST_TASKS = 1000
"""Rows of the table of tasks."""
VERDICT_COLOURS = {"good": "c2", "easy": "c4", "hard": "c4", "too easy": "c1", "too hard": "c1", "unknown": "c1"}
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def page(data: ReportData) -> str:
    """The whole document."""
    body = [
        _head(data),
        _readiness(data.summary.readiness),
        _distributions(data),
        tag("div", *_scores(data.summary), *_effort(data.summary), class_="tables"),
        _failures(data),
        _samples("Best rollouts", data.best),
        _samples("Worst rollouts", data.worst),
        _samples("Rollouts at random", data.at_random),
        _tasks(data),
        tag("h2", "Settings"),
        tag("details", tag("summary", "metadata.json"), tag("pre", cut(json.dumps(data.metadata, indent=2), 20_000))),
    ]
    title = f"{data.summary.environment} with {data.summary.model}"
    return document(title, body, style=STYLE, script=SORT_SCRIPT)


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
    tiles = [tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in _tiles(summary)]
    return join(
        tag("h1", f"{summary.environment} with {summary.model}"),
        tag("p", ", ".join(fact for fact in facts if fact), class_="sub"),
        tag("p", note, class_="error") if note else join(),
        tag("div", *tiles, class_="tiles"),
    )


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
    if reward.low is None or reward.high is None:
        return "mean reward (too few tasks for an interval)"
    return f"mean reward, 95 % interval {number(reward.low)} to {number(reward.high)}"


def _readiness(readiness: Readiness) -> Html:
    text = "" if readiness.score is None else f": {readiness.measure} {readiness.score:.0%}"
    if readiness.group_std is not None and readiness.zero_variance_frac is not None:
        text += (
            f"; rewards of one task vary by {readiness.group_std:.2f}, "
            f"{readiness.zero_variance_frac:.0%} of the groups have no variance"
        )
    advice = tag("ul", *(tag("li", line) for line in readiness.advice)) if readiness.advice else join()
    verdict = tag("b", f"Readiness for training: {readiness.verdict}")
    return tag("div", verdict, text, advice, class_=f"verdict {VERDICT_COLOURS[readiness.verdict]}")


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
    return join(tag("h2", "Distributions"), tag("div", *figures, class_="charts")) if figures else join()


def _scores(summary: EvalSummary) -> Iterator[Html]:
    if summary.members:
        members = [(name, _member_cells(member)) for name, member in summary.members.items()]
        heads = ("environment", "reward", "95 % interval", "tasks", "failed rollouts")
        yield tag("div", tag("h2", "Environments of the group"), _table(heads, members))
    if summary.metrics:
        rows = [(name, [number(value)]) for name, value in summary.metrics.items()]
        yield tag("div", tag("h2", "Metrics"), _table(("metric", "mean"), rows))
    if summary.pass_at_k:
        rows = [(k, [number(value), number(summary.pass_all_k[k])]) for k, value in summary.pass_at_k.items()]
        note = f"Passed: a reward of at least {summary.pass_threshold:g}. Over tasks without failed rollouts, unbiased."
        table = _table(("k", "pass@k", "pass^k"), rows)
        yield tag("div", tag("h2", "Passes"), table, tag("p", note, class_="note"))


def _member_cells(member: MemberSummary) -> list[str]:
    reward = member.reward
    interval = "-" if reward is None or reward.low is None else f"{number(reward.low)} to {number(reward.high)}"
    return ["-" if reward is None else number(reward.mean), interval, f"{member.examples:,}", f"{member.errors:,}"]


def _effort(summary: EvalSummary) -> Iterator[Html]:
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
    if rows:
        heads = ("a rollout", "half within", "90 % within", "99 % within")
        yield tag("div", tag("h2", "Time and tokens"), _table(heads, rows))


def _table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Html:
    head = tag("thead", tag("tr", *(tag("th", name) for name in heads)))
    body = tag("tbody", *(tag("tr", tag("td", name), *(tag("td", cell) for cell in cells)) for name, cells in rows))
    return tag("div", tag("table", head, body), class_="scroll")


def _failures(data: ReportData) -> Html:
    summary = data.summary
    if not summary.errors:
        return join()
    shares = [(kind, [f"{count:,}", f"{count / summary.rollouts:.1%}"]) for kind, count in summary.error_kinds.items()]
    note = "Failed rollouts have no reward and are left out of every mean of rewards and metrics."
    return join(
        tag("h2", "Failed rollouts"),
        _table(("kind", "rollouts", "of all"), shares[:50]),
        tag("p", note, class_="note"),
        *(_sample(row, kind) for kind, row in data.failures.items()),
    )


def _samples(title: str, rows: Sequence[RolloutOutput]) -> Html:
    shown = [_sample(row, shown=place == 0) for place, row in enumerate(rows)]
    return join(tag("h2", title), *shown) if rows else join()


def _sample(row: RolloutOutput, kind: str | None = None, shown: bool = False) -> Html:
    error = row.get("error") or {}
    facts = [kind or f"reward {number(row.get('reward'))}"]
    facts += [f"{name} {number(value)}" for name, value in sorted(row["metrics"].items()) if isinstance(value, float)]
    if row.get("stop_condition"):
        facts.append(str(row["stop_condition"]))
    if row.get("is_truncated"):
        facts.append("cut off")
    text = error.get("error_chain_repr")
    return tag(
        "details",
        tag("summary", tag("b", f"task {row['example_id']}"), tag("span", f" {', '.join(facts)}")),
        tag("p", cut(str(text), 2000), class_="error") if text else join(),
        messages_html(row.get("prompt")),
        messages_html(row.get("completion")),
        expected_html(row),
        class_="sample",
        open="" if shown else None,
    )


def _tasks(data: ReportData) -> Html:
    tasks = sorted(data.tasks, key=_mean_or_less)[:MOST_TASKS]
    heads = ("task", "question", "rollouts", "mean", "spread", "lowest", "highest", "passed", "failed")
    head = tag("thead", tag("tr", *(tag("th", tag("button", name, type="button"), scope="col") for name in heads)))
    body = tag("tbody", *(_task_row(task, data.summary.pass_threshold) for task in tasks))
    hidden = len(data.tasks) - len(tasks)
    note = f"{hidden:,} tasks with higher rewards are left out here; whet eval export has them all. " if hidden else ""
    return join(
        tag("h2", "Tasks"),
        tag("p", f"{note}Lowest mean reward first; a column's head sorts by it.", class_="note"),
        tag("div", tag("table", head, body, class_="tasks"), class_="scroll"),
    )


def _mean_or_less(task: TaskRewards) -> float:
    return sum(task.rewards) / len(task.rewards) if task.rewards else float("-inf")


def _task_row(task: TaskRewards, threshold: float) -> Html:
    rewards = task.rewards
    passed = sum(reward >= threshold for reward in rewards)
    known: list[float | None] = (
        [_mean_or_less(task), spread(rewards), min(rewards), max(rewards)] if rewards else [None] * 4
    )
    return tag(
        "tr",
        tag("td", str(task.example_id)),
        tag("td", task.question),
        _cell(len(rewards) + task.errors, 0),
        *(_cell(value, 3) for value in known),
        _cell(passed, 0),
        _cell(task.errors, 0),
    )


def _cell(value: float | None, digits: int) -> Html:
    """A number, with all its digits for sorting."""
    return tag("td", number(value, digits), data_value="" if value is None else f"{value:.9g}")
