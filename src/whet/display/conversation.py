"""One rollout on a page: its messages with reasoning and tool calls. Long messages and conversations are cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whet.display.html import Html, join, tag
from whet.display.text import call_text, listed
from whet.messages import content_text

MOST_TEXT = 4000
"""Characters of one message that are shown."""
MOST_MESSAGES = 40
"""Messages of one prompt or completion that are shown: the first and the last."""


def expected_html(row: Mapping[str, Any]) -> Html:
    """The right answer of the task, where its row has one."""
    answer = row.get("answer")
    return (
        join(tag("p", "expected", class_="role"), tag("pre", cut(str(answer)))) if answer not in (None, "") else join()
    )


def messages_html(value: Any) -> Html:
    """The messages of a row's `prompt` or `completion`, or a completion that is plain text."""
    if isinstance(value, str):
        return tag("div", tag("pre", cut(value)), class_="other")
    messages = [message for message in listed(value) if isinstance(message, Mapping)]
    if len(messages) <= MOST_MESSAGES:
        return join(*map(_message, messages))
    half = MOST_MESSAGES // 2
    hidden = tag("p", f"… {len(messages) - 2 * half:,} more messages …", class_="note")
    return join(*map(_message, messages[:half]), hidden, *map(_message, messages[-half:]))


def _message(message: Mapping[str, Any]) -> Html:
    role = str(message.get("role", ""))
    name = {"assistant": "model"}.get(role, role)
    return tag(
        "div", tag("p", name, class_="role"), *_parts(message), class_="assistant" if role == "assistant" else "other"
    )


def _parts(message: Mapping[str, Any]) -> Iterator[Html]:
    thought = message.get("reasoning_content")
    if thought:
        yield tag("pre", cut(f"(thinking) {thought}").strip("\n"), class_="thought")
    calls = listed(message.get("tool_calls"))
    text = content_text(message.get("content")).strip("\n")
    if text or not calls:
        yield tag("pre", cut(text))
    for call in calls:
        yield tag("pre", cut(call_text(call)), class_="call")


def cut(text: str, most: int = MOST_TEXT) -> str:
    """The beginning of `text`, and how many characters follow."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
