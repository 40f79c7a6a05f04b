"""HTML pages as a browser would read them; each page of whet has to be whole in itself, and closed to others."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[2J\u202e\ud800&amp;"
"""What a model might say to break out of a page."""
HARMLESS = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\ufffd[2J\ufffd\ufffd&amp;"
"""How a page shows it."""


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page: Path | str) -> None:
        """`page`: its file, or the whole of it."""
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(page if isinstance(page, str) else page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        {"script": self.scripts, "style": self.styles}.get(self._inside, self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def check(self) -> None:
        """It needs nothing but itself; nothing can run but its own script, nothing be styled but by its own style."""
        for tag, attributes in self.tags:
            assert tag not in ("link", "img", "iframe", "object", "embed", "base")
            assert not {"src", "href", "srcset", "data", "action"} & attributes.keys()
            assert not any(key.startswith("on") or key == "style" for key in attributes)
        (script,) = self.scripts
        (style,) = self.styles
        assert "url(" not in style
        assert "@import" not in style
        assert len(self.named("script")) == 1
        (policy,) = [meta["content"] or "" for meta in self.named("meta") if "http-equiv" in meta]
        allowed = dict(re.findall(r"(script|style)-src 'sha256-([^']+)'", policy))
        for kind, text in (("script", script), ("style", style)):
            assert allowed[kind] == base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
