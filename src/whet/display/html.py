"""HTML that cannot be broken into: a plain string is text and is escaped; only `Html` made here is markup.

Text of a model enters a page as a plain string. Characters that are invisible or reorder text (control characters,
direction marks, lone surrogates) are replaced.
"""

from __future__ import annotations

import html
import unicodedata

from whet.system.terminal import REPLACEMENT


class Html(str):
    """Markup that is known to be safe."""

    __slots__ = ()


def escape(text: str) -> Html:
    """`text` for any position in a page: between tags or in a quoted attribute."""
    return Html(html.escape(text if text.isprintable() else "".join(map(_visible, text)), quote=True))


def _visible(character: str) -> str:
    seen = character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
    return character if seen else REPLACEMENT


def tag(name: str, *children: str, **attributes: object) -> Html:
    """`<name attributes>children</name>`; `class_` is class, `_` in a name is `-`, None and False leave one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))
