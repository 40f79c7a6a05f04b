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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from whet.rl.learner.ranks.rank_group import RankBody, RankGroup, RankResponse, Standing
from whet.rl.supervision.child_log import ENDS_WITHIN_S, ChildHandler, ChildProcess
from whet.system.children import began, follow_parent, how_it_ended, is_suspended, kill, process_context

BEAT_S = 0.5
"""Seconds between two heartbeats of a rank."""
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(slots=True)
class _Rank:
    """The run's side of one rank."""

    calls: connection.Connection
    answers: queue.SimpleQueue[RankResponse]
    phase: str = "starting its process"
    phases: int = 1
    since: float = field(default_factory=time.monotonic)
    """When it named the phase."""
    beat: float = field(default_factory=time.monotonic)
    """When anything came from it last."""
    threads: list[threading.Thread] = field(default_factory=list)
    child: ChildProcess = field(init=False)

    def take(self, message: RankResponse | str | None) -> None:
        """What comes from it: an answer, the name of a phase, or a heartbeat (None)."""
        self.beat = time.monotonic()
        if isinstance(message, RankResponse):
            self.answers.put(message)
        elif message is not None:
            self.phase, self.since, self.phases = message, self.beat, self.phases + 1


class LocalRankGroup(RankGroup):
    """See `RankGroup`."""

    def __init__(self, devices: Sequence[str], directory: Path) -> None:
        """A rank for each of `devices` (`cpu`, `cuda:1`); `directory` is private to the run."""
        super().__init__(devices)
        self._directory = directory
        self._ranks: list[_Rank] = []
        self._starts = 0

    @property
    def pids(self) -> list[int]:
        return [rank.child.process.pid for rank in self._ranks]

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
        thread = threading.Thread(target=deliver, name=f"whet calls of rank {rank}", daemon=True)
        there.threads.append(thread)
        thread.start()

    def standing(self) -> list[Standing]:
        return [self._standing(number, rank) for number, rank in enumerate(self._ranks)]

    def kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.child.process.kill()
        for rank in ranks:
            rank.child.end()
            for thread in rank.threads:  # they see the end of their pipe
                thread.join(ENDS_WITHIN_S)
            rank.calls.close()
        self._meeting_point().unlink(missing_ok=True)

    def _meeting_point(self) -> Path:
        return self._directory / f"ranks-meet-{self._starts}"

    def _start_rank(self, number: int, pids: Any, model: Path, options: Mapping[str, Any]) -> None:
        their_calls, calls = process_context().Pipe(duplex=False)
        rank = _Rank(calls, self._answers)
        name = f"rank {number}" if self.size > 1 else "learner"
        arguments = (number, their_calls, pids, self._directory, model, options)
        rank.child = ChildProcess(name, self.log, _run, arguments, rank.take)
        self._ranks.append(rank)
        pid = rank.child.process.pid
        pids[2 * number : 2 * number + 2] = (pid, _began(pid))
        their_calls.close()

    def _standing(self, number: int, rank: _Rank) -> Standing:
        status, pid, now = rank.child.status(), rank.child.process.pid, time.monotonic()
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


def _run(
    parent: ChildHandler,
    number: int,
    calls: connection.Connection,
    pids: Any,
    directory: Path,
    model: Path,
    options: Mapping[str, Any],
) -> None:
    """The process of a rank."""
    follow_parent(partial(_outlived, directory, pids))
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = LOOPBACK

    def beat() -> None:
        with suppress(OSError):  # the run has ended
            while True:
                parent.send(None)
                time.sleep(BEAT_S)

    threading.Thread(target=beat, name="whet heartbeat", daemon=True).start()
    body = RankBody(number, parent.send)
    parent.send(body.make(model, options))
    parent.attach()
    gc.collect()
    gc.freeze()  # what is loaded stays: a collection that visits all of torch takes a third of a second
    with suppress(EOFError):  # the run has ended
        while True:
            verb, arguments = calls.recv()
            parent.send(body.call(verb, arguments))


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
