"""Widgets that paint lines: the status bar, a long document to scroll through, and the keys of a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from whet.viewer.widgets.lines import StyledLine


class Bar(Widget, can_focus=False):
    """A few status lines, each cut at the edge of the window."""

    DEFAULT_CSS = """
    Bar { height: auto; background: $boost; }
    """

    def __init__(self, lines: Sequence[StyledLine] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines = list(lines)

    def show(self, lines: Sequence[StyledLine]) -> None:
        if self.lines != lines:
            self.refresh(layout=len(lines) != len(self.lines))
            self.lines = list(lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        line = self.lines[y] if y < len(self.lines) else StyledLine()
        return line.strip(self.size.width, self.rich_style)


Make = Callable[[int], Sequence[StyledLine]]
"""The lines of a document of this width, in cells."""


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines that scroll up and down, painted when they are seen. Subclasses define what the keys move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "by(-1)", "up", show=False),
        Binding("down,j", "by(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "top", "top", show=False),
        Binding("end", "bottom", "end", show=False),
    ]
    DEFAULT_CSS = """
    LineView { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-color: $primary; }
    """

    def action_by(self, lines: int) -> None:
        raise NotImplementedError

    def action_page(self, pages: int) -> None:
        self.action_by(pages * max(1, self.size.height - 2))

    def action_top(self) -> None:
        raise NotImplementedError

    def action_bottom(self) -> None:
        raise NotImplementedError


class Document(LineView):
    """A long text."""

    def __init__(
        self, make: Make, act: Callable[[str], object] = lambda action: None, *, id: str | None = None
    ) -> None:
        """`act` is called with the action of a line that was clicked."""
        super().__init__(id=id)
        self.lines: Sequence[StyledLine] = ()
        self.reading = -1  # the line of the current match
        self._make, self._act = make, act

    def show(self, make: Make | None = None, *, top: bool = False) -> None:
        """Make the lines again, from another text if one is given; `top` scrolls to its beginning."""
        if make is not None:
            self._make = make
        width = self.scrollable_content_region.width
        self.lines = self._make(width) if width > 0 else ()
        self.virtual_size = Size(width, len(self.lines))
        if top:
            self.reading = -1
            self.scroll_to(y=0, animate=False)
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self.show()

    def action_by(self, lines: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)

    def action_top(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False)

    def reveal(self, row: int) -> None:
        """Scroll to a line that is not visible, a third down from the top."""
        if not self.scroll_offset.y <= row < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(0, row - self.size.height // 3), animate=False)

    def read(self, row: int) -> None:
        """Go to a line with a match, and mark it as the current one."""
        self.reading = row
        self.reveal(row)
        self.refresh()

    def on_click(self, event: Click) -> None:
        row = self.scroll_offset.y + event.y
        if row < len(self.lines) and self.lines[row].action:
            self._act(self.lines[row].action)

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        line = self.lines[row] if row < len(self.lines) else StyledLine()
        return line.strip(self.size.width, self.rich_style, here=row == self.reading)


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
    """The bindings of the screen that have a description, in as many lines as they need; each can be clicked."""

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
