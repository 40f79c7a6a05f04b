"""The keys of a screen on its last lines: every binding, in as many lines as they need, each to be clicked too."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.events import Click
from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

DISPLAY = {
    "enter": "↵",
    "escape": "esc",
    "question_mark": "?",
    "slash": "/",
    "left": "←",
    "right": "→",
    "up": "↑",
    "down": "↓",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "shift+tab": "⇤",
    "tab": "⇥",
}


class Keys(Widget, can_focus=False):
    """The bindings of the screen that have a description."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--label"}
    ALLOW_SELECT = False
    DEFAULT_CSS = """
    Keys { dock: bottom; height: auto; background: $panel; }
    Keys .keys--key { text-style: bold; color: $accent; background: $panel; }
    Keys .keys--label { color: $foreground; background: $panel; }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        self.refresh(layout=True)

    def bindings(self) -> list[tuple[str, str, str]]:
        """(key, how it is shown, what it does) for each action, in the order of the screen's bindings."""
        found: dict[str, tuple[str, str, str]] = {}
        for key, active in self.screen.active_bindings.items():
            binding = active.binding
            if binding.show and binding.description and active.enabled and binding.action not in found:
                shown = binding.key_display or DISPLAY.get(key) or self.app.get_key_display(binding)
                found[binding.action] = (key, shown, binding.description)
        return list(found.values())

    def rows(self, width: int) -> list[list[tuple[str, str, str]]]:
        """The bindings laid out in lines of at most `width` cells."""
        rows: list[list[tuple[str, str, str]]] = [[]]
        used = 0
        for binding in self.bindings():
            wide = self.cells(binding)
            if rows[-1] and used + wide > width:
                rows.append([])
                used = 0
            rows[-1].append(binding)
            used += wide
        return rows

    @staticmethod
    def cells(binding: tuple[str, str, str]) -> int:
        return len(binding[1]) + len(binding[2]) + 3

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.rows(width))

    def render_line(self, y: int) -> Strip:
        rows = self.rows(self.size.width)
        key, label = self.get_component_rich_style("keys--key"), self.get_component_rich_style("keys--label")
        segments = []
        for _, shown, description in rows[y] if y < len(rows) else ():
            segments += [Segment(f" {shown}", key), Segment(f" {description} ", label)]
        return Strip(segments).adjust_cell_length(self.size.width, label)

    def on_click(self, event: Click) -> None:
        rows = self.rows(self.size.width)
        at = event.x
        for binding in rows[event.y] if event.y < len(rows) else ():
            if at < self.cells(binding):
                self.app.simulate_key(binding[0])
                return
            at -= self.cells(binding)
