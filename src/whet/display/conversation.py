"""One rollout on a page: who said what, each message cut to a length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whet.display.html import Html, join, tag
from whet.display.text import call_text
from whet.messages import content_text

MOST_TEXT = 4000
"""Characters of one message that are shown."""


def expected_html(row: Mapping[str, Any]) -> Html:
    """The right answer of the task, where its row has one."""
    answer = row.get("answer")
    return join(tag("p", "expected", class_="role"), tag("pre", _cut(str(answer)))) if answer else join()


def messages_html(value: Any) -> Html:
    """The messages of a row's `prompt` or `completion`, or the text of a completion that is none."""
    if isinstance(value, str):
        return tag("div", tag("pre", _cut(value)), class_="other")
    return join(*_each_message(value or ()))


def _each_message(messages: Iterable[Any]) -> Iterable[Html]:
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        role = str(message.get("role", ""))
        calls = "".join(f"\n{call_text(call)}" for call in message.get("tool_calls") or ())
        thought = message.get("reasoning_content")
        said = content_text(message.get("content")) + calls
        yield tag(
            "div",
            tag("p", {"assistant": "model"}.get(role, role), class_="role"),
            tag("pre", _cut(f"(thinking) {thought}\n{said}" if thought else said).strip("\n")),
            class_="assistant" if role == "assistant" else "other",
        )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… ({len(text) - MOST_TEXT:,} more characters)"
