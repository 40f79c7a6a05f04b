r"""Find the final answer in free text: in `\boxed{...}`, or after `####` as in the GSM8K data set."""

from __future__ import annotations

import re

_BRACE = re.compile(r"[{}]")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""The content of the last `\boxed{...}` or `\fbox{...}`, nested braces included.

    Without a closed box the answer is the text itself, or "" where `strict` (so that only a boxed answer can be right).
    """
    missing = "" if strict else text
    *_, box = (None, *_BOXED.finditer(text))
    if box is None:
        return missing
    start, depth = box.end(), 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return missing


def extract_hash_answer(text: str) -> str:
    """The text between the first `####` and the next one or the end; the whole text where there is none."""
    parts = text.split("####", 2)
    return parts[1].strip() if len(parts) > 1 else text
