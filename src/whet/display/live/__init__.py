"""A place in a terminal that is drawn again and again while something works, and keys that are read meanwhile.

What is drawn is for the rooms to decide; here is only how a terminal is used without breaking it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def live_console() -> Console | None:
    """Standard error, where a live view can be drawn on it and somebody looks.

    None where it is no terminal, or one that cannot move its cursor (TERM=dumb) or shows no Unicode, or one in whose
    background the process was started. NO_COLOR takes the colours away and leaves the rest.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    unicode = (console.encoding or "").lower().startswith("utf")
    if not (_is_terminal(console.file) and console.is_interactive and unicode):
        return None
    from whet.display.live.keyboard import in_foreground

    return console if in_foreground(console.file.fileno()) else None


def plain_console() -> Console:
    """Standard error for plain lines, whatever it is."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, force_terminal=False)


def _is_terminal(file: object) -> bool:
    """Whether it really is one: rich also believes FORCE_COLOR, which people set for log files."""
    try:
        return os.isatty(file.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
