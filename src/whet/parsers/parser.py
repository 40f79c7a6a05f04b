"""`Parser`: read an answer out of text, or out of the messages of a completion.

The base class takes text as it is, after `extract_fn`. It holds what all parsers share: picking messages by role, and
the text of a message's content.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from whet.messages import content_text
from whet.types import Messages

ExtractFn = Callable[[str], Any]


def unchanged(text: str) -> str:
    return text


class Parser:
    """Takes text as it is. The base of all parsers."""

    def __init__(self, extract_fn: ExtractFn = unchanged) -> None:
        """Make a parser.

        Args:
            extract_fn: from the text, as far as this parser keeps it, to the answer.
        """
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        return self.extract_fn(text)

    def parse_answer(self, completion: Messages | str) -> Any:
        """The answer in the last assistant message, or in the text; None where the assistant said nothing."""
        if isinstance(completion, str):
            return self.parse(completion)
        messages = self.get_assistant_messages(completion)
        return self.parse(self.text_of(messages[-1])) if messages else None

    def get_format_reward_func(self) -> Callable[..., float]:
        """A reward function for how well the assistant keeps to the format. Plain text is always well formed."""

        def format_reward_func(completion: Messages, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func

    def get_assistant_messages(self, completion: Messages) -> Messages:
        return _with_role(completion, "assistant")

    def get_system_messages(self, completion: Messages) -> Messages:
        return _with_role(completion, "system")

    def get_user_messages(self, completion: Messages) -> Messages:
        return _with_role(completion, "user")

    def get_tool_messages(self, completion: Messages) -> Messages:
        return _with_role(completion, "tool")

    def text_of(self, message: Any) -> str:
        return content_text(_field(message, "content"))


def _with_role(completion: Messages, role: str) -> Messages:
    return [message for message in completion if _field(message, "role") == role]


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


# Find the final answer in free text: in `\boxed{...}`, or after `####` as in the GSM8K data set.

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
