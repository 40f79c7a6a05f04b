"""Commands as a person meets them: on a real pseudo-terminal, keys typed, the window resized, the screen read.

    terminal = terminals.open(["whet", "eval", "run", "arithmetic"], columns=80, rows=24)
    terminal.wait_for("15/15")
    terminal.send(KEYS["right"])
    assert "reverse-text" in terminal.text()
    terminal.send(CTRL_C)
    assert terminal.wait() == 130

`terminals` is the fixture of `conftest.py`, which closes what a test opened. The command leads a session of its own
whose controlling terminal this is, so Ctrl-C and a resize reach it through the kernel, as they do from a window.
(Ctrl-Z needs a shell that goes on: open `bash --norc -i` and type the command.) Waiting is reading until the screen
shows something: nothing sleeps, and the deadline is only for what would hang.

`whet`, and Python files, start warm (`warm.py`): forked from a process that has imported what they need. `fresh=True`
starts the program itself instead, with its console script and its imports.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte

DEADLINE = 90.0
"""Seconds after which what was waited for will not come; nothing that passes takes as long, even on a busy machine."""

CTRL_C, CTRL_Z, ENTER, ESCAPE, TAB = "\x03", "\x1a", "\r", "\x1b", "\t"
KEYS = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "page_up": "\x1b[5~",
    "page_down": "\x1b[6~",
}

# What makes the terminal the controlling one of the session that `start_new_session` began.
LAUNCHER = """import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)  # also where the tests run in the background, which ignores it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])"""
# Sequences that pyte would take for text: CSI with a private mark that it does not know (keyboard protocols).
UNKNOWN_TO_PYTE = re.compile(rb"\x1b\[[<=>][0-9;:]*[A-Za-z]")
UNFINISHED = re.compile(rb"\x1b(\[[<=>]?[0-9;:]*)?\Z")


class Terminal:
    """One command on a pseudo-terminal, and what its screen shows.

    Args:
        command: Program and arguments; `whet` is the one beside the Python that runs the tests.
        columns, rows: Size of the window.
        env: Environment variables on top of the tests' own; None takes one away.
        cwd: Where the command is run.
        server: Starts `whet` and Python files warm (`warm.Warm`); without it they start from nothing.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        columns: int = 90,
        rows: int = 30,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        server: Any = None,
    ) -> None:
        self.raw = b""  # everything that was written
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._unfinished = b""
        self._closed = False  # by the command's side
        self._master, slave = pty.openpty()
        _set_size(slave, columns, rows)
        self.settings_before = self.settings()  # before the command, which may have changed them when a test looks
        wanted = _environment(env or {})
        warmed = _warmed(command)
        if server is not None and warmed is not None:
            self.process = server.start_in_terminal(warmed, slave, wanted, cwd)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, *map(str, _beside_python(command))],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=wanted,
                cwd=cwd,
                start_new_session=True,
            )
        os.close(slave)

    def send(self, keys: str) -> None:
        """Type: text, `KEYS[...]`, `CTRL_C`, `ENTER`."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Pull the window to another size; the command is told (SIGWINCH)."""
        self.screen.resize(rows, columns)
        _set_size(self._master, columns, rows)

    def lines(self) -> list[str]:
        """The screen now, with what has been written so far; trailing blanks left out."""
        while self._read(0):
            pass
        return [line.rstrip() for line in self.screen.display]

    def text(self) -> str:
        """The screen now, as one string."""
        return "\n".join(self.lines())

    def wait_for(self, wanted: str | re.Pattern[str] | Callable[[list[str]], bool], seconds: float = DEADLINE) -> str:
        """The screen once it shows `wanted`: text, a pattern, or what a function of its lines says is so.

        Raises `AssertionError` with the screen where it does not come, or the command ends without it.
        """
        deadline = time.monotonic() + seconds
        while True:
            lines = self.lines()
            if _shows(lines, wanted):
                return "\n".join(lines)
            if self._closed or not self._read(deadline - time.monotonic()):
                why = "the command has ended" if self._closed else f"not within {seconds:g} s"
                raise AssertionError(f"the screen never showed {wanted!r} ({why}):\n" + "\n".join(lines))

    def wait(self, seconds: float = DEADLINE) -> int:
        """Read until the command has closed the terminal; its exit code."""
        deadline = time.monotonic() + seconds
        while not self._closed:
            if not self._read(deadline - time.monotonic()) and not self._closed:
                raise AssertionError(f"the command did not end within {seconds:g} s:\n{self.text()}")
        return self.process.wait(timeout=seconds)

    def hang_up(self) -> None:
        """Close the window: the kernel sends SIGHUP, and nothing can be written any more."""
        os.close(self._master)
        self._master = -1

    def settings(self) -> list[object]:
        """The terminal's settings (`termios`): echo, line mode, signals. Compare before and after."""
        return termios.tcgetattr(self._master)

    def close(self) -> None:
        """End the command, whatever it is doing, and give the terminal back."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _read(self, seconds: float) -> bool:
        """Take in what comes within `seconds`; False where nothing does, or the other side has closed."""
        if self._closed or not select.select([self._master], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side has closed
            data = b""
        if not data:
            self._closed = True
            return False
        self.raw += data
        data = UNKNOWN_TO_PYTE.sub(b"", self._unfinished + data)
        cut = UNFINISHED.search(data)
        self._unfinished = data[cut.start() :] if cut else b""
        self._stream.feed(data[: cut.start()] if cut else data)
        return True


class Terminals:
    """Opens terminals, and closes them all in the end."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._open: list[Terminal] = []

    def open(self, command: Sequence[str | Path], *, fresh: bool = False, **options: object) -> Terminal:
        """A `Terminal` with these options; its command starts from nothing where it is to be `fresh`."""
        terminal = Terminal(command, server=None if fresh else self._server, **options)  # type: ignore[arg-type]
        self._open.append(terminal)
        return terminal

    def close(self) -> None:
        for terminal in self._open:
            terminal.close()


def _shows(lines: list[str], wanted: str | re.Pattern[str] | Callable[[list[str]], bool]) -> bool:
    if isinstance(wanted, str):
        return wanted in "\n".join(lines)
    if isinstance(wanted, re.Pattern):
        return wanted.search("\n".join(lines)) is not None
    return wanted(lines)


def _warmed(command: Sequence[str | Path]) -> list[str | Path] | None:
    """The command as a warm server starts it; None for one that it cannot."""
    if command[0] == "whet":
        return [*command]
    is_file = command[0] == sys.executable and len(command) > 1 and str(command[1]).endswith(".py")
    return [*command[1:]] if is_file else None


def _beside_python(command: Sequence[str | Path]) -> list[str | Path]:
    program = Path(sys.executable).parent / command[0]
    return [program if program.exists() else command[0], *command[1:]]


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    taken = dict.fromkeys(("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"))
    wanted = {**os.environ, **taken, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
