"""The list on the screen: which rollouts, in which order, and what was searched for in them.

All screens of one store share a `Listing`, so that "the next rollout" is the next one of the list, and a search
continues from one screen to the next. Painting and threads are left to the screens. The functions are about the list
as a table, for the terminal and for pages: text is as written, not escaped; styles are `good`, `middling`, `bad`,
`dim` or "".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from whet.records.heads import EVERY_ROLLOUT, Filter, Head, IndexProgress, ListTotals, Sort, SortColumn, Variety
from whet.records.rollout_text import candidate_style, number, part_name, reward_style, seconds, signed, signed_style
from whet.records.sources import candidate_names
from whet.records.store import Heads, Store

Choosable = Literal["stop_condition", "environment", "candidate", "part"]
"""Columns of which one value can be chosen."""
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


@dataclass(slots=True)
class Search:
    """The text of a search, and the matches so far."""

    text: str
    matches: set[int] = field(default_factory=set)  # numbers of rollouts
    done: float = 0.0  # share of the bytes
    running: bool = True
    cancelled: bool = False


class Listing:
    """A store with a filter, an order and a search. `heads` are the rollouts listed now."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.filter = Filter()
        self.sort = Sort()
        self.search: Search | None = None
        self.progress: IndexProgress = store.poll(0)
        self.heads: Heads = store.heads()
        self.totals: ListTotals | None = None
        self.variety = Variety()
        self.number: int | None = self.heads[0].number if len(self.heads) else None
        self.candidates: dict[str, str] = {}
        """In a search for prompts: what candidates are called, by id."""

    @property
    def passed(self) -> float:
        return self.store.source.passed

    @property
    def narrowed(self) -> bool:
        """Whether only some of the rollouts are listed."""
        return self.filter != EVERY_ROLLOUT

    @property
    def arrow(self) -> str:
        """The direction of the order; "" in the file's order."""
        return "" if self.sort.column == "file" else "↓" if self.sort.descending else "↑"

    @property
    def query(self) -> str:
        """What was searched for; "" without a search."""
        return self.search.text if self.search is not None else ""

    @property
    def current(self) -> Head | None:
        """The rollout that the screens are at."""
        return None if self.number is None else self.head(self.number)

    def head(self, number: int) -> Head:
        """A rollout; its candidate with number and verdict instead of its id, where these are known."""
        head = self.store.head(number)
        return replace(head, candidate=self.candidates.get(head.candidate, head.candidate)) if head.candidate else head

    def load(self) -> tuple[Heads, ListTotals, Variety]:
        """Load the list by the current filter and order. It takes some tenths of a second: call it in a thread."""
        self.candidates = candidate_names(self.store.source)
        return self.store.heads(self.filter, self.sort), self.store.totals(self.filter), self.store.variety()

    def take(self, loaded: tuple[Heads, ListTotals, Variety]) -> None:
        """Show what `load` brought."""
        self.heads, self.totals, self.variety = loaded
        if self.number is None or self.heads.position(self.number) is None:
            self.number = self.heads[0].number if len(self.heads) else None

    def position(self) -> int:
        """The position of the current rollout in the list."""
        return (None if self.number is None else self.heads.position(self.number)) or 0

    def step(self, by: int) -> int | None:
        """The rollout `by` positions further in the list; None beyond its end."""
        at = self.position() + by
        return self.heads.numbers[at] if 0 <= at < len(self.heads) else None

    def sort_by(self, column: SortColumn) -> None:
        """Cycle through ascending, descending (first for numbers) and the file's order; go to the first rollout."""
        self.number = None
        first = column in LARGEST_FIRST
        if self.sort.column != column:
            self.sort = Sort(column, descending=first)
        elif self.sort.descending == first:
            self.sort = Sort(column, descending=not first)
        else:
            self.sort = Sort()

    def next_reward_filter(self) -> None:
        """All, those that passed, those that did not."""
        low = high = None
        if self.filter.reward_from is not None:
            high = math.nextafter(self.passed, -math.inf)  # the bounds of a filter are inclusive
        elif self.filter.reward_to is None:
            low = self.passed
        self.filter = replace(self.filter, reward_from=low, reward_to=high)

    def next_error_filter(self) -> None:
        """All, those with an error, those without."""
        following = {None: True, True: False, False: None}
        self.filter = replace(self.filter, failed=following[self.filter.failed])

    def options(self, column: Choosable) -> list[tuple[str | None, list[Shown]]]:
        """The values there are of a column, each with its name and number of rollouts, after None for all of them.

        Candidates are in the order of proposal.
        """
        counts = self.store.counts(column)
        numbers = {id: int(name.partition(" ")[0]) for id, name in self.candidates.items()}
        values = sorted(counts, key=lambda id: numbers.get(id, len(numbers))) if column == "candidate" else list(counts)
        named = [(value, self.candidates.get(value, value) or "(none)") for value in values]
        return [
            (None, [("all", "")]),
            *((value, [(name, ""), (f"  {counts[value]:,}", "dim")]) for value, name in named),
        ]

    def toggle_group(self) -> None:
        """Only the group of the current rollout, or all groups again."""
        head = self.current
        group = head.group if head is not None and self.filter.group is None else None
        self.filter = replace(self.filter, group=group)

    def toggle_matches(self) -> None:
        """Only what the search found, or everything again."""
        matches = self.search.matches if self.search is not None else set[int]()
        self.filter = replace(self.filter, numbers=frozenset(matches) if self.filter.numbers is None else None)

    def start_again(self) -> None:
        """Drop all numbers of rollouts: they are void once the store's generation has grown."""
        self.search = self.totals = None
        self.filter = replace(self.filter, group=None, numbers=None)
        self.heads = self.store.heads()
        self.number = self.heads[0].number if len(self.heads) else None

    def only(self, column: Choosable, value: str | None) -> None:
        """Only rollouts with this value in a column; all for None."""
        change: dict[str, Any] = {column: value}
        self.filter = replace(self.filter, **change)

    def clear(self) -> None:
        """Every rollout again, in the file's order."""
        self.filter, self.sort, self.number = Filter(), Sort(), None

    def next_match(self, by: int) -> int | None:
        """The next (or, with -1, the previous) rollout of the list that the search found, going round at the end."""
        matches = self.search.matches if self.search is not None else set[int]()
        count, at = len(self.heads) if matches else 0, self.position()
        numbers = (self.heads.numbers[(at + by * distance) % count] for distance in range(1, count + 1))
        return next((number for number in numbers if number in matches), None)

    def filters(self) -> list[tuple[str, str]]:
        """(key, what it lets through) for every filter that is set."""
        chosen = self.filter
        shown = [
            ("r", f"reward >= {chosen.reward_from:g}" if chosen.reward_from is not None else ""),
            ("r", f"reward < {self.passed:g}" if chosen.reward_to is not None else ""),
            ("e", {None: "", True: "with an error", False: "without error"}[chosen.failed]),
            ("s", f"stop: {chosen.stop_condition}" if chosen.stop_condition is not None else ""),
            ("v", f"environment: {chosen.environment}" if chosen.environment is not None else ""),
            ("p", f"part: {chosen.part}" if chosen.part is not None else ""),
            (
                "p",
                f"candidate: {self.candidates.get(chosen.candidate, chosen.candidate)}"
                if chosen.candidate is not None
                else "",
            ),
            ("o", "one group" if chosen.group is not None else ""),
            ("m", f"found: {self.query}" if chosen.numbers is not None else ""),
        ]
        return [(key, text) for key, text in shown if text]

    def counted(self) -> list[Shown]:
        """How many rollouts are listed, what they come to, and how far the files are read."""
        progress, totals = self.progress, self.totals
        of = f" of {progress.rollouts:,}" if self.narrowed else ""
        parts = [(f"{len(self.heads):,}{of} rollouts", "")]
        if totals is not None and totals.mean_reward is not None:
            parts += [(", reward ", ""), (f"{totals.mean_reward:.3f}", "bold")]
        if totals is not None and totals.failed:
            parts += [(", ", ""), (f"{totals.failed:,} failed", "bad")]
        if totals is not None and totals.truncated:
            parts += [(", ", ""), (f"{totals.truncated:,} truncated", "middling")]
        if progress.damaged:
            parts += [(", ", ""), (f"{progress.damaged:,} lines are no rollouts", "bad")]
        if progress.failure:
            parts.append((f"  {progress.failure}", "bad"))
        elif not progress.complete:
            share = progress.bytes_done / max(1, progress.bytes_total)
            parts.append((f"  reading the file: {share:.0%}", "middling"))
        return parts

    def chosen(self) -> list[Shown]:
        """The filters and the order."""
        parts = [part for key, text in self.filters() for part in ((key, "bold"), (f" {text}  ", ""))]
        if self.arrow:
            parts += [("sorted", "bold"), (f" by {self.sort.column.replace('_', ' ')} {self.arrow}", "")]
        return parts

    def searched(self) -> list[Shown]:
        """What was searched for, and how far the search is; nothing without one."""
        search = self.search
        if search is None:
            return []
        state = f"  searching: {search.done:.0%}, Esc stops" if search.running else ""
        state = "  stopped" if search.cancelled else state
        return [
            ("/", "bold"),
            (search.text, "name"),
            (f" in {len(search.matches):,} rollouts", ""),
            (state, "middling"),
        ]

    def status(self) -> list[list[Shown]]:
        """The lines above the list."""
        source = self.store.source
        model = f" with {source.model}" if source.model else ""
        run = [(source.environment or "rollouts", "bold"), (model, ""), (f"  {source.path}", "dim")]
        return [line for line in (run, self.counted(), self.chosen(), self.searched()) if line]

    def about(self) -> list[list[Shown]]:
        """The lines above the current rollout."""
        head = self.current
        if head is None:
            return []
        position = f"rollout {self.position() + 1:,} of {len(self.heads):,}"
        where = [(position, "bold"), (f"  {origin(head)}", "")]
        return [line for line in (where, about(head, self.passed), self.searched()) if line]


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
