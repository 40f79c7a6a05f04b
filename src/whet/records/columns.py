"""A list of rollouts as a table, for the terminal and for pages: which columns there are, what each shows. Pure.

Text is as written, not escaped; styles are `good`, `middling`, `bad`, `dim` or "".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from whet.records.heads import Head, SortColumn, Variety
from whet.records.rollout_text import candidate_style, number, part_name, reward_style, seconds, signed, signed_style

Shown = tuple[str, str]
"""A text and the name of its style."""
COLUMNS: dict[str, Callable[[Head, float], Shown]] = {
    "#": lambda head, passed: (f"{head.number + 1:,}", "dim"),
    "step": lambda head, passed: (part_name(head), ""),
    "sampling": lambda head, passed: (head.sampling or "", ""),
    "environment": lambda head, passed: (head.environment, ""),
    "candidate": lambda head, passed: (head.candidate or "", candidate_style(head.candidate or "")),
    "task": lambda head, passed: ("" if head.example_id is None else str(head.example_id), ""),
    "nth": lambda head, passed: ("" if head.problem else str(head.place + 1), "dim"),
    "reward": lambda head, passed: (number(head.reward), reward_style(head.reward, passed)),
    "advantage": lambda head, passed: (signed(head.advantage), signed_style(head.advantage)),
    "question": lambda head, passed: (head.problem, "bad") if head.problem else (head.question, ""),
    "ended": lambda head, passed: ended(head),
    "turns": lambda head, passed: ("" if head.problem else str(head.turns), ""),
    "tokens": lambda head, passed: ("" if head.output_tokens is None else f"{head.output_tokens:,.0f}", ""),
    "time": lambda head, passed: (seconds(head.duration), ""),
}
"""By title: what a column shows of a rollout, given the reward from which one counts as passed."""
SORTED_BY: dict[str, SortColumn] = {
    "#": "file",
    "environment": "environment",
    "task": "example",
    "reward": "reward",
    "advantage": "advantage",
    "ended": "stop_condition",
    "turns": "turns",
    "tokens": "output_tokens",
    "time": "duration",
}
LARGEST_FIRST = ("reward", "advantage", "input_tokens", "output_tokens", "turns", "duration", "size")
"""Orders that begin with the largest value."""


def shown_columns(kind: str, variety: Variety) -> list[str]:
    """The titles for an evaluation, a run or a search, in order, without the columns that would say nothing."""
    says_something = {
        "step": kind == "training",
        "sampling": variety.samplings > 1,
        "environment": variety.environments > 1,
        "candidate": kind == "search",
        "advantage": kind == "training",
    }
    return [title for title in COLUMNS if says_something.get(title, True)]


def ended(head: Head) -> Shown:
    """How a rollout ended: its error, or its stop condition."""
    if head.error:
        return head.error, "bad"
    return head.stop_condition or "", "middling" if head.truncated else "dim"


def origin(head: Head) -> str:
    """Where in a run a rollout is from."""
    task = "" if head.example_id is None else f"task {head.example_id}"
    part = part_name(head, "step ") if head.part else ""
    candidate = f"candidate {head.candidate}" if head.candidate else ""
    return ", ".join(filter(None, [head.environment, task, part, head.sampling, candidate]))


def mean_reward(heads: Iterable[Head]) -> float | None:
    """Of those that have one."""
    rewards = [head.reward for head in heads if head.reward is not None]
    return math.fsum(rewards) / len(rewards) if rewards else None


def from_mean(head: Head, mean: float | None) -> Shown:
    """By how much a reward differs from the mean of its group."""
    away = None if head.reward is None or mean is None else head.reward - mean
    return ("", "") if away is None else (f"{away:+.3f}", signed_style(away))


def about(head: Head, passed: float) -> list[Shown]:
    """The reward, the advantage, and how it ended, in a line."""
    shown = [(" reward ", ""), COLUMNS["reward"](head, passed) if head.reward is not None else ("none", "dim")]
    shown += [("  advantage ", ""), COLUMNS["advantage"](head, passed)] if head.advantage is not None else []
    return [*shown, ("  ", ""), ended(head), ("  truncated" if head.truncated else "", "middling")]


def group_summary(heads: Sequence[Head]) -> str:
    """How many rollouts a group has, and the mean and the range of their rewards."""
    mean, rewards = mean_reward(heads), [head.reward for head in heads if head.reward is not None]
    spread = "" if mean is None else f", reward {mean:.3f} from {min(rewards):.3f} to {max(rewards):.3f}"
    return f"{len(heads)} rollouts{spread}"
