"""The view of a running search: a live view in a terminal, plain lines elsewhere.

It goes to standard error, so that a result on standard output can be piped and redirected.
"""

from __future__ import annotations

from whet.display.live import live_console, plain_console
from whet.gepa.types import Observer


def make_observer(plain: bool = False, *, title: str = "") -> Observer:
    """A live view where standard error is a terminal that can show one, else (or with `plain`) plain lines.

    `title` says what is optimised: `reverse-text with whet/tiny`. Always close it: that restores the terminal.
    """
    console = None if plain else live_console()
    if console is not None:
        from whet.display.live.keyboard import find_keyboard
        from whet.gepa.live.view import SearchLiveView

        return SearchLiveView(title, console, find_keyboard())
    from whet.gepa.live.lines import SearchPlainLines

    return SearchPlainLines(title, plain_console())
