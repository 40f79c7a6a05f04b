"""How long rollouts are, running ones included, and whether the long ones reach training.

A rollout that was cancelled for its age has no length any more, and it is the long ones that grow too old. So tokens
are counted while rollouts run: those of finished turns are known, those of a turn that is being sampled are estimated
from the time since its request, at the speed of earlier turns. Nothing that is trained depends on that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from whet.rl.loop.group import Group

LONG = 2.0
"""A rollout is long that has more than so many times the tokens of the median."""

MEMORY = 0.98
"""Weight of earlier turns in how fast the engine draws, against the turn that ended last."""


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that is being sampled."""

    rollout: str
    began: float  # time of its request
    most: int  # tokens it may have


@dataclass(slots=True)
class Lengths:
    """Sampled tokens of running rollouts by name; nothing is kept of finished ones."""

    clock: Callable[[], float] = time.monotonic
    _finished: dict[str, int] = field(default_factory=dict)  # tokens of a rollout's finished turns
    _turns: dict[str, list[Turn]] = field(default_factory=dict)  # requested and not finished
    _tokens: float = 0.0
    _seconds: float = 0.0

    def follow(self, rollouts: Iterable[str]) -> None:
        self._finished.update(dict.fromkeys(rollouts, 0))

    def forget(self, rollouts: Iterable[str]) -> None:
        for rollout in rollouts:
            self._finished.pop(rollout, None)
            self._turns.pop(rollout, None)

    def ask(self, rollout: str | None, most: int) -> Turn | None:
        """Marks the beginning of a turn; None where its rollout is not followed."""
        if rollout is None or rollout not in self._finished:
            return None
        turn = Turn(rollout, self.clock(), most)
        self._turns.setdefault(rollout, []).append(turn)
        return turn

    def end(self, turn: Turn | None, tokens: int | None) -> None:
        """It has so many tokens; None where it was not answered."""
        if turn is None:
            return
        if turn in (going := self._turns.get(turn.rollout, [])):
            going.remove(turn)
        if tokens is None:
            return
        self._tokens = MEMORY * self._tokens + tokens
        self._seconds = MEMORY * self._seconds + self.clock() - turn.began
        if turn.rollout in self._finished:
            self._finished[turn.rollout] += tokens

    def of(self, rollouts: Iterable[str]) -> list[float]:
        """Tokens so far of those that have begun."""
        now, speed = self.clock(), self._tokens / self._seconds if self._seconds else 0.0
        return [
            self._finished[rollout] + sum(min(turn.most, speed * (now - turn.began)) for turn in self._turns[rollout])
            for rollout in rollouts
            if rollout in self._turns
        ]


def lengths_of(groups: Iterable[Group]) -> list[float]:
    """Sampled tokens of each rollout of finished groups."""
    return [
        float(sum(len((step.get("tokens") or {}).get("completion_ids", ())) for step in state["trajectory"]))
        for group in groups
        for state in group.states
    ]


def length_metrics(groups: Sequence[Group], lost: Sequence[float]) -> dict[str, float]:
    """Which share of the drawn, and of the trained rollouts is long; `lost` are lengths of those too old to train."""
    trained = np.array(lengths_of(groups))
    drawn = np.concatenate([trained, lost])
    limit = LONG * np.median(drawn)
    return {
        "rollouts/long_drawn_frac": float((drawn > limit).mean()),
        "rollouts/long_trained_frac": float((trained > limit).mean()),
    }
