"""From the answer of a reflection model to the text it proposes, or why there is none. Pure.

The text stands between `<new_text>` and `</new_text>`. Some models put it into a code fence all the
same, or give nothing but the text; both are accepted. A model's thinking that is left in the answer is removed.
"""

from __future__ import annotations

import re
import string

from whet.messages import whole_characters

OPEN, CLOSE = "<new_text>", "</new_text>"
_THINKING = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<text>.*)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)


class Unusable(Exception):
    """An answer without a text that could be tried. Its text says why, for people and for the model itself."""


def text_of(answer: str, *, cut_off: bool = False) -> str:
    """The text that an answer proposes, without white space around it.

    Raises `Unusable` where there is none, or it was `cut_off` by a limit of tokens before its end.
    """
    answer = whole_characters(_THINKING.sub("", answer, count=1))
    start = answer.rfind(OPEN)
    if start >= 0:
        text, closed, _ = answer[start + len(OPEN) :].partition(CLOSE)
        if not closed and cut_off:
            raise Unusable("it was cut off by the limit of tokens before its end")
        return _something(text)
    fenced = _FENCE.search(answer)
    if fenced is not None and len(answer.strip()) - len(fenced[0].strip()) <= len(fenced["text"].strip()):
        return _something(fenced["text"])  # where more stands outside, it is an example inside of the text
    if cut_off:
        raise Unusable("it was cut off by the limit of tokens before its end")
    return _something(answer)


def check(text: str, current: str, *, most: int, placeholders: frozenset[str] | None) -> None:
    """Raise `Unusable` where `text` cannot replace `current`.

    Args:
        most: characters it may have.
        placeholders: those that it must have, each `{name}`, and no other; None where braces mean nothing.
    """
    if text == current.strip():
        raise Unusable("it is the current text, unchanged")
    if len(text) > most:
        raise Unusable(f"it has {len(text):,} characters, and {most:,} are allowed")
    if placeholders is not None:
        _check_placeholders(text, placeholders)


def placeholders_of(text: str) -> frozenset[str]:
    """The names in braces that `str.format` would fill in. Raises ValueError where it could not read the text."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def _check_placeholders(text: str, wanted: frozenset[str]) -> None:
    try:
        found = placeholders_of(text)
    except ValueError as error:
        raise Unusable(f"its braces cannot be read ({error}); literal ones have to be doubled") from None
    if lost := sorted(wanted - found):
        raise Unusable(f"it has lost {_named(lost)}")
    if strange := sorted(found - wanted):
        raise Unusable(f"it has {_named(strange)}, which nothing fills in; literal braces have to be doubled")


def _named(names: list[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _something(text: str) -> str:
    text = text.strip()
    if not text:
        raise Unusable("it is empty")
    return text
