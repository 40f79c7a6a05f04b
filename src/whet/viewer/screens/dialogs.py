"""Small screens on top of another one: a line to type, a choice of several answers, the help page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from whet.viewer.widgets.lines import StyledLine, line, wrapped
from whet.viewer.widgets.panes import Bar, Document, Keys
from whet.viewer.widgets.table import Column, TableView


class Ask(ModalScreen[str | None]):
    """One line of text; None if it was cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel"),
    ]
    DEFAULT_CSS = """
    Ask { align: center bottom; background: $background 30%; }
    Ask Vertical { height: auto; background: $panel; }
    Ask Bar { background: $panel; }
    Ask Input { padding: 0 1; }
    """

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        # Created here, so that text typed before the screen is composed is not lost.
        self._line = Input(value, select_on_focus=False, compact=True)
        self._answered = False

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Bar([line((f" {self._title}", "bold"))])
            yield self._line
            yield Keys()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def on_mount(self) -> None:
        if self._answered:
            self.dismiss(self._line.value)

    def take(self, event: Key) -> bool:
        """Handle a key that was typed before the line had the focus; returns whether the line took it."""
        if event.key == "enter":
            self._answered = True
            if self.is_mounted:
                self.dismiss(self._line.value)
        elif event.character is not None and event.is_printable:
            self._line.value += event.character
            self._line.cursor_position = len(self._line.value)
        else:
            return False
        return True


class Choose(ModalScreen[int | None]):
    """One of several answers, by its digit, with Enter or with the mouse; None if it was cancelled.

    Args:
        title: The question.
        answers: Each answer, with a short note.
        current: The answer that the cursor starts at.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "choose"),
        Binding("1", "pick(0)", "choose at once", key_display="1-9"),
        *(Binding(str(digit), f"pick({digit - 1})", show=False) for digit in range(2, 10)),
        Binding("escape", "dismiss(None)", "cancel"),
    ]
    DEFAULT_CSS = """
    Choose { align: center middle; background: $background 30%; }
    Choose Vertical { width: 80%; max-width: 72; height: auto; max-height: 80%; background: $panel; }
    Choose Bar { background: $panel; }
    Choose TableView { height: auto; max-height: 16; background: $surface; }
    Choose Keys { dock: none; }
    """

    def __init__(self, title: str, answers: Sequence[tuple[str, str]], current: int = 0) -> None:
        super().__init__()
        self._title = title
        self._answers = list(answers)
        self._current = current

    def compose(self) -> ComposeResult:
        about = max((len(word) for _, word in self._answers), default=0)
        columns: list[Column[int]] = [
            Column("", 2, lambda row: str(row + 1) if row < 9 else "", right=True),
            Column("", 10, lambda row: self._answers[row][0], stretch=True),
            Column("", min(20, about), lambda row: (self._answers[row][1], "dim"), rank=1, right=True),
        ]
        with Vertical():
            yield Bar([line((f" {self._title}", "bold"))])
            yield TableView(columns, lambda row: row, self.dismiss)
            yield Keys()

    def on_mount(self) -> None:
        rows = self.query_one(TableView)
        rows.show(len(self._answers), self._current)
        rows.focus()

    def action_choose(self) -> None:
        self.query_one(TableView).action_choose()

    def action_pick(self, answer: int) -> None:
        if answer < len(self._answers):
            self.dismiss(answer)


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

    def _lines(self, width: int) -> list[StyledLine]:
        return list(wrapped(f"{self._text.strip()}\n\n{EVERYWHERE.strip()}", width - 2))
