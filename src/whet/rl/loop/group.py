"""A group as training sees it: all rollouts of one task, scored; and what a step is made of.

`Source`: where the training loop's batches come from, one after the other or all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from whet.calls import place_of
from whet.rl.data.curriculum import DrawnTask
from whet.system.redaction import redacted
from whet.types import State

Rejection = Literal["errored", "too little variance", "too old"]


@dataclass(slots=True)
class Group:
    """All rollouts of one task, scored."""

    slot: int  # its place among the groups that are trained
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
    lost_lengths: list[float] = field(default_factory=list)  # sampled tokens of rollouts too old to be trained

    @property
    def failures(self) -> dict[str, str]:
        """By environment, the most frequent of its errors."""
        return {environment: redacted(error) for (environment, error), _ in reversed(self.errors.most_common())}

    @property
    def replaced(self) -> int:
        return sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Part:
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
    place, text = place_of(error), " <- ".join(parts)
    return text if not place or place in text else f"{text} ({place})"


def zero_variance_fraction(groups: Sequence[Group]) -> float:
    """Share of groups whose rewards are all equal: their advantage is 0, they teach nothing."""
    return sum(bool(np.ptp(group.rewards_G) == 0) for group in groups) / len(groups)


OnProgress = Callable[[int, int], None]
"""(groups of the next batch that are there, groups of a batch)"""


class Source(Protocol):
    """Makes batches of exactly the configured size and mix."""

    async def part(self, on_progress: OnProgress) -> Part:
        """The next part of the batch that is being filled; a whole batch where it comes at once.

        Raises `TrainingError` where none can be made; may be cancelled without a loss.
        """
        ...

    def waiting(self) -> list[Group]:
        """Finished groups that are in no part yet, in the order of the draws."""
        ...

    def advance(self, version: int) -> None:
        """The engine samples with policy `version` from now on, and so many batches have been trained."""
        ...

    def idle_s(self) -> float:
        """Seconds since the last call in which nothing was in flight: all that was allowed had been sampled."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What decides about the batches to come, as JSON: nothing drawn is forgotten, nothing trained comes again."""
        ...

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Continue after `step`. Raises `RunError` for the state of another run."""
        ...

    async def close(self) -> None:
        """Cancel whatever is in flight."""
        ...
