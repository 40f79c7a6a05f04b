"""The calls of a rollout's policy as a tree: which tokens they share, which were sampled, and which were trained. Pure.

    turn 1   a b | c d             branch 1: a b C D | e F        capitals: sampled
    turn 2   a b c d e | f         branch 2: a b (shared) x Y
    turn 3   a b x | y

A turn continues the branch whose tokens its prompt extends (the longest, and of equals the one that began last), as
the trainer merges turns (`rl/data/batch.py`). A turn that extends none begins a branch where it leaves the branch with
which it has most tokens in common: a history was rewritten or shortened, or a helper asks with another prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from whet.parsing import as_whole
from whet.records.entries import as_float
from whet.records.tokens import NO_TOKENS, NO_TURNS

Kind = Literal["shared", "given", "trained", "untrained"]
MOST_TOKENS = 20_000_000
"""Of the prompts of turns that do not simply continue: each is compared with all branches."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of a branch that a turn added, of one kind."""

    kind: Kind
    turn: int  # from 1; 0: of another branch
    start: int  # position in the branch
    length: int
    token: int  # number of the first one among those that the rollout's turns added
    learned: int = 0  # of sampled ones, those in the loss
    advantage: float | None = None


@dataclass(slots=True)
class Branch:
    """One sequence of the trainer: turns that each extend the one before."""

    number: int  # from 1
    parent: int  # the branch that it leaves, at `shared` tokens; 0: none
    shared: int
    turns: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        return sum(segment.length for segment in self.segments if segment.kind in ("trained", "untrained"))

    @property
    def learned(self) -> int:
        return sum(segment.learned for segment in self.segments)


@dataclass(frozen=True, slots=True)
class BranchTree:
    """All branches in the order in which they began."""

    branches: list[Branch]
    note: str = ""  # why there are none, or not all

    @property
    def length(self) -> int:
        """Tokens of the longest branch."""
        return max((len(branch.ids) for branch in self.branches), default=0)


def branch_tree(row: Mapping[str, Any]) -> BranchTree:
    """The branches of a row with its tokens. Those of a rollout without an advantage are not trained."""
    turns, advantage = row.get("turns"), _number(row.get("advantage"))
    if not isinstance(turns, list) or not any(isinstance(turn, Mapping) for turn in turns):
        return BranchTree([], NO_TURNS if isinstance(turns, list) else NO_TOKENS)
    branches: list[Branch] = []
    before: list[int] = []
    token, left = 0, MOST_TOKENS
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping):
            continue
        start, added, sampled = _whole(turn.get("prompt_start")), _ids(turn, "prompt_ids"), _ids(turn, "completion_ids")
        if len(branches) == 1 and start == len(before):
            branch, held = branches[0], len(before)
            branch.ids += added
        else:
            prompt = [*before[:start], *added]
            left -= len(prompt)
            if left < 0:
                return BranchTree(branches, f"turns from {number} on are not shown: their prompts are too long")
            branch = _continued(branches, prompt) or _begun(branches, prompt)
            held, branch.ids = len(branch.ids) or branch.shared, prompt
        branch.turns.append(number)
        end = len(branch.ids)
        if end > held:
            branch.segments.append(
                Segment("given", number, held, end - held, max(token, token + len(added) - end + held))
            )
        if sampled:
            own = _number(turn.get("advantage"))
            own = advantage if own is None else own
            learned = _learned(turn, len(sampled)) if own else 0
            kind: Kind = "trained" if learned else "untrained"
            branch.segments.append(Segment(kind, number, end, len(sampled), token + len(added), learned, own))
        branch.ids += sampled
        before = branch.ids
        token += len(added) + len(sampled)
    return BranchTree(branches)


def _continued(branches: list[Branch], prompt: list[int]) -> Branch | None:
    extended = [
        branch
        for branch in branches
        if len(prompt) >= len(branch.ids)
        and prompt[len(branch.ids) - 1 : len(branch.ids)] == branch.ids[-1:]
        and prompt[: len(branch.ids)] == branch.ids
    ]
    return max(extended, key=lambda branch: (len(branch.ids), branch.number), default=None)


def _begun(branches: list[Branch], prompt: list[int]) -> Branch:
    shared, parent = 0, 0
    for branch in branches:
        common = _common(branch.ids, prompt)
        if common > shared:
            shared, parent = common, branch.number
    branches.append(begun := Branch(len(branches) + 1, parent, shared))
    if shared:
        begun.segments.append(Segment("shared", 0, 0, shared, 0))
    return begun


def _common(left: list[int], right: list[int]) -> int:
    """Tokens that two sequences have in common from the first on, by halves."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def _learned(turn: Mapping[str, Any], count: int) -> int:
    """Sampled tokens that are in the loss: not left out by the rollout's mask or by the learner."""
    sampled, masked = turn.get("completion_mask"), turn.get("masked")
    return sum(
        (not isinstance(sampled, list) or bool(sampled[at : at + 1] and sampled[at]))
        and not (isinstance(masked, list) and bool(masked[at : at + 1] and masked[at]))
        for at in range(count)
    )


def _ids(turn: Mapping[str, Any], name: str) -> list[int]:
    value = turn.get(name)
    return [id for id in value if isinstance(id, int)] if isinstance(value, list) else []


def _whole(value: Any) -> int:
    return max(0, as_whole(value) or 0)


def _number(value: Any) -> float | None:
    return as_float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
