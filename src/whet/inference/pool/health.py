"""When an engine of a pool is restarted, and what is said of the engines: in words, and as metrics. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MemberState = Literal["starting", "up", "down", "given up"]
"""Down is one that will be restarted."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """An engine is restarted at most `max_restarts` times in `window_s` seconds, after pauses that double."""

    max_restarts: int = 3
    window_s: float = 3600.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0

    def pause(self, deaths: Sequence[float]) -> float | None:
        """Seconds from the last of these times to the restart; None where there is none any more."""
        recent = sum(deaths[-1] - death < self.window_s for death in deaths)
        if recent > self.max_restarts:
            return None
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(recent - 1, 60))


@dataclass(frozen=True, slots=True)
class MemberReport:
    """One engine at one moment."""

    name: str
    state: MemberState
    cause: str = ""  # what it ended with last
    restarts: int = 0
    restarts_in: float | None = None  # seconds; None where it is not decided, or will not be
    version: int = 0
    queue: int = 0  # requests
    is_current: bool = True  # it has the newest weights of the policy

    def describe(self) -> str:
        """What is wrong, as a clause; of one that is up and current nothing is."""
        why = f" ({self.cause})" if self.cause else ""
        if self.state == "down" and self.restarts_in is not None:
            return f"engine {self.name} restarts in {max(0.0, self.restarts_in):.0f} s{why}"
        if self.state == "down":
            return f"engine {self.name} is being stopped{why}"
        if self.state == "given up":
            return f"engine {self.name} is not restarted any more{why}"
        if self.state == "starting":
            return f"engine {self.name} is starting{why}"
        return f"engine {self.name} takes new weights"


def count_up(members: Sequence[MemberReport]) -> int:
    return sum(member.state == "up" for member in members)


def waiting_text(members: Sequence[MemberReport], min_healthy: int) -> str:
    """What keeps requests waiting: which engines are not up, why, and when they are; "" where all are."""
    down = [member.describe() for member in members if member.state != "up"]
    reasons = [f"{len(down)} of {len(members)} engines are down: {', '.join(down)}"] if down else []
    if count_up(members) < min_healthy and min_healthy > 1:
        reasons.append(f"requests wait until {min_healthy} are up")
    return "; ".join([*reasons, *(one.describe() for one in members if one.state == "up" and not one.is_current)])


def hopeless_text(members: Sequence[MemberReport], min_healthy: int) -> str | None:
    """Why no request will ever be answered again: too many engines have had their last restart. None: some may be."""
    ended = [member for member in members if member.state == "given up"]
    if len(members) - len(ended) >= min_healthy:
        return None
    causes = ", ".join(f"engine {one.name} ({one.cause}; restarts: {one.restarts})" for one in ended)
    least = "" if min_healthy == 1 else f", where min_healthy = {min_healthy}"
    return (
        f"{len(ended)} of {len(members)} engines have ended for good{least}: {causes}. "
        "Remove the cause, then start again; a run continues with --resume."
    )


def pool_metrics(members: Sequence[MemberReport], queue: int) -> dict[str, float]:
    """`engine/...` of a step; `queue` counts the requests in flight, those included that wait for an engine."""
    metrics = {
        "engine/healthy": float(count_up(members)),
        "engine/restarts": float(sum(member.restarts for member in members)),
        "engine/queue": float(queue),
    }
    for member in members:
        metrics[f"engine/{member.name}/queue"] = float(member.queue)
        metrics[f"engine/{member.name}/restarts"] = float(member.restarts)
        metrics[f"engine/{member.name}/version"] = float(member.version)
    return metrics
