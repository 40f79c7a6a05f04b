"""The branches of a rollout as its page draws them: a bar each, on which what was trained stands out."""

from __future__ import annotations

from dataclasses import dataclass

from whet.records.branches import Branch, BranchTree, Segment

MOST_BRANCHES = 100
LEAST_WIDTH = 0.25
"""Percent of a bar that sampled tokens have at least, so that they are seen."""


@dataclass(frozen=True, slots=True)
class BranchBar:
    """A segment: its place on the bar in percent, and what it says."""

    classes: str
    x: float
    width: float
    token: int | None
    words: str


@dataclass(frozen=True, slots=True)
class PageBranch:
    name: str
    words: str
    bars: list[BranchBar]


@dataclass(frozen=True, slots=True)
class TreePage:
    """All of it; `more` branches are not drawn."""

    words: str
    branches: list[PageBranch]
    more: int
    note: str


def tree_page(tree: BranchTree, part: str) -> TreePage:
    """What the page draws and says of a rollout in a part of a run, such as step_000001."""
    calls, branches = sum(len(branch.turns) for branch in tree.branches), len(tree.branches)
    sampled, learned = sum(branch.sampled for branch in tree.branches), sum(branch.learned for branch in tree.branches)
    words = f"{_count(calls, 'call')} of the policy in {_count(branches, 'branch')}: "
    words += f"{learned:,} of {sampled:,} sampled tokens are trained."
    if not learned:
        why = "The rollout has no advantage, or the learner left out all of them."
        words += f" {why if part.startswith('step_') else 'The rollout is of an evaluation.'}"
    drawn = [_page_branch(branch, tree.length) for branch in tree.branches[:MOST_BRANCHES]]
    return TreePage(words, drawn, branches - len(drawn), tree.note)


def _page_branch(branch: Branch, length: int) -> PageBranch:
    first, last = branch.turns[0], branch.turns[-1]
    words = [
        f"turn {first}"
        if first == last
        else f"turns {first} to {last}"
        if _in_row(branch)
        else _count(len(branch.turns), "turn")
    ]
    if branch.parent:
        words.insert(0, f"leaves branch {branch.parent} after {_count(branch.shared, 'token')}")
    words.append(f"{branch.learned:,} of {branch.sampled:,} sampled tokens trained")
    return PageBranch(
        f"Branch {branch.number}", "; ".join(words), [_bar(one, branch, length) for one in branch.segments]
    )


def _in_row(branch: Branch) -> bool:
    return branch.turns[-1] - branch.turns[0] + 1 == len(branch.turns)


def _bar(segment: Segment, branch: Branch, length: int) -> BranchBar:
    width = 100 * segment.length / length
    if segment.kind == "shared":
        words = f"{_count(segment.length, 'token')} shared with branch {branch.parent}"
        return BranchBar("shared", 0.0, width, None, words)
    x, words = 100 * segment.start / length, f"turn {segment.turn}: {segment.length:,} given"
    if segment.kind == "given":
        return BranchBar("given", x, width, segment.token, words)
    words = f"turn {segment.turn}: {segment.length:,} sampled, {segment.learned:,} trained"
    words += "" if segment.advantage is None else f", advantage {segment.advantage:+.3f}"
    direction = "" if segment.kind == "untrained" else " up" if (segment.advantage or 0) > 0 else " down"
    return BranchBar(
        f"sampled {segment.kind}{direction}", min(x, 100 - LEAST_WIDTH), max(width, LEAST_WIDTH), segment.token, words
    )


def _count(number: int, noun: str) -> str:
    plural = {"branch": "branches"}.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"
