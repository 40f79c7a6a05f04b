"""A long text to scroll through: lines that are made when the width is known, painted when they are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from whet.viewer.widgets.lines import Line

Make = Callable[[int], Sequence[Line]]
"""The lines of a document of this width, in cells."""


class Document(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines to scroll through. A line with an action does it when it is clicked (`Acted`)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "by(-1)", "up", show=False),
        Binding("down,j", "by(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "top", "top", show=False),
        Binding("end", "bottom", "end", show=False),
    ]
    DEFAULT_CSS = """
    Document { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-color: $primary; }
    """

    class Acted(Message):
        """A line with an action was chosen."""

        def __init__(self, document: Document, action: str) -> None:
            super().__init__()
            self.document = document
            self.action = action

    class Scrolled(Message):
        """The document shows another part of itself now."""

        def __init__(self, document: Document, y: int) -> None:
            super().__init__()
            self.document = document
            self.y = y

    def __init__(self, make: Make, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        self.reading = -1  # the line of the match that was gone to last
        self._make = make
        self._following = False

    def show(self, make: Make | None = None, *, top: bool = False) -> None:
        """Make the lines again, from another text if one is given; `top` goes back to its beginning."""
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

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._following:
            self.post_message(self.Scrolled(self, round(new_value)))

    def follow(self, y: int) -> None:
        """Scroll to where another document is, as far as this one reaches, without anybody following in turn."""
        self._following = True
        self.scroll_to(y=y, animate=False)
        self._following = False

    def action_by(self, lines: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)

    def action_page(self, pages: int) -> None:
        self.action_by(pages * max(1, self.size.height - 2))

    def action_top(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False)

    def reveal(self, row: int) -> None:
        """Bring a line onto the screen, a third down from the top where it was not seen yet."""
        if not self.scroll_offset.y <= row < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(0, row - self.size.height // 3), animate=False)

    def read(self, row: int) -> None:
        """Go to a line with a match, and mark it as the one that is read."""
        self.reading = row
        self.reveal(row)
        self.refresh()

    def on_click(self, event: Click) -> None:
        row = self.scroll_offset.y + event.y
        if row < len(self.lines) and self.lines[row].action:
            self.post_message(self.Acted(self, self.lines[row].action))

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        style = self.rich_style
        segments = self.lines[row].segments(here=row == self.reading) if row < len(self.lines) else []
        painted = [Segment(text, style + own if own else style) for text, own, _ in segments]
        return Strip(painted).adjust_cell_length(self.size.width, style)
