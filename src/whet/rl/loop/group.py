"""A group as training sees it: all rollouts of one task, scored; and what a step is made of.

`BatchSource`: where the training loop's batches come from, one after the other or all the time.

Whether a finished group may fill its slot of a batch. Pure: no asyncio, no clock, no I/O.

    open ──accept──▶ filled                    enough rollouts scored, enough variance
      └────reject──▶ open (attempt + 1)        too many rollouts errored, or the rewards are all too alike

The best group with too little variance is kept for its slot, and fills it when the slot's attempts are used up: it
teaches nothing, but it is an honest sample and the batch keeps its size. Where groups can become too old, kept groups
that have are dropped (`forget`).

A group with at least `min_group_size` scored rollouts goes on without its errored ones: its baseline is that of what is
left. One whose environment sets advantages itself has to be whole. Other errored groups never fill a slot. The run
stops with the most frequent error when the groups of a slot keep failing: when as many of their rollouts have, group
after group, as `max_errored_groups` groups hold. So a broken environment stops it after so many groups, and a rate that
spares a group now and then does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from whet.calls import place_of
from whet.errors import TrainingError
from whet.rl.data.curriculum import DrawnTask
from whet.system.redaction import redacted
from whet.types import State

Rejection = Literal["errored", "too little variance", "too old"]


@dataclass(slots=True)
class Group:
    """All rollouts of one task, scored."""

    slot: int  # its index among the groups that are trained
    task: DrawnTask
    environment: str
    states: list[State]
    own_advantages: bool = False  # the environment has set them itself
    member: str = ""  # of an EnvGroup, the one that the task is from

    @property
    def id(self) -> int:
        """Unique within the run: every group is a task of its own."""
        return self.task.number

    @property
    def errors(self) -> list[BaseException]:
        return [state["error"] for state in self.states if state.get("error") is not None]

    @property
    def rewards_G(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([state["reward"] for state in self.states], dtype=np.float64)

    @property
    def own_advantages_G(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([state["advantage"] for state in self.states], dtype=np.float64)

    @property
    def oldest_version(self) -> int | None:
        """The earliest policy version that sampled one of its tokens; None where no tokens are known."""
        runs = [
            version
            for state in self.states
            for step in state["trajectory"]
            for version, _ in (step.get("tokens") or {}).get("policy_version") or ()
        ]
        return min(runs, default=None)


@dataclass(slots=True)
class Tally:
    """What became of the groups attempted for a batch that are not in it."""

    rejected: Counter[Rejection] = field(default_factory=Counter)  # groups
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)  # rollouts, by environment and what happened
    errored_rollouts: int = 0
    cancelled_rollouts: int = 0  # too old before they were finished
    unused_rollouts: int = 0  # finished ones that are not in the batch
    lost_lengths: list[float] = field(default_factory=list)  # sampled tokens of rollouts too old to be trained

    @property
    def failures(self) -> dict[str, str]:
        """By environment, the most frequent of its errors."""
        return {environment: redacted(error) for (environment, error), _ in reversed(self.errors.most_common())}

    @property
    def replaced(self) -> int:
        return sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Groups of the batch that is being filled, to be learned from while the others are sampled."""

    groups: list[Group]
    tally: Tally | None  # with the last part of a batch: what else was attempted for it


def describe_error(error: BaseException) -> str:
    """`Kind: message <- Cause: message`, one line, for counting and for people."""
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None and len(parts) < 4:
        text = " ".join(str(link).split())
        parts.append(f"{type(link).__name__}: {text[:300]}" if text else type(link).__name__)
        link = link.__cause__
    line, text = place_of(error), " <- ".join(parts)
    return text if not line or line in text else f"{text} ({line})"


def zero_variance_fraction(groups: Sequence[Group]) -> float:
    """Share of groups whose rewards are all equal: their advantage is 0, they teach nothing."""
    return sum(bool(np.ptp(group.rewards_G) == 0) for group in groups) / len(groups)


OnProgress = Callable[[int, int], None]
"""(groups of the next batch that are there, groups of a batch)"""


class BatchSource(Protocol):
    """Makes batches of exactly the configured size and mix."""

    async def part(self, on_progress: OnProgress) -> BatchPart:
        """The next part of the batch that is being filled; a whole batch where it comes at once.

        Raises `TrainingError` where none can be made; may be cancelled without a loss.
        """

    def waiting(self) -> list[Group]:
        """Finished groups that are in no part yet, in the order of the draws."""

    def advance(self, version: int) -> None:
        """The engine samples with policy `version` from now on, and so many batches have been trained."""

    def idle_s(self) -> float:
        """Seconds since the last call in which nothing was in flight: all that was allowed had been sampled."""

    def state_dict(self) -> dict[str, Any]:
        """What decides about the batches to come, as JSON: nothing drawn is forgotten, nothing trained comes again."""

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Continue after `step`. Raises `RunError` for the state of another run."""

    async def close(self) -> None:
        """Cancel whatever is in flight."""


MAX_ATTEMPTS = 8
"""Groups tried for one slot of a batch before it is filled with the best of them."""
MAX_ERRORED_GROUPS = 8
"""Default of `[buffer] max_errored_groups`."""
MIN_GROUP_SIZE = 2
"""Default of `[buffer] min_group_size`: with one rollout there is nothing to compare it with."""


@dataclass(slots=True)
class GroupFilter:
    """Accepts or rejects each finished group; rejections are counted in `tally`."""

    min_variance: float = 0.0
    max_attempts: int = MAX_ATTEMPTS
    max_errored_groups: int = MAX_ERRORED_GROUPS
    min_group_size: int = MIN_GROUP_SIZE
    tally: Tally = field(default_factory=Tally)
    _kept: dict[int, Group] = field(default_factory=dict)
    _attempts: Counter[int] = field(default_factory=Counter)
    _errored: Counter[int] = field(default_factory=Counter)  # consecutive attempts of a slot that had errored rollouts
    _failed: Counter[int] = field(default_factory=Counter)  # the errored rollouts of these attempts

    def decide(self, group: Group) -> Group | None:
        """What fills the group's slot: the group, or the best that was tried there; None: another group is needed.

        Raises `TrainingError` for a slot whose groups keep failing.
        """
        slot = group.slot
        self._attempts[slot] += 1
        rejection = self._rejection(group)
        if rejection is None:
            self._forget(slot)
            return group
        self.tally.rejected[rejection] += 1
        self.tally.unused_rollouts += len(group.states)
        best = self._kept.get(slot) if self._attempts[slot] >= self.max_attempts else None
        if best is not None:
            self._forget(slot)
        elif slot not in self._kept and self._failed[slot] >= self.max_errored_groups * len(group.states):
            raise TrainingError(self._hopeless(group))
        return best

    def forget(self, too_old: Callable[[Group], bool]) -> None:
        """Drops kept groups that are too old to train; a slot out of attempts takes the next group without errors."""
        self._kept = {slot: group for slot, group in self._kept.items() if not too_old(group)}

    def _rejection(self, group: Group) -> Rejection | None:
        if group.errors:
            self._errored[group.slot] += 1
            self._failed[group.slot] += len(group.errors)
            self.tally.errored_rollouts += len(group.errors)
            self.tally.errors.update((group.environment, describe_error(error)) for error in group.errors)
            scored = [state for state in group.states if state.get("error") is None]
            if group.own_advantages or len(scored) < self.min_group_size:
                return "errored"
            self.tally.unused_rollouts += len(group.errors)
            group.states = scored
        self._errored[group.slot] = self._failed[group.slot] = 0
        variance = float(group.rewards_G.var())
        if variance >= self.min_variance:
            return None
        kept = self._kept.get(group.slot)
        if kept is None or variance > float(kept.rewards_G.var()):
            self._kept[group.slot] = group
        return "too little variance"

    def _hopeless(self, group: Group) -> str:
        (_, message), count = self.tally.errors.most_common(1)[0]
        return (
            f"environment {group.environment}: {self._errored[group.slot]} groups in a row had errored rollouts "
            f"({self._failed[group.slot]} in all), so no batch can be made. Most frequent error ({count} rollouts of "
            f"this batch): {message}. Correct its cause, or raise [buffer] max_errored_groups or max_retries."
        )

    def _forget(self, slot: int) -> None:
        self._kept.pop(slot, None)
        del self._attempts[slot], self._errored[slot], self._failed[slot]
