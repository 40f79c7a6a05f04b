"""A README as HTML that can do nothing: what a package wrote is hostile."""

from __future__ import annotations

import re
from functools import cache
from html import escape

import nh3
from markdown_it import MarkdownIt

LONGEST = 100_000
TAGS = set(
    re.findall(
        r"\w+",
        "a b blockquote br code dd del dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup table tbody td th"
        " thead tr ul",
    )
)
ATTRIBUTES = {"a": {"href", "title"}, "th": {"align"}, "td": {"align"}}


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])


def render_readme(text: str, kind: str) -> str:
    """HTML without scripts, styles, images, forms, or links other than to the web and to mail addresses."""
    text = text[:LONGEST]
    html = _markdown().render(text) if kind == "text/markdown" else f"<pre>{escape(text)}</pre>"
    return nh3.clean(
        html,
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        strip_comments=True,
    )
