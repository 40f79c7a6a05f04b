"""The watchdog at work: a thread that looks at every wait, and a process that notices when the event loop stands still.

    thread      once a second: waits that take too long are reported, acted on, given up (`watchdog.py` decides)
    process     hears a byte from the event loop once a second. Hears it none for long, it sends the run a signal, and
                the handler, which runs inside the code that keeps the loop, says which code that is and whose, and
                raises `RolloutTimeoutError` there once its deadline has passed

The process is needed because code that holds Python's lock (a regular expression without end) keeps every thread of
the run from running, but not a signal from outside. A run that is not on the main thread cannot take signals: nothing
interrupts code that keeps its loop.

`WatchedEngine`: an engine that is watched: how long requests have waited without any answer, and how much it has
sampled, in all and for each running rollout.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

from whet.errors import RolloutTimeoutError, TrainingError
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WrappedEngine
from whet.rl.data.metrics import Lengths
from whet.rl.supervision.watchdog import ENGINE, STALLED, Stall, WaitTable, WatchdogConfig, WatchedWait, seconds
from whet.system.children import Listener
from whet.system.signals import environment_code, line_of

SIGNAL = signal.SIGUSR2
LISTENER = """
import os, select, signal, sys
parent, number, patience, interval = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
wait = patience
while True:
    if select.select([0], [], [], wait)[0]:
        if not os.read(0, 4096):
            break
        wait = patience
    elif os.getppid() == parent:
        os.kill(parent, number)
        wait = interval
"""
MOST_SWALLOWED = 3
_current: ContextVar[WatchedWait | None] = ContextVar("whet_current_wait", default=None)

Say = Callable[[str], None]


@contextmanager
def in_context_of(wait: WatchedWait) -> Iterator[None]:
    """Tasks that are begun within belong to this wait."""
    token = _current.set(wait)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(slots=True)
class Watchdog:
    """Keeps the waits of one run. Off duty (before `on_duty`, or for ever in tests) it only measures."""

    config: WatchdogConfig = field(default_factory=WatchdogConfig)
    clock: Callable[[], float] = time.monotonic
    failure: str | None = None  # why it stopped the run
    on_tick: Callable[[], object] = lambda: None  # called from its thread about once a second
    waits: WaitTable = field(init=False)
    _stop: Callable[[], None] | None = None
    _say: Say | None = None
    _last_resort: Say | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _beat: float = 0.0
    _reported_beat: float | None = None  # the beat after which code was said to keep the event loop
    _interrupted: FrameType | None = None  # the call that was interrupted last
    _swallowed: int = 0  # how often it has gone on regardless
    _gave_up: float | None = None
    _off_duty: threading.Event = field(default_factory=threading.Event)
    _listener: Listener | None = None

    def __post_init__(self) -> None:
        self.waits = WaitTable(self.config)

    @contextmanager
    def waiting(
        self,
        kind: str,
        who: str,
        awaited: str,
        *,
        act: Callable[[str], None] | None = None,
        blocks: bool = False,
        detail: Callable[[], str] | None = None,
    ) -> Iterator[WatchedWait]:
        """What happens within is one wait. It counts for what is usual unless it raises.

        Args:
            kind: waits of one kind share what is usual and the deadline.
            who: who waits, as the subject of a sentence.
            awaited: what is waited for.
            act: called on the event loop, once the deadline has passed, with what is wrong.
            blocks: whet's own work, which may keep the event loop from turning.
            detail: more about `awaited`, called when the wait is reported.
        """
        wait = self.waits.begin(kind, who, awaited, self.clock(), act, blocks=blocks, detail=detail)
        usual = False
        try:
            with in_context_of(wait):
                yield wait
            usual = wait.verdict != "acted on"
        finally:
            self.waits.end(wait, self.clock(), usual=usual)

    def stop(self, message: str) -> None:
        """End the run with a checkpoint; the outcome is `failed` with this message."""
        self.failure = self.failure or message
        if self._stop is not None:
            self._stop()

    def give_up(self, message: str) -> None:
        """From any thread: the run cannot continue. It is stopped; where that takes too long, its process is ended."""
        self._gave_up = self._gave_up or self.clock()
        self.failure = self.failure or message
        self._report(message)
        self._on_the_loop(self.stop, message)

    @contextmanager
    def on_duty(self, *, stop: Callable[[], None], say: Say, last_resort: Say) -> Iterator[None]:
        """Watch from the running event loop's thread until the block ends.

        Args:
            stop: makes the run save and stop; called on the event loop.
            say: a line for people.
            last_resort: called with a message where nothing else has ended the run; it should end the process.
        """
        self._stop, self._say, self._last_resort = stop, say, last_resort
        self._loop = asyncio.get_running_loop()
        self._off_duty.clear()
        takes_signals = threading.current_thread() is threading.main_thread()
        before = signal.signal(SIGNAL, self._interrupt) if takes_signals else None
        if takes_signals:
            patience, interval = self.config.report_seconds, min(5.0, self.config.report_seconds)
            self._listener = Listener(LISTENER, int(SIGNAL), patience, interval)
        self._turn()
        thread = threading.Thread(target=self._watch, name="whet watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._off_duty.set()
            thread.join(timeout=5)
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if takes_signals:
                signal.signal(SIGNAL, before)
            self._loop = None

    @property
    def _tick(self) -> float:
        return min(1.0, self.config.report_seconds / 4)

    def _turn(self) -> None:
        """The event loop turns."""
        now = self.clock()
        stood_still = now - self._beat
        if self._beat and stood_still > 5 * self._tick:
            self.waits.forgive(stood_still)  # others could not progress meanwhile
        self._beat = now
        if self._listener is not None:
            self._listener.tell(b".")  # lost where it was killed: code that holds the lock goes unseen
        if self._loop is not None and not self._off_duty.is_set():
            self._loop.call_later(self._tick, self._turn)

    def _stands_still(self, now: float) -> bool:
        return now - self._beat > 5 * self._tick

    def _watch(self) -> None:
        """The thread."""
        last = self.clock()
        while not self._off_duty.wait(self._tick):
            now = self.clock()
            if now - last > self._tick + self.config.report_seconds:
                self.waits.forgive(now - last, everything=True)  # the process was suspended, or a thread had the lock
            last = now
            self.on_tick()
            for stall in self.waits.overdue(now, turned=self._beat):
                self._on_stall(stall)
            if self._gave_up is not None and now - self._gave_up > self.config.act_seconds:
                self._end_the_process(self.failure or "nothing answered")

    def _on_stall(self, stall: Stall) -> None:
        line = stall.describe()
        if stall.verdict == "reported":
            self._report(f"{STALLED}{line}")
            return
        if stall.verdict == "acted on" and stall.wait.act is not None:
            self._report(f"{STALLED}{line}; {'it is replaced' if stall.wait.replaceable else 'the run stops'}")
            self._on_the_loop(stall.wait.act, line)
        elif self._gave_up is None:
            self.give_up(f"{line}, also after it was stopped")
            if self._listener is not None and self._stands_still(self.clock()):  # signals are taken, and needed
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler: runs on the event loop's thread, inside whatever keeps it, with that code's context."""
        now = self.clock()
        wait, stood_still = _current.get(), now - self._beat
        if self._gave_up is not None:
            if self._stands_still(now):  # else the loop turns, and what is reported there is seen
                raise TrainingError(self.failure or "nothing answered")
            return
        if wait is None or not wait.runs_rollouts or stood_still < self.config.report_seconds:
            return
        code = environment_code(frame) or frame
        line = f"{wait.awaited} has kept the event loop for {seconds(stood_still)}: it is in {line_of(code)}"
        if self._reported_beat != self._beat:
            self._reported_beat = self._beat
            if self._say is not None:
                self._say(f"{STALLED}{line}")
        if stood_still < self.waits.deadline(wait.kind):
            return
        # The same call as last time has caught what was raised in it; another one is the group's next rollout.
        self._swallowed = self._swallowed + 1 if code is self._interrupted else 0
        self._interrupted = code
        if self._swallowed >= MOST_SWALLOWED:
            self._end_the_process(f"{line} and cannot be interrupted")
        if wait.replaceable and wait.act is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(wait.act, line)
        raise RolloutTimeoutError(line)

    def _report(self, line: str) -> None:
        """From the thread. Monitors belong to the event loop; while it stands still nothing else uses them."""
        assert self._say is not None
        if self._stands_still(self.clock()):
            self._say(line)
        else:
            self._on_the_loop(self._say, line)

    def _on_the_loop(self, call: Callable[[str], None], line: str) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has closed meanwhile: the run is over
                self._loop.call_soon_threadsafe(call, line)

    def _end_the_process(self, message: str) -> None:
        if self._last_resort is not None:
            self._last_resort(message)


class WatchedEngine(WrappedEngine):
    """Another engine, as it is. One wait spans from a request, or the answer before, to the next answer."""

    def __init__(self, engine: Engine, watchdog: Watchdog, lengths: Lengths | None = None) -> None:
        super().__init__(engine)
        self.watchdog, self.lengths = watchdog, lengths or Lengths()
        self.tokens = 0  # sampled since it was made
        self._asking = 0
        self._wait: WatchedWait | None = None

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        self._asking += 1
        wait = self._wait or self._begin()
        turn, count = self.lengths.ask(request.rollout_key, request.params.max_tokens), None
        try:
            with in_context_of(wait):  # a task that the engine starts for itself is not the rollout's
                sample = await super().sample(request, on_tokens=on_tokens)
            self.tokens += (count := len(sample.ids))
            self._end(answered=True)
            return sample
        finally:
            self.lengths.end(turn, count)
            self._asking -= 1
            if not self._asking:
                self._end(answered=False)
            elif self._wait is None:
                self._begin()

    def _begin(self) -> WatchedWait:
        dog = self.watchdog
        self._wait = dog.waits.begin(
            ENGINE, "every rollout", "an answer of the engine", dog.clock(), dog.stop, detail=self._describe
        )
        return self._wait

    def _end(self, *, answered: bool) -> None:
        if self._wait is not None:
            self.watchdog.waits.end(self._wait, self.watchdog.clock(), usual=answered)
            self._wait = None

    def _describe(self) -> str:
        trouble = self.waiting_for()
        return f"{self._asking} requests are waiting{f'; {trouble}' if trouble else ''}"
