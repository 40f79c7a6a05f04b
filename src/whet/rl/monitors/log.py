"""`logs/run.log`: the plain lines of a run, and the warnings of everything in its processes, with the time of each.

    2026-11-21T17:40:02+0000 INFO step 12/100  reward 0.512  4,100 tokens/s  0.42 s a step  0:37 left
    2026-11-21T17:40:03+0000 WARNING whet.clients.providers.openai_chat: the endpoint is busy, trying again in 2 s
    2026-11-21T17:40:04+0000 WARNING torch.distributed (learner): ...

Warnings are records of loggers from that level up, and Python's own (`py.warnings`). At 10 MB a new file is begun;
the three before it are kept as run.log.1 to run.log.3. Known secrets are taken out, and nothing in it can move or
colour a terminal. `records/log.py` reads it, also while it grows.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from whet.display.live import Output
from whet.records.log import KEPT_FILES, LOG
from whet.rl.monitors.console import ConsoleMonitor
from whet.rl.supervision.child_log import CHILD, ChildLog, deaf_ends, log_warning
from whet.system.console import SafeConsole
from whet.system.redaction import Redactor
from whet.system.terminal import safe_lines

MOST_BYTES = 10_000_000
WIDTH = 160


class LogMonitor(ConsoleMonitor):
    """What the terminal of a run shows where it is no terminal, written to the log."""

    def __init__(self, lines: LineWriter) -> None:
        console = SafeConsole(file=lines, width=WIDTH, force_terminal=False, color_system=None)
        super().__init__(Output(console))


@contextmanager
def run_log(directory: Path, redactor: Redactor, children: Sequence[ChildLog] = ()) -> Iterator[LogMonitor]:
    """The log in `directory`, open until the block ends, `children` included. Raises `OSError` if it cannot be made."""
    directory.mkdir(parents=True, exist_ok=True)
    handler = _Handler(directory / LOG)
    handler.setFormatter(_Formatter(redactor))
    handler.addFilter(_from_elsewhere)
    loggers = deaf_ends()
    with ExitStack() as stack:
        stack.callback(handler.close)
        for logger in loggers:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        stack.enter_context(_python_warnings())
        for child in children:
            stack.enter_context(child.forwarded_to(handler.handle))
        yield LogMonitor(LineWriter(handler))


@contextmanager
def _python_warnings() -> Iterator[None]:
    """Those of `warnings.warn` are logged."""
    before, warnings.showwarning = warnings.showwarning, log_warning
    try:
        yield
    finally:
        if warnings.showwarning is log_warning:
            warnings.showwarning = before


class LineWriter(io.StringIO):
    """A text file whose lines become records of a handler."""

    def __init__(self, handler: _Handler) -> None:
        super().__init__()  # only to be a text file: nothing is kept in memory
        self._handler = handler
        self._begun = ""

    def write(self, text: str) -> int:
        """Raises `OSError` where the log cannot be written."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._handler.handle(logging.LogRecord(LINES, logging.INFO, __file__, 0, line.rstrip(), None, None))
            if self._handler.error is not None:
                raise self._handler.error
        return len(text)


LINES = "whet.run.lines"
"""Name of the records that are lines of the run; only the log has them."""


class _Handler(RotatingFileHandler):
    error: OSError | None = None
    """Why the log cannot be written; nothing is tried after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=KEPT_FILES, encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        if self.error is not None:
            return
        try:
            if self.shouldRollover(record):
                self.doRollover()
            logging.FileHandler.emit(self, record)
        except OSError as error:
            self.error = error

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by `emit` inside its own handling of an error: a broken format is shown, a broken disk kept."""
        import sys

        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self.error = error
        else:
            super().handleError(record)


def _from_elsewhere(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name == LINES


class _Formatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
        self._redactor = redactor

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if record.name == LINES:
            return line
        child = getattr(record, CHILD, None)
        whose = record.name if child is None else f"{record.name} ({child})"
        return line.replace(record.message, f"{whose}: {record.message}", 1)

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(safe_lines(self._redactor.text(super().format(record).rstrip("\n"))))
