"""`LocalRankGroup`: one process a rank, on this machine.

Each rank has a pipe for calls, and one for answers and for what it does. A thread of the rank sends a heartbeat there,
which distinguishes one that is suspended from one that waits in a collective. The ranks meet through a file in the
run's private directory and talk over the loopback interface alone. They end with the run's process, however that ends,
and leave Ctrl-C to it. Where it could not do so itself, they remove its private directory then, and end ranks that are
suspended.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from whet.rl.learner.ranks.rank_group import RankBody, RankGroup, RankResponse, Standing
from whet.rl.supervision.child_log import ChildLog, ChildLogs, Deliver, tell_parent
from whet.system.children import began, follow_parent, how_it_ended, is_suspended, kill, process_context

BEAT_S = 0.5
"""Seconds between two heartbeats of a rank."""
ENDS_WITHIN_S = 30.0
"""Seconds that a killed process, and the threads that talk to it, may take to be gone."""
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
READ_WITHIN_S = 1.0
"""Seconds for reading what a process that has ended sent last."""


@dataclass(slots=True)
class _Rank:
    """The run's side of one rank."""

    process: Any
    calls: connection.Connection
    answers: connection.Connection
    log: ChildLog
    phase: str
    since: float
    """When it named the phase."""
    beat: float
    """When anything came from it last."""
    phases: int = 1
    listener: threading.Thread | None = None
    threads: list[threading.Thread] = field(default_factory=list)


class LocalRankGroup(RankGroup):
    """See `RankGroup`."""

    def __init__(self, devices: Sequence[str], directory: Path) -> None:
        """A rank for each of `devices` (`cpu`, `cuda:1`); `directory` is private to the run."""
        super().__init__(devices)
        self._directory = directory
        self._ranks: list[_Rank] = []
        self._logs = ChildLogs()
        self._starts = 0

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks]

    def start(self, model: Path, options: Mapping[str, Any]) -> None:
        assert not self._ranks, "the ranks run already"
        self._starts += 1
        self._answers = queue.SimpleQueue()
        meeting, pids = self._meeting_point(), process_context().RawArray(ctypes.c_longlong, 2 * self.size)
        shared = {"world_size": self.size, "init_method": f"file://{meeting}"} if self.size > 1 else {}
        for number, device in enumerate(self._devices):
            computation = options["computation"].model_copy(update={"device": device})
            self._start_rank(number, pids, model, {**options, **shared, "computation": computation})

    def send(self, rank: int, verb: str, arguments: tuple[Any, ...]) -> None:
        if not (ranks := self._ranks):
            return  # they were ended meanwhile
        there, data = ranks[rank], bytes(ForkingPickler.dumps((verb, arguments)))

        def deliver() -> None:
            """In a thread: a pipe is full as long as the rank does not read, and a suspended one never does."""
            with suppress(OSError):  # the rank has ended, which `standing` says
                there.calls.send_bytes(data)

        there.threads = [thread for thread in there.threads if thread.is_alive()]
        self._in_thread(there, deliver, "calls")

    def standing(self) -> list[Standing]:
        return [self._standing(number, rank) for number, rank in enumerate(self._ranks)]

    def kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.join(ENDS_WITHIN_S)
            for thread in rank.threads:  # they see the end of their pipes
                thread.join(ENDS_WITHIN_S)
            rank.calls.close()
            rank.answers.close()
            self._logs.close(rank.log)
        self._meeting_point().unlink(missing_ok=True)

    def forwarded_to(self, deliver: Deliver) -> AbstractContextManager[None]:
        return self._logs.forwarded_to(deliver)

    def _meeting_point(self) -> Path:
        return self._directory / f"ranks-meet-{self._starts}"

    def _start_rank(self, number: int, pids: Any, model: Path, options: Mapping[str, Any]) -> None:
        context = process_context()
        their_calls, calls = context.Pipe(duplex=False)
        answers, their_answers = context.Pipe(duplex=False)
        log = self._logs.add(f"rank {number}" if self.size > 1 else "learner")
        process = context.Process(  # type: ignore[attr-defined]  # every context has it
            target=_run,
            args=(number, their_calls, their_answers, log.theirs, pids, self._directory, model, options),
            name=f"whet learner rank {number}",
            daemon=True,
        )
        process.start()
        pids[2 * number : 2 * number + 2] = (process.pid, _began(process.pid))
        their_calls.close()
        their_answers.close()
        log.handed_over()
        now = time.monotonic()
        rank = _Rank(process, calls, answers, log, "starting its process", since=now, beat=now)
        self._ranks.append(rank)
        rank.listener = self._in_thread(rank, partial(_listen, rank, self._answers), "answers")

    def _in_thread(self, rank: _Rank, work: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"whet {what} of {rank.process.name}", daemon=True)
        rank.threads.append(thread)
        thread.start()
        return thread

    def _standing(self, number: int, rank: _Rank) -> Standing:
        status, pid = rank.process.exitcode, rank.process.pid
        if status is not None:
            assert rank.listener is not None
            rank.listener.join(READ_WITHIN_S)  # what it was doing when it ended has been read then
        now = time.monotonic()
        return Standing(
            number,
            f"process {pid}",
            self._devices[number],
            rank.phase,
            rank.phases,
            phase_s=max(0.0, now - rank.since),
            silent_s=max(0.0, now - rank.beat),
            suspended=status is None and is_suspended(pid),
            ended=None if status is None else how_it_ended(status),
            alone=self.size == 1,
        )


def _listen(rank: _Rank, into: queue.SimpleQueue[RankResponse]) -> None:
    """The thread of the run that takes what comes from a rank: answers, the names of phases, and heartbeats (None)."""
    with suppress(EOFError, OSError):
        while True:
            message = rank.answers.recv()
            rank.beat = time.monotonic()
            if isinstance(message, RankResponse):
                into.put(message)
            elif message is not None:
                rank.phase, rank.since, rank.phases = message, rank.beat, rank.phases + 1


def _run(
    number: int,
    calls: connection.Connection,
    answers: connection.Connection,
    log: connection.Connection,
    pids: Any,
    directory: Path,
    model: Path,
    options: Mapping[str, Any],
) -> None:
    """The process of a rank."""
    follow_parent(partial(_outlived, directory, pids))
    hears = tell_parent(log)
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = LOOPBACK
    one_at_a_time = threading.Lock()

    def send(message: RankResponse | str | None) -> None:
        with one_at_a_time:
            answers.send(message)

    def beat() -> None:
        while True:
            send(None)
            time.sleep(BEAT_S)

    threading.Thread(target=beat, name="whet heartbeat", daemon=True).start()
    body = RankBody(number, send)
    send(body.make(model, options))
    hears.attach()
    gc.collect()
    gc.freeze()  # what is loaded stays: a collection that visits all of torch takes a third of a second
    with suppress(EOFError):  # the run has ended
        while True:
            verb, arguments = calls.recv()
            send(body.call(verb, arguments))


def _outlived(directory: Path, pids: Any) -> None:
    """The run has ended before its ranks. One that is suspended does not notice: the others end it."""
    shutil.rmtree(directory, ignore_errors=True)
    for pid, began_at in zip(pids[0::2], pids[1::2], strict=True):
        if pid not in (0, os.getpid()) and began_at and _began(pid) == began_at:
            kill(pid)


def _began(pid: int) -> int:
    """When the process began, to tell it from a later one of the same number; 0 where that is no number here."""
    began_at = began(pid) or ""
    return int(began_at) if began_at.isdigit() else 0
