"""Stop strings: where in a growing text the first of them ends, found token by token.

Stop *tokens* need no text and are compared inside the decode step. A stop string may begin in one token and end in
another, and a character may be spread over several tokens, so a watcher decodes a window of the last tokens that is
long enough to hold the longest stop string, and looks again as each token arrives.
"""

from __future__ import annotations

from collections.abc import Callable

TextDecoder = Callable[[list[int]], str]


class StopWatcher:
    """Watches one row; `push` says whether the token just drawn completes a stop string."""

    def __init__(self, stops: tuple[str, ...], decode: TextDecoder) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decode = decode
        # A token is at least a byte of text, or a special token without any; UTF-8 has at most 4 bytes a character.
        self._window = 4 * max(map(len, self._stops), default=0) + 4
        self._ids: list[int] = []
        self.stopped = False

    def push(self, token: int) -> bool:
        self._ids.append(token)
        del self._ids[: -self._window]
        text = self._decode(self._ids)
        self.stopped = any(stop in text for stop in self._stops)
        return self.stopped


def cut_at_stop(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string, the whole text when there is none."""
    ends = [text.index(stop) for stop in stops if stop and stop in text]
    return text[: min(ends)] if ends else text
