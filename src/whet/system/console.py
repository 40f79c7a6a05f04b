"""The one console that commands print to: what models, environments and runs wrote cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from whet.system.terminal import safe_lines


class SafeConsole(Console):
    """rich's, which replaces characters of all text that could move, colour or reorder anything.

    What rich itself sends to control the terminal passes. Text is printed as it is: brackets are no markup, and
    `:name:` is no picture.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.replace("\n", "").isprintable():
                yield segment
            else:
                yield Segment("\n".join(safe_lines(segment.text)), segment.style)
