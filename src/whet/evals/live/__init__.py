"""What a person sees of evaluations while they run: a live view in a terminal, plain lines elsewhere.

It goes to standard error, so that a result on standard output can be piped and redirected.
"""

from __future__ import annotations

import os

from whet.evals.observer import EvalObserver, Unwatched


def open_view(*, quiet: bool = False) -> EvalObserver:
    """Who watches a session: nobody where `quiet`, a live view where standard error is a terminal, else plain lines.

    A terminal that cannot move its cursor (TERM=dumb) or shows no Unicode gets plain lines too, and so does one in
    whose background the process was started. NO_COLOR takes the colours away and leaves the rest. Close it, whatever
    happens: `with contextlib.closing(open_view()) as view`.
    """
    if quiet:
        return Unwatched()
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    unicode = (console.encoding or "").lower().startswith("utf")
    if _is_terminal(console.file) and console.is_interactive and unicode:
        from whet.evals.live.keyboard import find_keyboard, in_foreground
        from whet.evals.live.view import LiveView

        if in_foreground(console.file.fileno()):
            return LiveView(console, find_keyboard())
    from whet.evals.live.lines import PlainLines

    return PlainLines(Console(stderr=True, highlight=False, force_terminal=False))


def _is_terminal(file: object) -> bool:
    """Whether it really is one: rich also believes FORCE_COLOR, which people set for log files."""
    try:
        return os.isatty(file.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
