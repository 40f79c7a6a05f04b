"""What a process of a run logs and warns of, brought to the run's own process, and so into its log.

    child     any logger, warnings.warn ─▶ handler ─▶ queue, bounded ─▶ thread ─▶ pipe
    run       pipe ─▶ thread ─▶ the log, whose records say which child they are from

Logging never blocks. In the child a record is put in a queue; where that is full the record is counted and dropped,
and the next one to pass says how many were. Each child has a pipe of its own and is its only writer, so that one that
is killed in the middle of a record takes no lock with it: the run finds the end of the pipe. What comes before the log
is open waits in pipe and queue. Secrets are taken out where they are written down, in the run's own process.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import connection, util
from typing import Any, Protocol, TextIO

from whet.system.children import process_context

MOST_WAITING = 1000
"""Records that wait in the child, at most, and that are read when the log is about to be closed."""
LONGEST = 20_000
"""Characters of a message, and of the traceback with it."""
CHILD = "whet_child"
"""Attribute of a record from a child: the name of that process."""
FLUSH_S = 1.0
"""Seconds that a child which ends by itself waits for its last records to be read."""


Deliver = Callable[[logging.LogRecord], object]


class ForwardedLog(Protocol):
    """The log of a child, or of several."""

    def forwarded_to(self, deliver: Deliver) -> AbstractContextManager[None]: ...


class ChildLog:
    """The run's side of one child's log."""

    def __init__(self, process: str) -> None:
        """`process` is its name in the log: `learner`, `engine`."""
        self._ours, self.theirs = process_context().Pipe(duplex=False)  # `theirs` is given to `tell_parent`
        self._woken, self._wake = process_context().Pipe(duplex=False)
        self._process = process
        self._thread: threading.Thread | None = None
        self._closed = False

    def handed_over(self) -> None:
        """The child has its end: ours of it is closed, or the pipe would outlive the child."""
        self.theirs.close()

    @contextmanager
    def forwarded_to(self, deliver: Deliver) -> Iterator[None]:
        """`deliver` is given every record, from a thread, until the block ends or the child does."""
        self.listen(deliver)
        try:
            yield
        finally:
            self.stop_listening()

    def listen(self, deliver: Deliver) -> None:
        self._thread = threading.Thread(
            target=self._listen, args=(deliver,), name=f"whet log of the {self._process}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Once the child has ended. Records that were not delivered go to standard error."""
        if self._closed:
            return
        self._closed = True
        self.handed_over()
        self.stop_listening()
        self._deliver_rest(_on_standard_error)
        for end in (self._ours, self._woken, self._wake):
            end.close()

    def stop_listening(self) -> None:
        if self._thread is not None:
            self._wake.send_bytes(b".")
            self._thread.join(timeout=FLUSH_S)
            self._thread = None

    def _listen(self, deliver: Deliver) -> None:
        """The thread."""
        while self._woken not in connection.wait([self._ours, self._woken]):
            if not self._deliver_next(deliver):
                return
        self._deliver_rest(deliver)

    def _deliver_rest(self, deliver: Deliver) -> None:
        """What is there already, not what comes later."""
        for _ in range(MOST_WAITING):
            if not (self._ours.poll() and self._deliver_next(deliver)):
                return

    def _deliver_next(self, deliver: Deliver) -> bool:
        """Pass one record on; False at the end of the pipe, also in the middle of a record."""
        try:
            fields = json.loads(self._ours.recv_bytes())
        except (EOFError, OSError):
            return False
        deliver(logging.makeLogRecord({**fields, CHILD: self._process}))
        return True


class ChildLogs:
    """The logs of children that end and are started again, as one."""

    def __init__(self) -> None:
        self._logs: list[ChildLog] = []
        self._deliver: Deliver | None = None

    def add(self, process: str) -> ChildLog:
        """Of a child that is about to be started."""
        log = ChildLog(process)
        self._logs.append(log)
        if self._deliver is not None:
            log.listen(self._deliver)
        return log

    def close(self, log: ChildLog) -> None:
        """Once its child has ended. Closing it again does nothing."""
        if log in self._logs:
            self._logs.remove(log)
        log.close()

    @contextmanager
    def forwarded_to(self, deliver: Deliver) -> Iterator[None]:
        """As `ChildLog.forwarded_to`, also of children that are started within the block."""
        self._deliver = deliver
        for log in self._logs:
            log.listen(deliver)
        try:
            yield
        finally:
            self._deliver = None
            for log in self._logs:
                log.stop_listening()


def _on_standard_error(record: logging.LogRecord) -> None:
    if logging.lastResort is not None:
        logging.lastResort.handle(record)


def tell_parent(end: connection.Connection) -> ChildHandler:
    """In the child, before anything else: what is logged from now on, and Python's warnings, go to the run."""
    handler = ChildHandler(end)
    warnings.showwarning = log_warning
    handler.attach()
    return handler


class ChildHandler(logging.handlers.QueueHandler):
    """The child's side: takes warnings and worse."""

    def __init__(self, end: connection.Connection) -> None:
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        super().__init__(self._waiting)
        self.setLevel(logging.WARNING)
        self.end = end
        self.dropped = 0
        self._counting = threading.Lock()  # not the handler's own lock, which is held while it is closed
        self._thread = threading.Thread(target=self._send_all, name="whet log", daemon=True)
        self._thread.start()
        util.Finalize(None, self.close, exitpriority=0)  # a child of multiprocessing may end without `logging.shutdown`

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
                self.end.send_bytes(json.dumps(fields).encode())
                with self._counting:
                    dropped, self.dropped = self.dropped, 0
                if dropped:
                    lost = f"{dropped} further records came too fast and are not in this log"
                    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, lost, None, None)
                    self.end.send_bytes(json.dumps(_fields(record)).encode())


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
