"""A few lines that say where one is: above a table or a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from whet.viewer.widgets.lines import Line


class Bar(Widget, can_focus=False):
    """As many lines as it is given, each cut where the window ends."""

    DEFAULT_CSS = """
    Bar { height: auto; background: $boost; }
    """

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines = list(lines)

    def show(self, lines: Sequence[Line]) -> None:
        if self.lines != lines:
            self.refresh(layout=len(lines) != len(self.lines))
            self.lines = list(lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        spans = self.lines[y].segments() if y < len(self.lines) else []
        painted = [Segment(text, style + own if own else style) for text, own, _ in spans]
        return Strip(painted).adjust_cell_length(self.size.width, style)
