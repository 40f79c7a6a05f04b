"""A complete HTML page in one file: no network, no further files, readable light and dark, wide and on a phone.

All text is escaped by `html.py`. Should that fail, the page's content security policy still allows only the script
whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from whet.display.html import Html, join, tag

STYLE, CHART_SCRIPT, SORT_SCRIPT = (
    Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "chart.js", "sort.js")
)


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
