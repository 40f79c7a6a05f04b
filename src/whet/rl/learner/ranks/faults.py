"""Which rank is to blame where a call of all ranks does not end, and for what. Pure: no clock, no processes.

    a process has ended              at once
    an exception of one rank         at once; one that says that the connection to another broke waits for the reason
    no heartbeat                     after `timeout_s`: the process is suspended, or its machine hangs
    no phase any more, on no rank    after `timeout_s`: a collective in which they wait for each other

Ranks make the same collectives in the same order, so where none progresses the one that has named the fewest phases is
the one that the others wait for. A `WhetError` is no fault of a rank: all ranks agree on it before they raise it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whet.rl.learner.ranks.rank_group import Answer, Standing

REASON_WITHIN_S = 5.0
"""Seconds in which the reason of a broken connection becomes known: the end of the other process, or its exception."""
MEMORY = "a smaller learner.micro_batch_tokens, learner.activation_checkpointing or more ranks need less memory"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of all ranks that is under way."""

    answers: Mapping[int, Answer]
    """Those that are there, by rank."""
    watched_s: float
    """Seconds since it began, or since this process continued after it was suspended itself."""
    raised_s: float
    """Seconds since the first exception."""
    timeout_s: float


def find_fault(call: Call, ranks: Sequence[Standing]) -> str | None:
    """What is wrong, naming the rank, in one sentence without a full stop; None as long as nothing is."""
    if ended := [rank for rank in ranks if rank.ended is not None]:
        first = min(ended, key=lambda rank: "SIGKILL" not in (rank.ended or ""))  # others may end because of it
        hint = f" (most often for its memory: {MEMORY})" if "SIGKILL" in (first.ended or "") else ""
        return _blamed(first, f"{first.ended} in: {first.phase}{hint}", call, ranks)
    if fault := _raised(call, ranks):
        return fault
    waited = [rank for rank in ranks if rank.rank not in call.answers]
    for rank in sorted(waited, key=lambda rank: not rank.suspended):
        silent = min(rank.silent_s, call.watched_s)
        if silent > call.timeout_s:
            why = "it is suspended by a signal" if rank.suspended else "its process does not run"
            text = f"stands still: {why}, and gave no heartbeat for {silent:.0f} s, in: {rank.phase}"
            return _blamed(rank, text, call, ranks)
    if waited and all(min(rank.phase_s, call.watched_s) > call.timeout_s for rank in waited):
        behind = min(waited, key=lambda rank: (not rank.suspended, rank.phases))
        limit = f"for longer than learner.rank_timeout_seconds = {call.timeout_s:g}"
        alike = all(rank.phases == behind.phases for rank in waited) and not behind.suspended
        if alike and len(waited) > 1:
            return f"{_named(waited)} have not come any further {limit}, in: {behind.phase}"
        return _blamed(behind, f"has not come any further {limit}, in: {behind.phase}", call, ranks)
    return None


def _raised(call: Call, ranks: Sequence[Standing]) -> str | None:
    for cause in ("memory", "other", "peer"):
        for answer in call.answers.values():
            if answer.raised is None or answer.raised.cause != cause:
                continue
            rank = ranks[answer.rank]
            if cause == "peer":
                if call.raised_s < REASON_WITHIN_S and len(call.answers) < len(ranks):
                    return None
                suspended = [one for one in ranks if one.suspended and one.rank not in call.answers]
                if suspended:
                    return _blamed(suspended[0], f"is suspended by a signal, in: {suspended[0].phase}", call, ranks)
            hint = f" ({MEMORY})" if cause == "memory" else ""
            return _blamed(rank, f"failed in: {rank.phase}: {answer.raised.text}{hint}", call, ranks)
    return None


def _blamed(rank: Standing, what: str, call: Call, ranks: Sequence[Standing]) -> str:
    """The sentence about a rank, and where the others were."""
    places: dict[str, list[Standing]] = {}
    for other in ranks:
        if other is not rank and other.ended is None and other.rank not in call.answers:
            places.setdefault(other.phase, []).append(other)
    waiting = [f"{_named(there)} waited for it in: {phase}" for phase, there in places.items()]
    return "; ".join([f"{rank.name} {what}", *waiting])


def _named(ranks: Sequence[Standing]) -> str:
    """`rank 0`, `ranks 0, 2 and 3`"""
    numbers = [str(rank.rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
