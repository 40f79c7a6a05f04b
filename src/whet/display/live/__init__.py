"""A region of a terminal that is redrawn while a command works, and the keys pressed meanwhile.

The rooms above decide what is drawn; this package uses the terminal without leaving it in a broken state.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def live_console(*, stderr: bool = True) -> Console | None:
    """Standard error (or output), if a live view can be drawn on it and the process is in the foreground.

    None if it is no terminal, if the terminal cannot move its cursor (TERM=dumb) or show Unicode, or if the process was
    started in its background. NO_COLOR removes the colours only.
    """
    from whet.system.console import SafeConsole

    console = SafeConsole(stderr=stderr, highlight=False)
    unicode = (console.encoding or "").lower().startswith("utf")
    if not (_is_terminal(console.file) and console.is_interactive and unicode):
        return None
    from whet.display.live.keyboard import in_foreground

    return console if in_foreground(console.file.fileno()) else None


def plain_console(*, stderr: bool = True) -> Console:
    """Standard error (or output) for plain lines, whatever it is."""
    from whet.system.console import SafeConsole

    return SafeConsole(stderr=stderr, highlight=False, force_terminal=False)


def _is_terminal(file: object) -> bool:
    """Whether it really is one: rich also believes FORCE_COLOR, which people set for log files."""
    try:
        return os.isatty(file.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
