"""One rollout to read: its conversation with the details at the side; a key shows the next one of the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize

from whet.records.rollout_text import MessagePiece, pieces
from whet.viewer.listing import Listing
from whet.viewer.screens.base import LAST_KEYS, RolloutView
from whet.viewer.widgets.conversation import ConversationLayout, Folding, detail_lines, lay_out
from whet.viewer.widgets.lines import StyledLine, line, wrapped
from whet.viewer.widgets.panes import Bar, Document, Keys
from whet.viewer.widgets.rollouts import candidate_parts, origin_parts, reward_parts

ASIDE = 100
"""Width of a window from which the details are at the side of the conversation; in a narrower one they are above it."""


class RolloutScreen(RolloutView):
    """The rollout that the listing is at."""

    NAME: ClassVar[str] = "A rollout"
    HELP: ClassVar[str] = """
← →     the rollout before and after in the list
Tab     the next piece of the conversation (Shift+Tab the one before)
Enter   open or fold the piece with the mark; show a long one whole, and cut it again
r       all reasoning open, or folded
a       everything whole, or long pieces cut
i       details: rewards, metrics, errors, tokens, times

/       search in all rollouts; what is found is marked here too
n N     next and previous place in this rollout, then in the next rollout that was found

g       all rollouts of this group, side by side
t       the tokens: what was sampled, and how likely it was
y x     copy this rollout, export it or the list
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "before"),
        Binding("right", "step(1)", "after"),
        Binding("tab", "piece(1)", "next piece"),
        Binding("shift+tab", "piece(-1)", "piece before", show=False),
        Binding("enter", "fold", "open/fold"),
        Binding("r", "reasoning", "reasoning"),
        Binding("a", "whole", "show all"),
        Binding("i", "details", "details"),
        Binding("slash", "search", "search"),
        Binding("n", "match(1)", "next"),
        Binding("N", "match(-1)", "previous"),
        Binding("g", "open('group')", "group"),
        Binding("t", "open('tokens')", "tokens"),
        Binding("y", "copy", "copy"),
        Binding("x", "export", "export"),
        Binding("escape", "stop_or_back", "back"),
        *LAST_KEYS,
    ]
    DEFAULT_CSS = """
    RolloutScreen #details { width: 36; padding: 0 1; border-left: solid $panel; display: none; }
    """

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.row: Mapping[str, Any] = {}
        self.layout_now = ConversationLayout([], {}, set())
        self._pieces: Sequence[MessagePiece] = ()
        self._folding = Folding()
        self._current = ""
        self._details: bool | None = None  # None: by the window's width, until the user chooses
        self._problem = ""
        self._go_to_match = 0  # the direction in which the first match of a rollout is to be shown

    def compose(self) -> ComposeResult:
        yield Bar(id="where")
        with Horizontal():
            yield Document(self._conversation, self._toggle, id="conversation")
            yield Document(self._detail_lines, id="details")
        yield Keys()

    def on_mount(self) -> None:
        self.conversation.focus()
        self.read()

    @property
    def conversation(self) -> Document:
        return self.query_one("#conversation", Document)

    def on_resize(self, event: Resize) -> None:
        self._place_details()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.listing.search is not None if action == "match" else True

    async def show_row(self, row: Mapping[str, Any], problem: str) -> None:
        self.row, self._problem = row, problem
        self._pieces = pieces(row)
        self._current = self._pieces[0].key if self._pieces else ""
        self._folding = Folding()
        self.conversation.show(top=True)
        self.query_one("#details", Document).show(top=True)
        self._place_details()
        if self._go_to_match:
            self._to_match(self._go_to_match, from_edge=True)
            self._go_to_match = 0

    # Painting.

    def show_status(self) -> None:
        if self.listing.number is None:
            return
        head = self.listing.head(self.listing.number)
        place = f"rollout {self.listing.position() + 1:,} of {len(self.listing.heads):,}"
        candidate = candidate_parts(self.listing.candidate(head.candidate))
        task = [] if head.example_id is None else [f"  task {head.example_id}"]
        first = [(f" {place}", "bold"), *origin_parts(head, *candidate, *task)]
        second = reward_parts(head, self.listing.passed)
        if head.error:
            second += ["  ", (head.error, "bad")]
        if head.stop_condition:
            second += [f"  {head.stop_condition}"]
        if head.truncated:
            second += ["  ", ("truncated", "middling")]
        self.query_one("#where", Bar).show([line(*first), line(*second), *self.search_status()])

    def _query(self) -> str:
        return self.listing.search.text if self.listing.search is not None else ""

    def _conversation(self, width: int) -> list[StyledLine]:
        before = []
        if self._problem:
            return list(wrapped(self._problem, width, "bad"))
        if not self._aside and self._details and self.shown is not None:
            before = [*self._detail_lines(width), line("")]
        if left_out := self.row.get("left_out_bytes"):
            note = (
                f"This line is very long: {left_out:,} bytes of it are not shown. x writes it as it stands in the file."
            )
            before += [*wrapped(note, width, "middling"), line("")]
        layout = lay_out(self._pieces, width, self._folding, query=self._query(), current=self._current)
        starts = {key: at + len(before) for key, at in layout.starts.items()}
        self.layout_now = ConversationLayout([*before, *layout.lines], starts, layout.long)
        return self.layout_now.lines

    def _detail_lines(self, width: int) -> list[StyledLine]:
        if self.shown is None or self._problem:
            return []
        return detail_lines(self.row, self.listing.head(self.shown), self.listing.passed, width)

    @property
    def _aside(self) -> bool:
        return self.size.width >= ASIDE

    def _place_details(self) -> None:
        wanted = self._details is not False
        self.query_one("#details", Document).display = self._aside and wanted
        self.conversation.show()
        self.show_status()

    # Actions.

    def action_piece(self, by: int) -> None:
        keys = [piece.key for piece in self._pieces]
        if keys:
            at = keys.index(self._current) + by if self._current in keys else 0
            self._current = keys[max(0, min(at, len(keys) - 1))]
            self.conversation.show()
            self.conversation.reveal(self.layout_now.starts[self._current])

    def action_fold(self) -> None:
        self._toggle(self._current)

    def _toggle(self, key: str) -> None:
        self._current = key
        piece = next((piece for piece in self._pieces if piece.key == key), None)
        if piece is not None:
            self._folding.toggle(piece, cut=key in self.layout_now.long)
            self.conversation.show()
            self.conversation.reveal(self.layout_now.starts[key])

    def action_reasoning(self) -> None:
        folded = {piece.key for piece in self._pieces if piece.folded}
        if folded <= self._folding.opened:
            self._folding.opened -= folded
        else:
            self._folding.opened |= folded
            self._folding.closed -= folded
        self.conversation.show()

    def action_whole(self) -> None:
        long = self.layout_now.long
        if long and long <= self._folding.whole:
            self._folding.whole -= long
        else:
            self._folding.whole |= long
        self.conversation.show()

    def action_details(self) -> None:
        shown = self._details is not False if self._aside else bool(self._details)
        self._details = not shown
        self._place_details()
        if not self._aside and self._details:
            self.conversation.action_top()

    # Matches.

    def action_match(self, by: int) -> None:
        if not self._to_match(by):
            self._go_to_match = by
            super().action_match(by)

    def _to_match(self, by: int, *, from_edge: bool = False) -> bool:
        """Go to the next line with what was searched for; False where there is none in that direction."""
        marked = [
            at for at, made in enumerate(self.conversation.lines) if any(style == "match" for _, style in made.spans)
        ]
        here = self.conversation.reading
        if from_edge:
            here = -1 if by > 0 else len(self.conversation.lines)
        ahead = [at for at in marked if (at > here if by > 0 else at < here)]
        if not ahead:
            return False
        self.conversation.read(ahead[0] if by > 0 else ahead[-1])
        return True
