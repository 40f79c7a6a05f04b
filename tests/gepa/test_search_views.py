"""The pictures of a search, whatever the window's size and whatever models write."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from whet.gepa.progress import SearchProgress
from whet.gepa.types import Confirmation
from whet.gepa.view import last_view, live_view

TEXT = st.text(max_size=300) | st.lists(st.text(max_size=40), max_size=20).map("\n".join)


def drawn(picture: RenderableType, width: int, height: int) -> list[int]:
    """The lines' lengths, in columns."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, highlight=False)
    lines = console.render_lines(picture, console.options, pad=False)
    return [sum(segment.cell_length for segment in line) for line in lines]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.integers(20, 160),
    height=st.integers(2, 50),
    texts=st.lists(TEXT, max_size=8),
)
def test_no_picture_is_larger_than_its_window(width: int, height: int, texts: list[str], player: Any) -> None:
    progress = SearchProgress("[bold]odd\x1b with a model")
    told = player.Told(progress)
    progress.planned(player.plan())
    progress.phase("baseline", "", 10)
    told.call(0, 0, 1.0)
    told.decide(0, "seed", 0.5)
    for number, text in enumerate(texts, start=1):
        told.propose(number, number - 1, text)
        told.call(number, 0, "Odd")
        if number < len(texts):
            told.decide(number, "accepted" if number % 2 else "rejected", 0.6, text)
    progress.confirmed(Confirmation(10, 0.5, 0.6, 0.1, -0.1, 0.3, False))
    picture = live_view(progress, width, height, footer="q stop")
    for shown in (picture, last_view(progress, width, height)):
        lengths = drawn(shown, width, height)
        assert len(lengths) <= height
        assert max(lengths) <= width
