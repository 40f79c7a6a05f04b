"""Reads single keys from a terminal: no echo, no waiting for Enter; the settings are restored afterwards.

Ctrl-C, Ctrl-Z and Ctrl-\\ stay signals. Nothing is read, and no setting changed, while the process is in the background
of its terminal: the terminal then belongs to a shell, and the kernel would stop the process.
"""

from __future__ import annotations

import os
import re
import sys
import termios
from typing import Any

SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
}
"""What arrow keys send after an escape, in the normal and in the application mode."""
KEY = re.compile(r"\x1b(\[[0-9;?<=>]*[@-~]|O.)|[^\x1b]", re.DOTALL)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?<=>]*|O)?\Z")


class Keyboard:
    """The keys of the terminal at file descriptor `fd`, between `open` and `close`, which may alternate."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._before: list[Any] | None = None
        self._rest = ""

    @property
    def is_open(self) -> bool:
        return self._before is not None

    def open(self) -> None:
        """Switch to single keys. Raises OSError or `termios.error` if the terminal is gone."""
        if self._before is None:
            before = termios.tcgetattr(self.fd)
            changed = list(before)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            changed[6] = list(before[6])
            changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self.fd, termios.TCSADRAIN, changed)
            self._before = before

    def close(self) -> None:
        """Restore what `open` changed."""
        before, self._before = self._before, None
        # In the background the shell has already changed the settings for itself.
        if before is not None and in_foreground(self.fd):
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)

    def read(self) -> list[str]:
        """The keys pressed since, once the descriptor is readable: `left`, `right`, `up`, `down`, or a character.

        Raises EOFError where no more can come.
        """
        data = os.read(self.fd, 1024)
        if not data:
            raise EOFError
        text = self._rest + data.decode(errors="replace")
        cut = UNFINISHED.search(text)
        text, self._rest = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
        keys = []
        for match in KEY.finditer(text):
            key = match[0] if match[1] is None else SEQUENCES.get(match[1], "")
            if key:
                keys.append(key)
        return keys


def in_foreground(fd: int) -> bool:
    """Whether this process may use the terminal; true for a terminal without job control."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def find_keyboard() -> Keyboard | None:
    """Standard input, where it is a terminal."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return None
    return Keyboard(fd) if os.isatty(fd) else None
