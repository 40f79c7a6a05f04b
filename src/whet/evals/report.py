"""`report.html`: an evaluation on one page, made from its directory alone in one pass over its rows.

Which rollouts are shown is chosen here: the best, the worst, some at random (with a fixed seed, so that the same
evaluation gives the same report) and the first of each kind of failure.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.display.chart import HistogramBars, histogram
from whet.display.page.rendering import document
from whet.evals.analysis.statistics import spread
from whet.evals.analysis.summary import EvalSummary, SummaryBuilder
from whet.evals.stored.stored import find_results, stream_rows
from whet.records.directory import MOST_ROWS, load_metadata, write_page
from whet.records.entries import question_of
from whet.records.rollout_text import EXCERPT, conversation
from whet.types import RolloutOutput

BEST, RANDOM = 3, 5
"""Rollouts shown of the best, of the worst, and at random."""
KINDS = 10
"""Kinds of failure that are shown with an example."""
QUESTION = 160
"""Characters of a task's question that are kept."""


class TaskRewards:
    """One task and the rewards of its rollouts."""

    __slots__ = ("errors", "example_id", "question", "rewards")

    def __init__(self, example_id: Any, question: str, rewards: array[float]) -> None:
        self.example_id, self.question, self.rewards = example_id, question, rewards
        self.errors = 0


@dataclass(slots=True)
class ReportData:
    """An evaluation, read from its directory."""

    metadata: dict[str, Any]
    summary: EvalSummary
    tasks: list[TaskRewards]
    seconds: array[float]  # of rollouts
    output_tokens: array[float]
    best: list[RolloutOutput]
    worst: list[RolloutOutput]
    at_random: list[RolloutOutput]
    failures: dict[str, RolloutOutput]  # by kind

    @property
    def rewards(self) -> list[float]:
        """Of every rollout that did not fail."""
        return [reward for task in self.tasks for reward in task.rewards]

    @property
    def planned(self) -> int:
        """Planned rollouts; those that are there where the plan is unknown."""
        examples = self.metadata.get("num_examples")
        per_example = self.metadata.get("rollouts_per_example") or 1
        return int(examples) * int(per_example) if examples else self.summary.rollouts


def read_report(directory: Path) -> ReportData:
    """Everything the page shows. Raises `RunError` for a row that cannot be read."""
    return collect(load_metadata(directory) or {}, stream_rows(directory), directory)


def collect(metadata: dict[str, Any], rows: Iterable[RolloutOutput], directory: Path | None = None) -> ReportData:
    """The report's data of `rows`, in any order."""
    builder = SummaryBuilder.of(metadata)
    tasks: dict[Any, TaskRewards] = {}
    shown = _Shown()
    for row in rows:
        builder.add(row)
        shown.offer(row)
        task = tasks.get(row["example_id"])
        if task is None:
            example = row["example_id"]
            task = tasks[example] = TaskRewards(example, question_of(row, QUESTION), builder.rewards[example])
        task.errors += row.get("error") is not None
    return ReportData(
        metadata=metadata,
        summary=builder.summary(seconds=float(metadata.get("time") or 0.0), results=directory),
        tasks=list(tasks.values()),
        seconds=builder.numbers["seconds"],
        output_tokens=builder.numbers["output_tokens"],
        best=shown.best,
        worst=shown.worst_that_are_not_best(),
        at_random=shown.at_random,
        failures=shown.failures,
    )


@dataclass(slots=True)
class _Shown:
    """The rollouts that will be shown, among those seen so far."""

    best: list[RolloutOutput] = field(default_factory=list)
    worst: list[RolloutOutput] = field(default_factory=list)
    at_random: list[RolloutOutput] = field(default_factory=list)
    failures: dict[str, RolloutOutput] = field(default_factory=dict)
    _scored: int = 0
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    def offer(self, row: RolloutOutput) -> None:
        error = row.get("error")
        if error is not None:
            kind = str(error.get("error"))
            if len(self.failures) < KINDS:
                self.failures.setdefault(kind, row)
            return
        _keep_best(self.best, row, lambda one: -float(one["reward"]))
        _keep_best(self.worst, row, lambda one: float(one["reward"]))
        self._scored += 1
        if len(self.at_random) < RANDOM:  # reservoir sampling: every row has the same chance
            self.at_random.append(row)
        elif (index := self._rng.randrange(self._scored)) < RANDOM:
            self.at_random[index] = row

    def worst_that_are_not_best(self) -> list[RolloutOutput]:
        return [row for row in self.worst if not any(row is other for other in self.best)]


def _keep_best(kept: list[RolloutOutput], row: RolloutOutput, key: Callable[[RolloutOutput], float]) -> None:
    """Put `row` among the `BEST` with the lowest keys, one of a task, the earlier one first where keys are equal."""
    value = key(row)
    if len(kept) == BEST and value >= key(kept[-1]):
        return
    same = next((index for index, one in enumerate(kept) if one["example_id"] == row["example_id"]), None)
    if same is not None:
        if value >= key(kept[same]):
            return
        del kept[same]
    kept.append(row)
    kept.sort(key=key)  # stable
    del kept[BEST:]


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


def write_report(directory: Path) -> Path:
    """Write `report.html` into the evaluation's directory and return its path.

    However large the evaluation, memory stays small and the page a few megabytes: rows are read one at a time, and a
    few are shown. An evaluation that has not ended is reported as far as it came. Raises `RunError` where there is
    none, and for a row that cannot be read.
    """
    directory = find_results(directory)
    data = read_report(directory)
    return write_page(directory, document(TEMPLATE, title_of(data), values(data)))
