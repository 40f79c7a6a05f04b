"""`MaybeThinkParser`: the answer is the text after `</think>`, or the whole text without that tag."""

from __future__ import annotations

from typing import Any

from whet.parsers.parser import Parser


class MaybeThinkParser(Parser):
    """The answer is the text after `</think>`, or the whole text without that tag."""

    def parse(self, text: str) -> Any:
        return self.extract_fn(text.rpartition("</think>")[2].strip())
