"""`verifiers.utils.message_utils`: messages as text for people, and as plain data for result rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whet.content import Record, as_content_part
from whet.messages import as_message, as_tool_call, content_text, normalize_messages
from whet.types import Messages


def concat_messages(messages_list: Sequence[Messages]) -> Messages:
    return [message for messages in messages_list for message in messages]


def maybe_normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    return normalize_messages(value, field_name=field_name)


def from_raw_message(message: Mapping[str, Any]) -> Any:
    return as_message(message)


def from_raw_content_part(part: Mapping[str, Any]) -> Record:
    return as_content_part(part)


def messages_to_printable(messages: Any) -> Any:
    """The messages with their contents as text, images and sounds named in brackets."""
    return messages if isinstance(messages, str) else [message_to_printable(message) for message in messages or []]


def message_to_printable(message: Any) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [_printable(part) for part in content]
    return as_message({**message, "content": " ".join(text for text in texts if text).strip()})


def _printable(part: Any) -> str:
    names = {"image_url": "[image]", "input_audio": "[audio]", "audio": "[audio]"}
    return names.get(part.get("type"), "") or content_text([part])


def serialize_message_for_output(message: Any) -> Any:
    """A message whose content is a list of parts as plain data: text, images by address, sounds as base64 without
    white space. What has no parts, and is a dict or a message, is returned as it is."""
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if not isinstance(content, list):
        return message
    fields = message if isinstance(message, Mapping) else message.model_dump()
    plain: dict[str, Any] = {"role": fields.get("role")}
    plain["content"] = [plain_part for part in content if (plain_part := _plain_part(part)) is not None]
    for name in ("reasoning_content", "tool_calls", "tool_call_id", "name", "audio"):
        if fields.get(name) is not None:
            plain[name] = fields[name]
    return plain


def serialize_messages_for_output(messages: Any) -> Any:
    return messages if isinstance(messages, str) else [serialize_message_for_output(one) for one in messages or []]


def _plain_part(part: Any) -> Any:
    """A part of a message's content as plain data; None for one that has nothing to show."""
    if not isinstance(part, Mapping):
        return part.model_dump() if hasattr(part, "model_dump") else part
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part["text"]} if isinstance(part.get("text"), str) else None
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        return {"type": "image_url", "image_url": {"url": url}} if isinstance(url, str) else None
    if kind in ("input_audio", "audio"):
        sound = next((part[name] for name in ("input_audio", "audio") if isinstance(part.get(name), Mapping)), part)
        data, form = (re.sub(r"\s+", "", str(sound.get(name) or "")) for name in ("data", "format"))
        if not data or not form:
            return {"type": "text", "text": "[audio]"}
        return {"type": "input_audio", "input_audio": {"data": data, "format": form.lower()}}
    return part


def sanitize_tool_calls(messages: Any) -> Any:
    """The messages with each tool call as JSON text, so that the column of a table has one type."""
    return [_with_calls_as_text(one) for one in messages] if isinstance(messages, list) else messages


def _with_calls_as_text(message: Any) -> Any:
    fields = message if isinstance(message, Mapping) else message.model_dump()
    calls = fields.get("tool_calls")
    if not calls:
        return message
    texts = [call if isinstance(call, str) else json.dumps(_plain_call(call)) for call in calls]
    plain = {"role": fields["role"], "content": fields.get("content") or "", "tool_calls": texts}
    if isinstance(fields.get("reasoning_content"), str):
        plain["reasoning_content"] = fields["reasoning_content"]
    return plain


def _plain_call(call: Any) -> dict[str, Any]:
    return dict(call) if isinstance(call, Mapping) else call.model_dump(exclude_none=True)


def format_messages(messages: Any) -> Any:
    """The messages as a `rich` text: roles, reasoning and tool calls set apart, control characters replaced."""
    from rich.text import Text

    from whet.system.terminal import safe_text

    def shown(text: str) -> str:
        return "\n".join(safe_text(line, len(line)) for line in text.split("\n"))

    if isinstance(messages, str):
        return Text(shown(messages))
    whole = Text()
    for index, message in enumerate(normalize_messages(messages)):
        style = "bright_cyan" if message["role"] == "assistant" else "bright_magenta"
        whole.append("\n\n" if index else "").append(f"{message['role']}: ", style="bold")
        reasoning = message.get("reasoning_content")
        if reasoning:
            whole.append(f"\n[reasoning]\n{shown(str(reasoning))}\n\n", style="dim")
        whole.append(shown(content_text(message.get("content"))), style=style)
        for call in map(as_tool_call, message.get("tool_calls") or []):
            payload = {"name": call["name"], "args": call["arguments"]}
            whole.append(f"\n\n[tool call]\n{shown(json.dumps(payload, indent=2, ensure_ascii=False))}", style=style)
    return whole
