"""HTML that cannot be broken into: a plain string is text and is escaped; only `Html` made here is markup.

Text of a model enters a page as a plain string. Characters that are invisible or reorder text (control characters,
direction marks, lone surrogates) are replaced. A page is one file: no network, readable light and dark, wide and on a
phone. Should escaping fail, its content security policy still allows only the script whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import html
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from whet.system.terminal import REPLACEMENT

STYLE, CHART_SCRIPT, SORT_SCRIPT = (
    Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "chart.js", "sort.js")
)


class Html(str):
    """Markup that is known to be safe."""

    __slots__ = ()

    def __html__(self) -> str:
        """What Jinja takes as markup."""
        return str(self)


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


def document(title: str, body: Iterable[Html], *, style: str = "", script: str = CHART_SCRIPT) -> str:
    """The page. `style` is added to the common style sheet; `script` is the only script that may run."""
    style = STYLE + style
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    head = join(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{title} - whet"),
        tag("style", Html(style)),
    )
    whole = tag("body", *body, tag("script", Html(script)))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n{whole}\n</html>\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
