"""The reward stays near zero: answers that are cut off, that nobody can read, that are not credited, or tasks too hard.

The four look the same in a curve and have different cures, so rollouts of the newest step are asked which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whet.rl.doctor.changes import larger_groups
from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, Row, RunRecord, Series, share

NAME = "reward-flat-low"
LOW = 0.05
"""Mean reward below which an environment is too hard, as readiness has it: most groups of 8 are flat then."""
MOST = 0.5
"""Share of rollouts that are cut off or unread from which that explains a reward near zero."""
SEVERAL = 0.1
"""Share of unrewarded rollouts that say the expected answer from which the reward is to be doubted: chance is less."""


def check(run: RunRecord) -> Iterator[Finding]:
    for environment in run.environments:
        rewards = run.series(f"reward/{environment}/mean").last()
        if len(rewards) < MIN_STEPS or not 0 <= rewards.mean <= LOW or max(rewards.values) > 2 * LOW:
            continue
        half = len(rewards) // 2
        if rewards.last(half).mean - rewards.first(half).mean > LOW / 2:  # it has begun to rise
            continue
        rows = run.rollouts_of(environment)
        level = f"mean reward of {environment} {rewards.mean:.3f} in {rewards.span}, highest {max(rewards.values):.3f}"
        yield from _by_cause(run, environment, rewards, rows, level)


def _by_cause(run: RunRecord, environment: str, rewards: Series, rows: list[Row], level: str) -> Iterator[Finding]:
    flat = f"the reward of {environment} stays near zero"
    cut = _share(run, rows, "is_truncated", "rollouts/truncated_frac", rewards)
    unread = _share(run, rows, "parse_failed", "rollouts/unread_frac", rewards)
    unpaid = uncredited(rows)
    if cut is not None and cut >= MOST:
        tokens = int(run.setting("sampling.max_tokens", 512))
        yield Finding(
            NAME,
            "error",
            f"{flat}: answers are cut off",
            [level, f"{cut:.0%} of the rollouts reached max_tokens = {tokens}"],
            [run.change("sampling.max_tokens", 4 * tokens, "so that answers come to their end")],
        )
    elif unread is not None and unread >= MOST:
        yield Finding(
            NAME,
            "error",
            f"{flat}: the parser finds no answer in what the model writes",
            [level, f"in {unread:.0%} of the rollouts nothing was found to score", *_example(rows)],
            [
                Change(
                    "show the form of an answer in the prompt (with an example), or let the parser read what the model "
                    "writes; a reward for keeping to the form gives a first step to learn"
                )
            ],
        )
    elif len(unpaid) >= max(1, SEVERAL * len(rows)) and rows:
        yield Finding(
            NAME,
            "error",
            f"{flat} although the expected answer is given: the reward does not credit it",
            [
                level,
                f"{len(unpaid)} of {len(rows)} rollouts of step {run.steps} say the expected answer and got no reward",
                *_example(unpaid),
            ],
            [Change("mend the rubric: it compares something else than the answer that the task expects")],
        )
    else:
        yield Finding(
            NAME,
            "error",
            f"{flat}: the tasks are too hard for this model",
            [level, *([f"{len(rows)} rollouts of step {run.steps} were read and end by themselves"] if rows else [])],
            list(_easier(run, rewards)),
        )


def _share(run: RunRecord, rows: list[Row], field: str, metric: str, rewards: Series) -> float | None:
    """Of the environment's rollouts where there are some, else of all of the run's."""
    found = share(rows, field)
    whole = run.series(metric).last(len(rewards))
    return found if found is not None else whole.mean if len(whole) else None


def uncredited(rows: Sequence[Row]) -> list[Row]:
    """Rollouts without reward whose last words hold the expected answer, as a word of its own."""
    return [row for row in rows if not row.get("reward") and _says(_last_words(row), row.get("answer"))]


def _says(text: str, answer: Any) -> bool:
    wanted = " ".join(answer.split()).casefold() if isinstance(answer, str) else ""
    if len(wanted) < 2:  # a digit or a letter stands in most texts by chance
        return text.strip().casefold() == wanted != ""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", " ".join(text.split()).casefold()) is not None


def _last_words(row: Row) -> str:
    completion = row.get("completion")
    if isinstance(completion, str):
        return completion
    for message in reversed(completion or ()):
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _example(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    row = rows[0]
    wanted = f", expected {row['answer']!r:.80}" if row.get("answer") else ""
    return [f"for example task {row.get('example_id')}: {_last_words(row)!r:.120}{wanted}"]


def _easier(run: RunRecord, rewards: Series) -> Iterator[Change]:
    if max(rewards.values) > 0:
        if run.setting("algorithm.advantage") == "grpo":
            yield run.change("algorithm.advantage", "max_rl", "a rare success then counts by how rare it is")
        yield from larger_groups(run, "more attempts at a task, so that one of them succeeds")
    yield Change(
        "make the tasks easier ([env.args]), give partial credit, or begin from a model that solves a few of them"
    )
