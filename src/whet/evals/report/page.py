"""What the report of an evaluation shows, from its data: values of `evaluation.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from whet.display.histogram import Histogram, histogram
from whet.display.text import number, usage_text
from whet.evals.analysis.statistics import MeanInterval, Percentiles, spread
from whet.evals.analysis.summary import EvalSummary
from whet.evals.report.data import ReportData, TaskRewards
from whet.records.report import MOST_ROWS, ReportTable
from whet.system.terminal import duration
from whet.types import RolloutOutput
from whet.viewer.conversation import EXCERPT, conversation

TEMPLATE = "evaluation.html"
MOST_ERRORS = 5
"""Classes of errors at the top of the page."""
TONES = {"good": "ok", "easy": "warning", "hard": "warning", "too easy": "error", "too hard": "error"}


def title_of(data: ReportData) -> str:
    return f"{data.summary.environment} with {data.summary.model}"


def values(data: ReportData) -> dict[str, Any]:
    """What the template needs."""
    summary = data.summary
    return {
        "title": title_of(data),
        "facts": [
            summary.sampling,
            f"{summary.examples:,} tasks x {summary.rollouts_per_example} rollouts",
            *(f"{name} {value}" for name, value in summary.varied.items()),
            str(data.metadata.get("date") or "").replace("T", " "),
        ],
        "unfinished": f"It did not end: {summary.rollouts:,} of {data.planned:,} rollouts are here."
        if summary.rollouts < data.planned
        else "",
        "errors": [
            f"{kind}, {summary.error_kinds.get(kind, 0):,} of {summary.rollouts:,} rollouts: {text}"
            for kind, text in list(summary.error_examples.items())[:MOST_ERRORS]
        ],
        "stats": list(_stats(summary)),
        "readiness": summary.readiness,
        "tone": TONES.get(summary.readiness.verdict, ""),
        "histograms": list(_histograms(data)),
        "tables": [table for table in _tables(summary) if table.rows],
        "failures": ReportTable(
            "Failed rollouts",
            ("kind", "rollouts", "of all"),
            [
                (kind, f"{count:,}", f"{count / summary.rollouts:.1%}")
                for kind, count in list(summary.error_kinds.items())[:50]
            ],
            "Failed rollouts have no reward and are left out of every mean of rewards and metrics.",
        ),
        "samples": [
            ("Failed rollouts of each kind", [_sample(row, kind) for kind, row in data.failures.items()]),
            ("Best rollouts", [_sample(row) for row in data.best]),
            ("Worst rollouts", [_sample(row) for row in data.worst]),
            ("Rollouts at random", [_sample(row) for row in data.at_random]),
        ],
        "tasks": [_task(task, summary.pass_threshold) for task in sorted(data.tasks, key=_mean_or_less)[:MOST_ROWS]],
        "hidden_tasks": max(0, len(data.tasks) - MOST_ROWS),
        "settings": json.dumps(data.metadata, indent=2),
    }


def _stats(summary: EvalSummary) -> Iterator[tuple[str, str, str]]:
    """(what it is, the number, a note) of the headline numbers."""
    reward = summary.reward
    yield "mean reward", "-" if reward is None else number(reward.mean), _interval(reward)
    if summary.pass_at_k:
        k = max(summary.pass_at_k, key=int)
        yield f"pass@{k}", number(summary.pass_at_k[k]), f"of {k} attempts one passes"
        yield f"pass^{k}", number(summary.pass_all_k[k]), f"of {k} attempts all pass"
    yield "rollouts", f"{summary.rollouts:,}", f"{summary.errors:,} failed"
    if summary.truncated_frac:
        yield "cut off", f"{summary.truncated_frac:.1%}", "of the rollouts"
    if summary.parse_failed_frac:
        yield "not readable", f"{summary.parse_failed_frac:.1%}", "of the answers"
    if summary.output_tokens is not None:
        yield "tokens out", f"{summary.output_tokens:,.0f}", "a rollout, on average"
    if summary.cost is not None:
        yield "cost", f"${summary.cost:.4f}", "of all rollouts"
    if summary.judge_usage:
        yield "judges", usage_text(summary.judge_usage), "for all rollouts"
    yield "took", duration(summary.seconds), ""


def _interval(reward: MeanInterval | None) -> str:
    if reward is None:
        return "every rollout failed"
    return "too few tasks for an interval" if reward.interval is None else f"95 % interval {reward.interval}"


def _histograms(data: ReportData) -> Iterator[tuple[str, Histogram, str]]:
    """(title, bars, unit of their values) of what there is."""
    means = [sum(task.rewards) / len(task.rewards) for task in data.tasks if task.rewards]
    for title, values, unit in (
        ("Rewards of rollouts", data.rewards, ""),
        ("Mean rewards of tasks", means if data.summary.rollouts_per_example > 1 else (), ""),
        ("Seconds a rollout", data.seconds, " s"),
        ("Tokens out a rollout", data.output_tokens, ""),
    ):
        if bins := histogram(values):
            yield title, Histogram(bins), unit


def _tables(summary: EvalSummary) -> Iterator[ReportTable]:
    members = [
        (
            name,
            *((number(one.reward.mean), one.reward.interval or "-") if one.reward else ("-", "-")),
            f"{one.examples:,}",
            f"{one.errors:,}",
        )
        for name, one in summary.members.items()
    ]
    heads = ("environment", "reward", "95 % interval", "tasks", "failed rollouts")
    yield ReportTable("Environments of the group", heads, members)
    yield ReportTable("Metrics", ("metric", "mean"), [(name, number(mean)) for name, mean in summary.metrics.items()])
    yield ReportTable(
        "Passes",
        ("k", "pass@k", "pass^k"),
        [(k, number(value), number(summary.pass_all_k[k])) for k, value in summary.pass_at_k.items()],
        f"Passed: a reward of at least {summary.pass_threshold:g}. Over tasks without failed rollouts, unbiased.",
    )
    quantities: list[tuple[str, Percentiles | None, str]] = [
        ("seconds", summary.rollout_seconds, ",.2f"),
        ("tokens in", summary.input_token_percentiles, ",.0f"),
        ("tokens out", summary.output_token_percentiles, ",.0f"),
    ]
    yield ReportTable(
        "Time and tokens",
        ("a rollout", "half within", "90 % within", "99 % within"),
        [
            (name, *(format(value, form) for value in (found.p50, found.p90, found.p99)))
            for name, found, form in quantities
            if found is not None
        ],
    )


def _sample(row: RolloutOutput, kind: str = "") -> dict[str, Any]:
    """A rollout that unfolds below one line."""
    facts = [kind or f"reward {number(row.get('reward'))}"]
    facts += [f"{name} {number(value)}" for name, value in sorted(row["metrics"].items()) if isinstance(value, float)]
    if row.get("stop_condition"):
        facts.append(str(row["stop_condition"]))
    if row.get("is_truncated"):
        facts.append("cut off")
    return {
        "name": f"task {row['example_id']}",
        "facts": facts,
        "error": str((row.get("error") or {}).get("error_chain_repr") or ""),
        "messages": conversation(row, shown=EXCERPT),
        "answer": row.get("answer"),
    }


def _mean_or_less(task: TaskRewards) -> float:
    return sum(task.rewards) / len(task.rewards) if task.rewards else float("-inf")


def _task(task: TaskRewards, threshold: float) -> tuple[Any, str, list[tuple[float | None, int]]]:
    """(task, question, numbers with their decimals)."""
    rewards = task.rewards
    known: list[float | None] = (
        [_mean_or_less(task), spread(rewards), min(rewards), max(rewards)] if rewards else [None] * 4
    )
    counts = len(rewards) + task.errors, sum(reward >= threshold for reward in rewards), task.errors
    return (
        task.example_id,
        task.question,
        [(counts[0], 0), *((value, 3) for value in known), (counts[1], 0), (counts[2], 0)],
    )
