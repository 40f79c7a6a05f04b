"""What the report of an evaluation shows, from its data: values of `evaluation.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from whet.display.chart import HistogramBars, histogram
from whet.evals.analysis.statistics import spread
from whet.evals.report.data import ReportData, TaskRewards
from whet.records.directory import MOST_ROWS
from whet.records.rollout_text import EXCERPT, conversation

TEMPLATE = "evaluation.html"
TONES = {"good": "ok", "easy": "warning", "hard": "warning", "too easy": "error", "too hard": "error"}


def title_of(data: ReportData) -> str:
    return f"{data.summary.environment} with {data.summary.model}"


def values(data: ReportData) -> dict[str, Any]:
    """What the template needs."""
    return {
        "title": title_of(data),
        "data": data,
        "summary": data.summary,
        "tone": TONES.get(data.summary.readiness.verdict, ""),
        "histograms": list(_histograms(data)),
        "tasks": sorted(data.tasks, key=_mean_or_less)[:MOST_ROWS],
        "settings": json.dumps(data.metadata, indent=2),
        "messages_of": lambda row: conversation(row, shown=EXCERPT),
        "spread": spread,
    }


def _histograms(data: ReportData) -> Iterator[tuple[str, HistogramBars, str]]:
    """(title, bars, unit of their values) of what there is."""
    means = [sum(task.rewards) / len(task.rewards) for task in data.tasks if task.rewards]
    for title, values, unit in (
        ("Rewards of rollouts", data.rewards, ""),
        ("Mean rewards of tasks", means if data.summary.rollouts_per_example > 1 else (), ""),
        ("Seconds a rollout", data.seconds, " s"),
        ("Tokens out a rollout", data.output_tokens, ""),
    ):
        if bins := histogram(values):
            yield title, HistogramBars(bins), unit


def _mean_or_less(task: TaskRewards) -> float:
    return sum(task.rewards) / len(task.rewards) if task.rewards else float("-inf")
