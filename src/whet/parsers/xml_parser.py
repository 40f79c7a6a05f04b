"""`XMLParser`: answers in XML-like tags, `<reasoning>...</reasoning><answer>...</answer>`.

A field is a tag name, or a tuple of alternatives whose first name is the canonical one. Tags are found by pattern, not
by an XML parser: their content is a model's text, which may hold any character.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from whet.parsers.parser import ExtractFn, Parser, unchanged
from whet.types import Messages

Field = str | tuple[str, ...]


class XMLParser(Parser):
    """Answers in tags such as `<answer>...</answer>`."""

    def __init__(self, fields: list[Field], answer_field: str = "answer", extract_fn: ExtractFn = unchanged) -> None:
        """Make a parser.

        Args:
            fields: tag names in order; a tuple is one field that may be written in several ways.
            answer_field: the tag that holds the answer.
            extract_fn: kept as `self.extract_fn`; a tag's text is taken as it is.
        """
        super().__init__(extract_fn=extract_fn)
        self.answer_field = answer_field
        self._fields: list[tuple[str, list[str]]] = []
        for field in fields:
            names = [field] if isinstance(field, str) else list(field) if isinstance(field, tuple) else []
            if not names and isinstance(field, tuple):
                raise ValueError("an XMLParser field is an empty tuple; give at least one tag name")
            if not names or not all(isinstance(name, str) for name in names):
                raise TypeError(f"an XMLParser field should be a string or a tuple of strings, not {field!r}")
            if names[0] in self.get_fields():
                raise ValueError(f"XMLParser has the field {names[0]!r} twice")
            self._fields.append((names[0], names))

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        """A namespace with one attribute per tag: its text, stripped, or None where it is missing.

        The first occurrence of a tag counts, or the last one where `last`. `strip` is accepted for environments written
        for 0.1, where it changes nothing either.
        """
        tags = [name for _, names in self._fields for name in names]  # subclasses of packages set `_fields` themselves
        return SimpleNamespace(**{tag: _inside(text, tag, last) for tag in tags})

    def parse_answer(self, completion: Messages | str) -> str | None:
        """The answer field of the last assistant message that has one."""
        if isinstance(completion, str):
            answer: str | None = getattr(self.parse(completion, last=True), self.answer_field, None)
            return answer
        for message in reversed(self.get_assistant_messages(completion)):
            answer = getattr(self.parse(self.text_of(message)), self.answer_field, None)
            if answer is not None:
                return str(answer)
        return None

    def get_fields(self) -> list[str]:
        """The canonical names, in order."""
        return [canonical for canonical, _ in self._fields]

    def get_format_str(self) -> str:
        """The format as a text to put into a system prompt."""
        tags = [names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for _, names in self._fields]
        return "\n".join(f"<{tag}>\n...\n</{tag}>" for tag in tags)

    def format(self, **values: Any) -> str:
        """The text with these values in their tags; an alternative name may be given, the canonical tag is written."""
        parts = []
        for canonical, names in self._fields:
            given = canonical if canonical in values else next((name for name in names if name in values), None)
            if given is None or values[given] is None:
                raise ValueError(f"Missing value for field '{canonical}' (allowed: {names})")
            parts.append(f"<{canonical}>\n{values[given]}\n</{canonical}>")
        return "\n".join(parts)

    def get_format_reward_func(self) -> Callable[..., float]:
        """A reward for keeping to the format, the mean over the assistant's messages.

        For each message: a base of 0.2, 0.4 times the share of fields that appear (once any field is complete), and 0.2
        each for starting with the first field and for ending with the last.
        """

        def format_reward_func(completion: Messages) -> float:
            texts = [self.text_of(message) for message in self.get_assistant_messages(completion)]
            return sum(map(self._format_score, texts)) / len(texts) if texts else 0.0

        return format_reward_func

    def _format_score(self, text: str) -> float:
        parsed = vars(self.parse(text))
        present = sum(
            any(parsed[tag] is not None or f"<{tag}>" in text or f"</{tag}>" in text for tag in tags)
            for _, tags in self._fields
        )
        score = 0.0
        if any(value is not None for value in parsed.values()):
            score += 0.4 * (present / len(self._fields))
        score += 0.2
        stripped = text.strip()
        if any(stripped.startswith(f"<{tag}>") for tag in self._fields[0][1]):
            score += 0.2
        if any(stripped.endswith(f"</{tag}>") for tag in self._fields[-1][1]):
            score += 0.2
        return score


def _inside(text: str, tag: str, last: bool) -> str | None:
    """The text between `<tag>` and the next `</tag>`. Found by searching onwards only: a model may write anything,
    and a pattern that goes back over it takes time that grows with the square of its length."""
    start, end, inside = f"<{tag}>", f"</{tag}>", None
    position = text.find(start)
    while position >= 0:
        opened = position + len(start)
        closed = text.find(end, opened)
        if closed < 0:
            break
        inside = text[opened:closed].strip()
        if not last:
            break
        position = text.find(start, closed + len(end))
    return inside
