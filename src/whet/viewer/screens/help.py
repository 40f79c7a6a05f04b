"""The page of help of a screen: what its keys do, in words."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from whet.viewer.widgets.bar import Bar
from whet.viewer.widgets.document import Document
from whet.viewer.widgets.keys import Keys
from whet.viewer.widgets.lines import Line, line, wrapped

EVERYWHERE = """
↑ ↓ j k  PgUp PgDn space  Home End   move
Mouse: click a row, a title, a piece of a conversation or a key below; the wheel scrolls
Enter opens, Esc goes back, q quits
"""


class HelpScreen(ModalScreen[None]):
    """Text to scroll through, over the whole window."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "back")]
    DEFAULT_CSS = "HelpScreen Document { padding: 0 1; }"

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        yield Bar([line((f" {self._title}", "bold"))])
        yield Document(self._lines)
        yield Keys()

    def _lines(self, width: int) -> list[Line]:
        return list(wrapped(f"{self._text.strip()}\n\n{EVERYWHERE.strip()}", width - 2))
