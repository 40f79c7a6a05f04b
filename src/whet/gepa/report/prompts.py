"""Prompts on a page: whole, and as the difference from another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from whet.display.conversation import cut
from whet.display.html import Html, join, tag
from whet.gepa.text_diff import DiffLine, differences

MOST_LINES = 400
"""Lines of a difference that are shown."""
LONGEST_LINE = 4000
SIGNS = {"same": "  ", "gone": "- ", "new": "+ ", "hidden": "  … "}


def prompts_html(texts: Mapping[str, str]) -> Html:
    """Each text, under its name where there are several."""
    return join(
        *(
            part
            for name, text in texts.items()
            for part in (*([tag("p", name, class_="role")] if len(texts) > 1 else []), tag("pre", cut(text, 20_000)))
        )
    )


def difference_html(before: Mapping[str, str], after: Mapping[str, str]) -> Html:
    """What differs, by component. Lines that went begin with -, lines that came with +; changed words are marked."""
    found = differences(before, after)
    if not found:
        return tag("p", "The texts are the same.", class_="note")
    several = len({*before, *after}) > 1
    return join(
        *(
            part
            for name, lines in found.items()
            for part in (*([tag("p", name, class_="role")] if several else []), _lines_html(lines))
        )
    )


def _lines_html(lines: list[DiffLine]) -> Html:
    shown = [tag("div", SIGNS[line.kind], *_pieces(line), class_=line.kind) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        shown.append(tag("div", f"… {len(lines) - MOST_LINES:,} more lines …", class_="hidden"))
    return tag("div", *shown, class_="diff")


def _pieces(line: DiffLine) -> Iterator[Html]:
    mark = {"gone": "del", "new": "ins"}.get(line.kind)
    for text, changed in _at_most(line.pieces, LONGEST_LINE):
        yield tag(mark, text) if mark and changed and len(line.pieces) > 1 else join(text)


def _at_most(pieces: Iterable[tuple[str, bool]], length: int) -> Iterator[tuple[str, bool]]:
    for text, changed in pieces:
        yield cut(text, max(0, length)), changed
        length -= len(text)
        if length < 0:
            return
