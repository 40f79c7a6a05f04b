"""A child process of a run: its messages, and what it logs and warns of, come to the run's own process.

    child     any logger, warnings.warn ─▶ handler ─▶ queue, bounded ─▶ thread ─┐
              messages ─────────────────────────────────────────────────────────┴─▶ pipe
    run       pipe ─▶ thread ─┬─▶ messages
                              └─▶ the log, whose records say which child they are from

Logging never blocks. In the child a record is put in a queue; where that is full the record is counted and dropped,
and the log says how many were. Each child has a pipe of its own and is its only writer, so that one that
is killed in the middle of a record takes no lock with it: the run finds the end of the pipe. What comes before the log
is open waits for it. Secrets are taken out where they are written down, in the run's own process.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, util
from typing import Any, NamedTuple, TextIO

from whet.system.children import process_context

MOST_WAITING = 1000
"""Records that wait, at most, in the child, and in the run as long as its log is not open."""
LONGEST = 20_000
"""Characters of a message, and of the traceback with it."""
CHILD = "whet_child"
"""Attribute of a record from a child: the name of that process."""
FLUSH_S = 1.0
"""Seconds that a child which ends by itself waits for its last records to be sent, and the run to read what it sent."""


ENDS_WITHIN_S = 30.0
"""Seconds that a killed process may take to be gone."""
Deliver = Callable[[logging.LogRecord], object]


class ChildLog:
    """What children log, those that are started again included."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None
        self._waiting: deque[logging.LogRecord] = deque()
        self._dropped = 0
        self._lock = threading.Lock()

    def take(self, process: str, record: ChildRecord) -> None:
        """Of the child of this name in the log: `learner`, `engine`."""
        with self._lock:
            self._dropped += record.dropped
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(logging.makeLogRecord({**record.fields, CHILD: process}))
            else:
                self._dropped += 1
            if self._deliver is not None:
                self._deliver_waiting(self._deliver)

    @contextmanager
    def forwarded_to(self, deliver: Deliver) -> Iterator[None]:
        """`deliver` is given every record, those that have waited first, until the block ends."""
        with self._lock:
            self._deliver_waiting(deliver)
            self._deliver = deliver
        try:
            yield
        finally:
            with self._lock:
                self._deliver = None

    def close(self) -> None:
        """Records that were not delivered go to standard error."""
        if logging.lastResort is not None:
            with self._lock:
                self._deliver_waiting(logging.lastResort.handle)

    def _deliver_waiting(self, deliver: Deliver) -> None:
        while self._waiting:
            deliver(self._waiting.popleft())
        dropped, self._dropped = self._dropped, 0
        if dropped:
            lost = f"{dropped} further records came too fast and are not in this log"
            deliver(logging.LogRecord(__name__, logging.WARNING, __file__, 0, lost, None, None))


class ChildRecord(NamedTuple):
    """What a child sends for a record of its log."""

    fields: dict[str, Any]
    dropped: int
    """How many were dropped since the last one."""


class ChildProcess:
    """A child, from its start to its end."""

    def __init__(
        self,
        name: str,
        log: ChildLog,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        take: Callable[[Any], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it. There `target` is called with its side, a `ChildHandler`, and `arguments`.

        `take` receives its messages, and `on_end` is called when there will be no more, from a thread.
        """
        context = process_context()
        self._messages, theirs = context.Pipe(duplex=False)
        self.process: Any = context.Process(  # type: ignore[attr-defined]  # every context has it
            target=_run, args=(theirs, target, arguments), name=f"whet {name}", daemon=True
        )
        self.process.start()
        theirs.close()  # or the pipe would outlive the child

        def listen() -> None:
            try:
                while True:
                    message = self._messages.recv()
                    if isinstance(message, ChildRecord):
                        log.take(name, message)
                    else:
                        take(message)
            except (EOFError, OSError):  # also in the middle of a message
                return
            finally:
                on_end()

        self._thread = threading.Thread(target=listen, name=f"whet messages of the {name}", daemon=True)
        self._thread.start()

    def status(self) -> int | None:
        """Its exit status, once what it sent last was read; None while it runs."""
        status: int | None = self.process.exitcode
        if status is not None:
            self._thread.join(FLUSH_S)
        return status

    def end(self) -> None:
        """Kill it, whatever it does, and wait until it has ended."""
        self.process.kill()
        self.process.join(ENDS_WITHIN_S)
        self._thread.join(FLUSH_S)
        self._messages.close()


def _run(end: connection.Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The child: what is logged from now on, and Python's warnings, go to the run."""
    handler = ChildHandler(end)
    warnings.showwarning = log_warning
    handler.attach()
    target(handler, *arguments)


class ChildHandler(logging.handlers.QueueHandler):
    """The child's side: sends messages, and of its log warnings and worse."""

    def __init__(self, end: connection.Connection) -> None:
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        super().__init__(self._waiting)
        self.setLevel(logging.WARNING)
        self.end = end
        self.dropped = 0
        self._counting = threading.Lock()  # not the handler's own lock, which is held while it is closed
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._send_all, name="whet log", daemon=True)
        self._thread.start()
        util.Finalize(None, self.close, exitpriority=0)  # a child of multiprocessing may end without `logging.shutdown`

    def send(self, message: Any) -> None:
        """To the run; from any thread."""
        with self._sending:
            self.end.send(message)

    def attach(self) -> None:
        """Add this handler to every logger. Called again once libraries are loaded: some do not propagate records."""
        for logger in deaf_ends():
            if self not in logger.handlers:
                logger.addHandler(self)

    def prepare(self, record: logging.LogRecord) -> dict[str, Any]:
        return _fields(record)

    def enqueue(self, record: Any) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            with self._counting:
                self.dropped += 1

    def close(self) -> None:
        """Called when the process ends by itself: what waits is sent."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=FLUSH_S)
            self._thread.join(timeout=FLUSH_S)
        super().close()

    def _send_all(self) -> None:
        """The thread. It ends when the pipe is closed at the other end."""
        with suppress(OSError):
            while (fields := self._waiting.get()) is not None:
                with self._counting:
                    dropped, self.dropped = self.dropped, 0
                self.send(ChildRecord(fields, dropped))


def log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What `warnings.showwarning` is while Python's warnings are logged: as `logging.captureWarnings` does it, but
    without its memory of whether it has, which `warnings.catch_warnings` leaves wrong.
    """
    text = warnings.formatwarning(message, category, filename, lineno, line)
    if file is not None:
        file.write(text)
        return
    logging.getLogger("py.warnings").warning("%s", text)


def deaf_ends() -> list[logging.Logger]:
    """Loggers at which records end: the root, and those that pass nothing on. Each record reaches exactly one."""
    named = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    return [logging.root, *(logger for logger in named if not logger.propagate)]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """A record as plain data: its message made up, its traceback as text."""
    trace = record.exc_text
    if trace is None and record.exc_info and record.exc_info[0] is not None:
        trace = logging.Formatter().formatException(record.exc_info)
    return {
        "name": record.name,
        "levelno": record.levelno,
        "levelname": record.levelname,
        "created": record.created,
        "msecs": record.msecs,
        "msg": _cut(record.getMessage()),
        "exc_text": None if trace is None else _cut(trace, keep_end=True),
        "stack_info": None if record.stack_info is None else _cut(record.stack_info),
    }


def _cut(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= LONGEST:
        return text
    return f"…{text[-LONGEST:]}" if keep_end else f"{text[:LONGEST]}…"
