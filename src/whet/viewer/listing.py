"""The list on the screen: which rollouts, in which order, and what was searched for in them.

All screens of one store share a `Listing`, so that "the next rollout" is the next one of the list, and a search
continues from one screen to the next. Painting and threads are left to the screens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from whet.records.heads import EVERY_ROLLOUT, Filter, Head, IndexProgress, ListTotals, Sort, SortColumn, Variety
from whet.records.search import SearchFound
from whet.records.sources import candidate_names
from whet.records.store import Heads, Store

Choosable = Literal["stop_condition", "environment", "candidate", "part"]
"""Columns of which one value can be chosen."""

PASSED = 0.5
"""Reward from which a rollout counts as passed where the evaluation does not say."""


@dataclass(slots=True)
class Search:
    """The text of a search, and the matches so far."""

    text: str
    found: set[int] = field(default_factory=set)  # numbers of rollouts
    done: int = 0  # bytes
    total: int = 1
    running: bool = True
    cancelled: bool = False

    def take(self, found: SearchFound) -> None:
        """What has been found since the search began, and how far it is."""
        self.found.update(found.numbers[len(self.found) :])
        self.done, self.total = found.done, found.total


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
        threshold = self.store.source.metadata.get("pass_threshold")
        return float(threshold) if isinstance(threshold, int | float) else PASSED

    @property
    def narrowed(self) -> bool:
        """Whether only some of the rollouts are listed."""
        return self.filter != EVERY_ROLLOUT

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
        at = None if self.number is None else self.heads.position(self.number)
        return at or 0

    def step(self, by: int) -> int | None:
        """The rollout `by` positions further in the list; None beyond its end."""
        at = self.position() + by
        return self.heads.numbers[at] if 0 <= at < len(self.heads) else None

    def head(self, number: int) -> Head:
        return self.store.head(number)

    def sort_by(self, column: SortColumn) -> None:
        """Cycle through ascending, descending (first for numbers) and the file's order; go to the first rollout."""
        self.number = None
        first = column in ("reward", "advantage", "input_tokens", "output_tokens", "turns", "duration", "size")
        if self.sort.column != column:
            self.sort = Sort(column, descending=first)
        elif self.sort.descending == first:
            self.sort = Sort(column, descending=not first)
        else:
            self.sort = Sort()

    def next_reward_filter(self) -> None:
        """All, those that passed, those that did not."""
        low: float | None = None
        high: float | None = None
        if self.filter.reward_from is not None:
            high = math.nextafter(self.passed, -math.inf)  # the bounds of a filter are inclusive
        elif self.filter.reward_to is None:
            low = self.passed
        self.filter = replace(self.filter, reward_from=low, reward_to=high)

    def next_error_filter(self) -> None:
        """All, those with an error, those without."""
        following = {None: True, True: False, False: None}
        self.filter = replace(self.filter, failed=following[self.filter.failed])

    def only(self, column: Choosable, value: str | None) -> None:
        """Only rollouts with this value in a column; all for None."""
        change: dict[str, Any] = {column: value}
        self.filter = replace(self.filter, **change)

    def choices(self, column: Choosable) -> dict[str, int]:
        """The values there are of a column, with their numbers of rollouts; candidates in the order of proposal."""
        counts = self.store.counts(column)
        if column != "candidate":
            return counts
        order = {id: int(name.partition(" ")[0]) for id, name in self.candidates.items()}
        return {id: counts[id] for id in sorted(counts, key=lambda id: order.get(id, len(order)))}

    def candidate(self, id: str | None) -> str:
        """A candidate's number and verdict; its id where that is not decided yet."""
        return "" if id is None else self.candidates.get(id, id)

    def toggle_group(self, number: int) -> None:
        """Only the group of this rollout, or all groups again."""
        group = None if self.filter.group is not None else self.head(number).group
        self.filter = replace(self.filter, group=group)

    def toggle_found(self) -> None:
        """Only what the search found, or everything again."""
        numbers = None
        if self.search is not None and self.filter.numbers is None:
            numbers = frozenset(self.search.found)
        self.filter = replace(self.filter, numbers=numbers)

    def start_again(self) -> None:
        """Drop all numbers of rollouts: they are void once the store's generation has grown."""
        self.search = self.totals = None
        self.filter = replace(self.filter, group=None, numbers=None)
        self.heads = self.store.heads()
        self.number = self.heads[0].number if len(self.heads) else None

    def clear(self) -> None:
        self.filter, self.sort = Filter(), Sort()
        self.number = None

    def next_match(self, by: int) -> int | None:
        """The next (or, with -1, the previous) rollout of the list that the search found, going round at the end."""
        if self.search is None or not self.search.found:
            return None
        found, count, at = self.search.found, len(self.heads), self.position()
        for distance in range(1, count + 1):
            number = self.heads.numbers[(at + by * distance) % count]
            if number in found:
                return number
        return None

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
            ("p", f"candidate: {self.candidate(chosen.candidate)}" if chosen.candidate is not None else ""),
            ("o", "one group" if chosen.group is not None else ""),
            ("m", f"found: {self.search.text}" if chosen.numbers is not None and self.search is not None else ""),
        ]
        return [(key, text) for key, text in shown if text]
