"""`whet env verify`: for each task, its own answer earns full reward, and answers without merit earn less.

The attempts are those of a review (`rehearsal.py`), on every task; here each task is judged by itself, where a review
judges means. Full reward is the most that the own answer of any task earned in any form.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from whet.authoring.review.about_runs import ELSEWHERE, NOT_HERE, TOLERANCE, VERIFIED, first_of, last_started
from whet.authoring.review.check import HASH_SEEDS, request_for
from whet.authoring.review.isolation import run
from whet.authoring.review.observations import Event, Halted, Loaded, Rolled, Rows, Tried
from whet.authoring.review.probes import RIGHT
from whet.display.text import print_fact, print_rows
from whet.errors import ConfigError, RunError
from whet.system.console import SafeConsole
from whet.system.terminal import safe_text

GUESSABLE, FEWEST = 0.75, 8  # share of tasks with one answer, of so many tasks or more
SHOWN = 5  # ids of a line


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with the rewards of some tasks."""

    what: str
    example_ids: list[Any]
    reward: float  # of the first of them
    full: float


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found: `verified` of `tasks` have been shown right; `untried` says why others could not be tried."""

    environment: str
    tasks: int
    verified: int
    faults: list[Fault]
    untried: dict[str, list[Any]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify_environment(
    environment: str, env_args: Mapping[str, Any], *, tasks: int, timeout_s: float, sandbox: bool
) -> Verified:
    """Attempt tasks of an environment with their own answers and with answers without merit.

    Args:
        environment: An id, or a path to a package or a module.
        env_args: Arguments of load_environment.
        tasks: Tasks from all over the held-out ones; -1 for all.
        timeout_s: Seconds for all of it.
        sandbox: Run the package's code in bubblewrap, without a network.

    Raises `WhetError` where it cannot be loaded or attempted, and where the time was too short.
    """
    if tasks == 0 or timeout_s <= 0:
        raise ConfigError(
            f"need at least one task (-1: all) and a time limit above 0 s, got {tasks} and {timeout_s:g}."
        )
    request, readable = request_for(environment, env_args, tasks)
    began = time.monotonic()
    ran = run("load", request, timeout_s=timeout_s, hash_seed=HASH_SEEDS[0], sandbox=sandbox, readable=readable)
    loaded, rows, halted = first_of(Loaded, ran.events), first_of(Rows, ran.events), first_of(Halted, ran.events)
    fault = loaded.error if loaded is not None else None
    if rows is not None and not any(isinstance(event, Tried) for event in ran.events):
        fault = next((split.error for split in (rows.eval, rows.train) if split and split.error), "there is no task")
    if fault or halted is not None:
        raise RunError(f"{environment}: {fault or (halted.error if halted else '')}. {ELSEWHERE}")
    if ran.ended is not None or loaded is None:
        at, seconds = last_started(ran.events), time.monotonic() - began
        raise RunError(
            f"{environment}: it stopped after {seconds:.0f} s at '{at}': {ran.ended}. Give it fewer tasks "
            "(-n), or more time (--timeout)."
        )
    return judge(environment, ran.events)


def judge(environment: str, events: Sequence[Event]) -> Verified:
    """What the rewards of all attempts say, task by task."""
    tried = {event.task: event for event in events if isinstance(event, Tried)}
    loaded = first_of(Loaded, events)
    possible = sum(weight for weight in loaded.weights.values() if weight > 0) if loaded is not None else 0.0
    own, others = defaultdict[int, list[Rolled]](list), defaultdict[int, list[Rolled]](list)
    for event in events:
        if isinstance(event, Rolled):
            (own if event.probe.startswith(RIGHT) else others)[event.task].append(event)
    best = {task: max((one.reward or 0.0 for one in own[task]), default=0.0) for task in tried}
    faults = defaultdict[str, list[tuple[Any, float, float]]](list)
    untried = defaultdict[str, list[Any]](list)
    verified = 0
    for member in dict.fromkeys(row.member for row in tried.values()):
        tasks = {task: row for task, row in tried.items() if row.member == member}
        full = max(best[task] for task in tasks)
        shown = full > 0 and full >= VERIFIED * min(possible, 1.0)
        bar = full if shown else possible
        for task, row in tasks.items():
            wrong = [one for one in others[task] if bar > 0 and (one.reward or 0.0) >= bar - TOLERANCE]
            for one in wrong:
                faults[one.probe].append((row.example_id, one.reward or 0.0, bar))
            why = _untried(own[task], others[task], shown)
            if why is not None:
                untried[why].append(row.example_id)
            elif best[task] < full - TOLERANCE:
                faults["its own answer, not in full"].append((row.example_id, best[task], bar))
            else:
                verified += not wrong
        if shown and (guessed := _guessable(list(tasks.values()))):
            faults["one answer for most tasks"] += [(one, full, full) for one in guessed]
    listed = [Fault(what, [one for one, _, _ in hit], hit[0][1], hit[0][2]) for what, hit in faults.items()]
    return Verified(environment, len(tried), verified, listed, dict(untried))


def _untried(own: Sequence[Rolled], others: Sequence[Rolled], shown: bool) -> str | None:
    """Why nothing is known about the own answer of a task."""
    failed = [one for one in (*own, *others) if one.error in NOT_HERE]
    if failed:
        return f"its rollouts need something that is not here: {failed[0].message}"
    if not own:
        return "it has no answer that is text"
    if not shown:
        return "an answer alone earns no reward here, as where it takes several turns or tools, or in no form known"
    return None


def _guessable(tried: Sequence[Tried]) -> list[Any]:
    """The tasks of an answer that is right nearly always, so that it need not be found."""
    answers = Counter(row.answer for row in tried if row.answer).most_common(1)
    if len(tried) < FEWEST or not answers or answers[0][1] < GUESSABLE * len(tried):
        return []
    return [row.example_id for row in tried if row.answer == answers[0][0]]


def print_verified(result: Verified, console: Console | None = None) -> None:
    """A table of what is wrong, what could not be tried, and how many tasks are as they should be."""
    console = console or SafeConsole()
    if result.faults:
        rows = [
            {
                "rewarded": safe_text(fault.what, 60),
                "tasks": str(len(fault.example_ids)),
                "reward": f"{fault.reward:.2f} of {fault.full:.2f}",
                "examples": _ids(fault.example_ids),
            }
            for fault in result.faults
        ]
        print_rows(rows, console, {"tasks", "reward"})
    for why, ids in result.untried.items():
        print_fact("untried", f"{len(ids)} tasks ({_ids(ids)}): {safe_text(why, 300)}", console)
    print_fact("verified", f"{result.verified} of {result.tasks} tasks of {safe_text(result.environment)}", console)


def _ids(ids: Sequence[Any]) -> str:
    return ", ".join(safe_text(one, 30) for one in ids[:SHOWN]) + (", ..." if len(ids) > SHOWN else "")
