"""The display of running evaluations: a live view in a terminal, plain lines elsewhere.

It goes to standard error, so that a result on standard output can be piped and redirected.
"""

from __future__ import annotations

from whet.display.live import live_console, plain_console
from whet.evals.observer import EvalObserver, Unwatched


def open_view(*, quiet: bool = False) -> EvalObserver:
    """The observer of a session: none where `quiet`, a live view where standard error is a terminal, else plain lines.

    Which terminals that are is decided by `live_console`. Close it, whatever happens:
    `with contextlib.closing(open_view()) as view`.
    """
    if quiet:
        return Unwatched()
    console = live_console()
    if console is not None:
        from whet.display.live.keyboard import find_keyboard
        from whet.evals.live.view import LiveView

        return LiveView(console, find_keyboard())
    from whet.evals.live.lines import PlainLines

    return PlainLines(plain_console())
