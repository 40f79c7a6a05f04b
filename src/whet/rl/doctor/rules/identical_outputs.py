"""The attempts at a task are all the same text: a group is one sample, however many rollouts it has."""

from __future__ import annotations

import json
from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import Row, RunRecord, groups_of

NAME = "identical-outputs"
MOST = 0.5
"""Share of the unsolved groups whose rollouts are all the same text; short right answers are the same by right."""
SOLVED = 0.9
"""Mean reward from which a group is solved."""
FEWEST = 4
"""Unsolved groups below which nothing is said."""


def check(run: RunRecord) -> Iterator[Finding]:
    groups = [group for group in groups_of(run.rollouts) if len(group) > 1]
    unsolved = [group for group in groups if _mean(group) < SOLVED]
    same = [group for group in unsolved if len({_text(row) for row in group}) == 1]
    if len(unsolved) < FEWEST or len(same) < MOST * len(unsolved):
        return
    evidence = [
        f"in step {run.steps} all rollouts are the same in {len(same)} of {len(unsolved)} groups that are not solved",
        f"for example task {same[0][0].get('example_id')}, {len(same[0])} times: {_text(same[0][0])!r:.120}",
    ]
    yield Finding(NAME, "error", "the attempts at a task are all the same", evidence, list(_changes(run)))


def _changes(run: RunRecord) -> Iterator[Change]:
    temperature = float(run.setting("sampling.temperature", 1.0))
    warmer = 1.0 if temperature < 1 else temperature + 0.2
    yield run.change("sampling.temperature", warmer, "attempts then differ, and can be compared")
    if float(run.setting("sampling.top_p", 1.0)) < 1:
        yield run.change("sampling.top_p", 1.0, "less likely tokens may be drawn")
    if run.setting("sampling.top_k", 0):
        yield run.change("sampling.top_k", 0, "less likely tokens may be drawn")


def _mean(group: list[Row]) -> float:
    return sum(float(row.get("reward") or 0.0) for row in group) / len(group)


def _text(row: Row) -> str:
    completion = row.get("completion")
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], dict):
        return str(completion[0].get("content"))
    return completion if isinstance(completion, str) else json.dumps(completion, sort_keys=True)
