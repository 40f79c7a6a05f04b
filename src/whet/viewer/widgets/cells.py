"""A rollout as a row of a table: which columns there are, and what stands in them. Pure."""

from __future__ import annotations

from whet.system.terminal import duration
from whet.viewer.heads import Head, SortColumn
from whet.viewer.widgets.columns import Column
from whet.viewer.widgets.rows import Cell

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 5

SORTS: dict[str, SortColumn] = {
    "number": "file",
    "part": "file",
    "environment": "environment",
    "task": "example",
    "reward": "reward",
    "bar": "reward",
    "advantage": "advantage",
    "error": "error",
    "stop": "stop_condition",
    "tokens": "output_tokens",
    "turns": "turns",
    "time": "duration",
}
"""What a click on the title of a column sorts by."""


def rollout_columns(*, kind: str, environments: int, errors: bool, samplings: int = 0) -> list[Column]:
    """The columns for an evaluation, a run or a search; those that would say nothing are left out."""
    columns = [
        Column("mark", "", 1),
        Column("number", "#", 6, rank=9, right=True),
        Column("part", "step", 11, rank=3),
        Column("sampling", "sampling", 13, rank=5),
        Column("environment", "environment", 14, rank=5),
        Column("candidate", "candidate", 12, rank=2),
        Column("task", "task", 20 if kind == "search" else 6, rank=1, right=True),
        Column("place", "nth", 3, rank=7, right=True),
        Column("reward", "reward", 7, right=True),
        Column("bar", "", BAR, rank=8),
        Column("advantage", "advant.", 7, rank=2, right=True),
        Column("question", "question", 14, stretch=True, both_ends=True),
        Column("stop", "stop condition", 17, rank=4),
        Column("error", "error", 12, rank=3),
        Column("turns", "turns", 5, rank=6, right=True),
        Column("tokens", "tokens", 6, rank=6, right=True),
        Column("time", "time", 6, rank=7, right=True),
    ]
    without = set() if kind == "training" else {"part", "advantage"}
    if kind != "search":
        without.add("candidate")
    if samplings < 2:
        without.add("sampling")
    if environments < 2:
        without.add("environment")
    if not errors:
        without.add("error")
    return [column for column in columns if column.key not in without]


def rollout_cells(head: Head, columns: list[Column], *, passed: float, found: bool, candidate: str = "") -> list[Cell]:
    """What stands in these columns for one rollout; `candidate` is what its candidate is called."""
    if head.problem is not None:
        told: dict[str, Cell] = {"number": str(head.number + 1), "question": (head.problem, "bad")}
        return [told.get(column.key, "") for column in columns]
    style = reward_style(head.reward, passed)
    cells: dict[str, Cell] = {
        "mark": ("•", "middling") if found else "",
        "number": (str(head.number + 1), "dim"),
        "part": part_name(head),
        "sampling": head.sampling or "",
        "environment": head.environment,
        "candidate": (candidate, candidate_style(candidate)),
        "task": "" if head.example_id is None else str(head.example_id),
        "place": (str(head.place + 1), "dim"),
        "reward": (number(head.reward), style),
        "bar": (reward_bar(head.reward), style),
        "advantage": (signed(head.advantage), signed_style(head.advantage)),
        "question": head.question,
        "stop": (head.stop_condition or "", "middling" if head.truncated else "dim"),
        "error": (head.error or "", "bad"),
        "turns": str(head.turns),
        "tokens": "" if head.output_tokens is None else f"{head.output_tokens:.0f}",
        "time": seconds(head.duration),
    }
    return [cells[column.key] for column in columns]


def candidate_style(name: str) -> str:
    return "good" if name.endswith("accepted") else "dim" if name.endswith("rejected") else ""


def part_name(head: Head) -> str:
    """Where in a run a rollout belongs: the step, or which evaluation."""
    if head.part.startswith("step_") and head.step is not None:
        return str(head.step)
    return head.part.replace("_", " ")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.2g}"


def signed_style(value: float | None) -> str:
    return "" if not value else "good" if value > 0 else "bad"


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 10 else duration(value)


def reward_style(reward: float | None, passed: float) -> str:
    if reward is None:
        return "dim"
    return "good" if reward >= passed else "middling" if reward > 0 else "bad"


def reward_bar(reward: float | None, width: int = BAR) -> str:
    """A reward between 0 and 1 as a bar of blocks; anything above fills it."""
    if reward is None or not reward > 0:
        return ""
    eighths = round(min(reward, 1.0) * width * 8)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
