"""The answer is the text after `</think>`; without that tag none (`ThinkParser`), or the text (`MaybeThinkParser`).

`ThinkParser` is for models that always write `<think>...</think>` in the text itself. A model whose server or chat
template takes the thinking out (Qwen3, DeepSeek-R1) would never get an answer through; use `MaybeThinkParser` there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whet.parsers.parser import Parser
from whet.types import Messages


class ThinkParser(Parser):
    """The answer is the text after `</think>`; without that tag there is none."""

    def parse(self, text: str) -> Any:
        _, mark, answer = text.rpartition("</think>")
        return self.extract_fn(answer.strip() if mark else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """The share of assistant messages that are one `<think>` block followed by something."""

        def format_reward_func(completion: Messages, **kwargs: Any) -> float:
            messages = self.get_assistant_messages(completion)
            if not messages:
                return 0.0
            return sum(_is_well_formed(self.text_of(message)) for message in messages) / len(messages)

        return format_reward_func


def _is_well_formed(text: str) -> bool:
    return (
        text.strip().startswith("<think>")
        and text.count("<think>") == 1
        and text.count("</think>") == 1
        and not text.endswith("</think>")
    )


class MaybeThinkParser(Parser):
    """The answer is the text after `</think>`, or the whole text without that tag; nothing after an open `<think>`."""

    def parse(self, text: str) -> Any:
        return self.extract_fn(text.rpartition("</think>")[2].partition("<think>")[0].strip())
