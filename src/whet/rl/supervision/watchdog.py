"""The waits of a run: what waits for what, for how long, and when that is too long. Pure: no clock, no threads, no I/O.

    begin ──ends in time──▶ its duration counts for what is usual
      └──longer than usual──▶ reported, once ──past its deadline──▶ acted on, by its `act` ──still there──▶ given up

A deadline is a multiple of the slowest wait of the same kind (and, for groups, of the same environment) that has ended
in this run, and at least a floor; while none has ended it is `first_seconds`. So a slow model is not taken for a hung
one. A group's counts from the last answer of the model to one of its rollouts: one that goes on for an hour is not
hung. `watchdog_thread.py` looks here every second and does what is to be done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from pydantic import Field, model_validator

from whet.config import StrictModel
from whet.system.cancellation import GRACE_S

Verdict = Literal["reported", "acted on", "given up"]
"""What has become of a wait that takes too long, in this order."""

GROUP = "group "
"""Kinds of waits for a group of rollouts begin so; the environment's name follows."""

STALLED = "stalled: "
"""Notes about a wait begin so."""
EVALUATION = "evaluation"
ENGINE = "engine"
"""Kind of the one wait that lasts while the engine answers no request; meanwhile the time of groups stands still."""

HOPELESS = 2
USUAL = 2.0
"""A wait is reported when it takes longer than this many times the slowest so far."""


class WatchdogConfig(StrictModel):
    """`[watchdog]`: how long anything may wait before it is reported, and acted on."""

    report_seconds: float = Field(
        60.0, gt=0, description="A wait longer than this and twice the slowest so far, without progress, is reported."
    )
    act_seconds: float = Field(
        600.0, gt=0, description="Least seconds before what does not answer is replaced, or the run stopped."
    )
    act_factor: float = Field(10.0, ge=1, description="The same as a multiple of the slowest wait of its kind so far.")
    first_seconds: float = Field(3600.0, gt=0, description="The same while no wait of its kind has ended yet.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for low, high in (("report_seconds", "act_seconds"), ("act_seconds", "first_seconds")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} = {getattr(self, low):g} is more than {high} = {getattr(self, high):g}")
        return self


@dataclass(eq=False, slots=True)
class WatchedWait:
    """One wait: `who` waits for `awaited`. `kind` says whose deadlines it shares."""

    kind: str
    who: str
    awaited: str
    began: float
    act: Callable[[str], None] | None = None  # passed what is wrong; None: others act on what this one waits for
    blocks: bool = False  # it may keep the event loop from turning; others cannot progress while the loop stands still
    detail: Callable[[], str] | None = None  # more about `awaited`, called when it is reported
    verdict: Verdict | None = None
    acted: float = 0.0  # when
    progress: Callable[[], int] | None = None  # changes with what is waited for: what goes on is not acted on
    seen: int = 0
    progressed: float = -math.inf  # when it had last changed

    @property
    def replaceable(self) -> bool:
        """Whether acting on it replaces what is waited for, rather than stopping the run."""
        return self.kind.startswith(GROUP)

    @property
    def runs_rollouts(self) -> bool:
        """Whether code of an environment runs in it, which may be interrupted."""
        return self.replaceable or self.kind == EVALUATION


@dataclass(frozen=True, slots=True)
class Stall:
    """A wait that has just become worse than it was."""

    wait: WatchedWait
    verdict: Verdict
    waited: float  # seconds
    usual: float | None  # seconds of the slowest of its kind; None where none has ended

    def describe(self) -> str:
        """One line for people: who waits for what for how long, and what is usual."""
        wait = self.wait
        detail = f" ({text})" if wait.detail is not None and (text := wait.detail()) else ""
        usual = "" if self.usual is None else f"; the longest so far took {seconds(self.usual)}"
        return f"{wait.who} has waited {seconds(self.waited)} for {wait.awaited}{detail}{usual}"


@dataclass(slots=True)
class WaitTable:
    """All waits of a run. Times are seconds of any one clock."""

    config: WatchdogConfig = field(default_factory=WatchdogConfig)
    expired: Counter[str] = field(default_factory=Counter)  # waits that were ended at their deadline, by kind
    _open: dict[int, WatchedWait] = field(default_factory=dict)
    _slowest: dict[str, float] = field(default_factory=dict)
    _engine: WatchedWait | None = None

    def begin(
        self,
        kind: str,
        who: str,
        awaited: str,
        now: float,
        act: Callable[[str], None] | None = None,
        *,
        blocks: bool = False,
        detail: Callable[[], str] | None = None,
    ) -> WatchedWait:
        """`act` is called once the deadline has passed, with what is wrong in words."""
        wait = WatchedWait(kind, who, awaited, now, act, blocks, detail)
        self._open[id(wait)] = wait
        if kind == ENGINE:
            self._engine = wait
        return wait

    def end(self, wait: WatchedWait, now: float, *, usual: bool = True) -> None:
        """The wait is over; `usual` is False where how long it took says nothing (it failed, or was cancelled)."""
        if wait is self._engine:
            self._engine = None
        if self._open.pop(id(wait), None) is not None and usual:
            self._slowest[wait.kind] = max(self._slowest.get(wait.kind, 0.0), now - wait.began)

    def deadline(self, kind: str) -> float:
        """Seconds after which a wait of this kind is acted on."""
        slowest = self._slowest.get(kind)
        if slowest is None:
            return self.config.first_seconds
        return max(self.config.act_seconds, self.config.act_factor * slowest)

    def hopeless(self, kind: str) -> bool:
        """Whether several waits of this kind were ended at their deadline, and none ever ended by itself."""
        return kind not in self._slowest and self.expired[kind] >= HOPELESS

    def overdue(self, now: float, *, turned: float = math.inf) -> list[Stall]:
        """Waits that have become worse since the last call, each once for every verdict.

        The event loop has last `turned` then. What has passed since counts only for waits that may keep it: the loop
        may be standing still, and the others could not progress.
        """
        stalls = []
        for wait in list(self._open.values()):
            until = now if wait.blocks else min(now, turned)
            waited = until - wait.began
            if wait.progress is not None and (progress := wait.progress()) != wait.seen:
                wait.seen, wait.progressed = progress, until
            verdict = self._verdict(wait, waited, until)
            if verdict is not None and verdict != wait.verdict:
                wait.verdict = verdict
                if verdict == "acted on":
                    wait.acted = until
                stalls.append(Stall(wait, verdict, waited, self._slowest.get(wait.kind)))
        return stalls

    def forgive(self, paused: float, *, everything: bool = False) -> None:
        """Takes time in which nothing could progress out of every wait.

        That is the event loop standing still, or (`everything`) the whole process: suspended, a laptop asleep.
        """
        for wait in list(self._open.values()):
            if everything or not wait.blocks:
                wait.began += paused
                wait.acted += paused
                wait.progressed += paused

    def _verdict(self, wait: WatchedWait, waited: float, now: float) -> Verdict | None:
        idle = min(waited, now - wait.progressed)
        if wait.replaceable and (engine := self._engine) is not None:
            paused = max(0.0, now - engine.began)  # the engine keeps them waiting, and has a deadline of its own
            waited, idle = waited - paused, idle - paused
        if wait.act is not None and wait.verdict in ("acted on", "given up"):
            late = now - wait.acted > self.config.act_seconds + GRACE_S  # what was cancelled has so long to end
            return "given up" if late or wait.verdict == "given up" else "acted on"
        if wait.act is not None and idle > self.deadline(wait.kind):
            return "acted on"
        longest = max(self.config.report_seconds, USUAL * self._slowest.get(wait.kind, 0.0))
        return "reported" if idle > longest or wait.verdict == "reported" else None


def seconds(value: float) -> str:
    """`45 s`, `3 min`, `2.5 h`"""
    if value < 120:
        return f"{value:.0f} s" if value >= 2 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
