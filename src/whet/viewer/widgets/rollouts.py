"""How one rollout is shown in a line: as a row of a table, and in the status bar of a screen."""

from __future__ import annotations

from dataclasses import dataclass

from whet.records.heads import Head, Variety
from whet.records.rollout_text import candidate_style, number, part_name, reward_style, seconds, signed, signed_style
from whet.viewer.widgets.lines import Part
from whet.viewer.widgets.table import Cell, Column

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 5


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout of a list."""

    head: Head
    passed: float  # reward from which it counts as passed
    found: bool = False  # by the search
    candidate: str = ""  # name of its candidate

    @property
    def reward_style(self) -> str:
        return reward_style(self.head.reward, self.passed)


def rollout_columns(kind: str, variety: Variety) -> list[Column[RolloutRow]]:
    """The columns for an evaluation, a run or a search; those that would say nothing are left out."""
    columns: list[Column[RolloutRow]] = [
        Column("", 1, lambda row: ("•", "middling") if row.found else ""),
        Column("#", 6, lambda row: (str(row.head.number + 1), "dim"), rank=9, right=True, sort="file"),
        Column("step", 11, lambda row: part_name(row.head), rank=3, sort="file"),
        Column("sampling", 13, lambda row: row.head.sampling or "", rank=5),
        Column("environment", 14, lambda row: row.head.environment, rank=5, sort="environment"),
        Column("candidate", 12, lambda row: (row.candidate, candidate_style(row.candidate)), rank=2),
        Column("task", 20 if kind == "search" else 6, _task, rank=1, right=True, sort="example"),
        Column("nth", 3, lambda row: _unless_damaged(row, row.head.place + 1), rank=7, right=True),
        Column("reward", 7, lambda row: (number(row.head.reward), row.reward_style), right=True, sort="reward"),
        Column("", BAR, lambda row: (reward_bar(row.head.reward), row.reward_style), rank=8, sort="reward"),
        Column("advant.", 7, _advantage, rank=2, right=True, sort="advantage"),
        Column("question", 14, _question, stretch=True, both_ends=True),
        Column("stop condition", 17, _stop, rank=4, sort="stop_condition"),
        Column("error", 12, lambda row: (row.head.error or "", "bad"), rank=3, sort="error"),
        Column("turns", 5, lambda row: _unless_damaged(row, row.head.turns)[0], rank=6, right=True, sort="turns"),
        Column("tokens", 6, _tokens, rank=6, right=True, sort="output_tokens"),
        Column("time", 6, lambda row: seconds(row.head.duration), rank=7, right=True, sort="duration"),
    ]
    without = set() if kind == "training" else {"step", "advant."}
    if kind != "search":
        without.add("candidate")
    if variety.samplings < 2:
        without.add("sampling")
    if variety.environments < 2:
        without.add("environment")
    if not variety.errors:
        without.add("error")
    return [column for column in columns if column.title not in without]


def _task(row: RolloutRow) -> Cell:
    return "" if row.head.example_id is None else str(row.head.example_id)


def _unless_damaged(row: RolloutRow, value: int) -> tuple[str, str]:
    return ("" if row.head.problem else str(value), "dim")


def _advantage(row: RolloutRow) -> Cell:
    return signed(row.head.advantage), signed_style(row.head.advantage)


def _question(row: RolloutRow) -> Cell:
    return (row.head.problem, "bad") if row.head.problem else row.head.question


def _stop(row: RolloutRow) -> Cell:
    return row.head.stop_condition or "", "middling" if row.head.truncated else "dim"


def _tokens(row: RolloutRow) -> Cell:
    return "" if row.head.output_tokens is None else f"{row.head.output_tokens:.0f}"


def origin_parts(head: Head, *further: Part) -> list[Part]:
    """Where a rollout comes from: its environment, `further`, the step and the way of sampling."""
    parts: list[Part] = ["  ", (head.environment, "name")] if head.environment else []
    parts += further
    if head.part:
        parts.append(f"  {part_name(head, 'step ')}")
    if head.sampling:
        parts.append(f"  {head.sampling}")
    return parts


def reward_parts(head: Head, passed: float, *, bar: bool = True) -> list[Part]:
    """The reward, and in training the advantage."""
    shown = f"{number(head.reward) or 'none'} {reward_bar(head.reward) if bar else ''}".rstrip()
    parts: list[Part] = [" reward ", (shown, reward_style(head.reward, passed))]
    if head.advantage is not None:
        parts += ["  advantage ", (signed(head.advantage), signed_style(head.advantage))]
    return parts


def candidate_parts(name: str) -> list[Part]:
    return ["  candidate ", (name, candidate_style(name))] if name else []


def reward_bar(reward: float | None, width: int = BAR) -> str:
    """A reward between 0 and 1 as a bar of blocks; anything above fills it."""
    if reward is None or not reward > 0:
        return ""
    eighths = round(min(reward, 1.0) * width * 8)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
