"""Values cut so that an answer stays small. A text that was cut says by how much; the raw line has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.dashboard.errors import DashboardError

LONGEST_TEXT = 64 << 10
"""Characters of one text."""
LONGEST_ANSWER = 1 << 20
"""Characters of all texts together."""
LEFT_OF_EACH = 200
"""Characters that stay of each text once there are too many."""
LONGEST_LIST = 10_000


class Cutter:
    """Cuts the values of one answer. `cut` says whether anything was."""

    def __init__(self, total: int = LONGEST_ANSWER, longest: int = LONGEST_TEXT) -> None:
        self._left = total
        self._longest = longest
        self.cut = False

    def value(self, value: Any) -> Any:
        """`value` with its texts and lists cut. Raises `DashboardError` for one that is nested too deeply."""
        try:
            return self._value(value)
        except RecursionError:
            raise DashboardError("unreadable", "this rollout is nested too deeply to be shown.") from None

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(key)[:1000]: self._value(value[key]) for key in self._some(list(value))}
        if isinstance(value, list | tuple):
            return [self._value(item) for item in self._some(value)]
        self._left -= 10
        return value

    def _some(self, items: Any) -> Any:
        most = LONGEST_LIST if self._left > 0 else 100
        self.cut = self.cut or len(items) > most
        self._left -= 10 * min(len(items), most)
        return items[:most]

    def text(self, text: str) -> str:
        limit = min(self._longest, max(self._left, LEFT_OF_EACH))
        self._left -= min(len(text), limit)
        if len(text) <= limit:
            return text
        self.cut = True
        return f"{text[:limit]}… [{len(text) - limit:,} characters more]"
