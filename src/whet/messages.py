"""From the messages of a dataset, an environment or a model to the message types of `whet.types`.

Everything inside whet works on `Record` messages; plain OpenAI-shaped dicts are converted once, here, where they enter.
Nothing here renders text for a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from whet.content import fields_of
from whet.types import (
    AssistantMessage,
    Message,
    Messages,
    Record,
    SystemMessage,
    TextMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

_MESSAGE_TYPES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage, TextMessage)
_CONSTRUCTORS: dict[str, type[Record]] = {
    "system": SystemMessage,
    "developer": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "text": TextMessage,
}
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_MARKS = {"image_url": "[image]", "input_audio": "[audio]", "audio": "[audio]"}
_ATOMS = (str, int, float, bool, type(None))


def normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """`value` as a list of messages; the same list where it is one already.

    A string is one `TextMessage`; a single message is a list of one. Raises TypeError or ValueError that say which
    item of `field_name` is not a message, and why.
    """
    if isinstance(value, str):
        return cast(Messages, [TextMessage(value)])
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise TypeError(f"{field_name} should be a list of messages or a string, not {type(value).__name__}")
    if isinstance(value, list) and all(isinstance(message, _MESSAGE_TYPES) for message in value):
        return value
    return [as_message(message, f"{field_name}[{index}]") for index, message in enumerate(value)]


def as_message(value: Any, where: str = "message") -> Message:
    """One message, from a `Record`, a plain dict or an object that dumps itself to one (`model_dump`)."""
    if isinstance(value, _MESSAGE_TYPES):
        return value
    fields = fields_of(value, f"{where} should be a message (a dict with a role)")
    role = fields.pop("role", None)
    constructor = _CONSTRUCTORS.get(role) if isinstance(role, str) else None
    if constructor is None:
        raise ValueError(f"{where} has role {role!r}; roles are system, user, assistant and tool")
    content = fields.pop("content", None)
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = list(content)
    elif not isinstance(content, str) and (content is not None or constructor is not AssistantMessage):
        raise ValueError(f"{where} (role {role}) has content {content!r:.80}; it should be text or a list of parts")
    calls = fields.get("tool_calls")
    if calls is not None:
        if constructor is AssistantMessage and isinstance(calls, Sequence) and not isinstance(calls, str):
            fields["tool_calls"] = [as_tool_call(call, where) for call in calls]
        else:
            raise ValueError(f"{where}: tool_calls should be a list on an assistant message")
    try:
        return cast(Message, constructor(content, **fields))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from error


def as_tool_call(value: Any, where: str = "message") -> ToolCall:
    """A tool call from `{id, name, arguments}`, the OpenAI form `{id, function: {name, arguments}}`, or JSON of one.

    Arguments that are text stay as they are, to the letter: what a model wrote may be no JSON.
    """
    if isinstance(value, ToolCall):
        return value
    if isinstance(value, str):  # the form in which result rows keep them
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{where}: a tool call is text that is not JSON: {value!r:.80}") from error
    fields = fields_of(value, f"{where}: a tool call should be a dict")
    function = fields.get("function")
    source = fields if function is None else fields_of(function, f"{where}: the function of a tool call")
    name, arguments, call_id = source.get("name"), source.get("arguments"), fields.get("id")
    if not isinstance(name, str):
        raise ValueError(f"{where}: a tool call has no name: {fields!r:.200}")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    if function is None:
        extra = {key: field for key, field in fields.items() if key not in ("id", "name", "arguments")}
    else:
        extra = {}
    return ToolCall(call_id if isinstance(call_id, str) else name, name, arguments, **extra)


def object_text(arguments: Any) -> str:
    """A call's arguments for an endpoint, which takes a JSON object only: what is none is sent inside one, as text.

    No arguments at all are an empty object. The message itself keeps what the model wrote. Not in ASCII, so that
    `whole_characters` sees half characters.
    """
    try:
        value = json.loads(arguments or "null", parse_constant=_no_constant)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({"arguments": str(arguments)}, ensure_ascii=False)
    if isinstance(value, dict):
        return str(arguments)
    return "{}" if value in (None, "") else json.dumps({"arguments": arguments}, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def content_text(content: Any) -> str:
    """The text of a message's content: the string itself, or its text parts joined by a space."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for part in content:
        if isinstance(part, Mapping):
            text = part.get("text") if part.get("type") == "text" else None
        else:
            text = getattr(part, "text", None)
        if isinstance(text, str):
            texts.append(text)
    return " ".join(texts).strip()


def readable_text(content: Any) -> str:
    """The content of a message as shown to users: its text, and a mark where an image or a sound is."""
    if not isinstance(content, list):
        return content_text(content)
    return " ".join(filter(None, (_MARKS.get(_kind(part)) or content_text([part]) for part in content)))


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else getattr(part, "type", None)
    return kind if isinstance(kind, str) else ""


def whole_characters(value: Any) -> Any:
    """JSON-shaped `value` with half characters replaced (lone surrogates, as in a file name that is no UTF-8).

    Neither a server nor a tokenizer takes them. Messages keep them; only what is sent is repaired.
    """
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", value)
        return value
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    return {key: whole_characters(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def copy_value(value: Any) -> Any:
    """A deep copy that is quick for JSON-shaped values and messages, which is what dataset rows are made of."""
    if isinstance(value, _ATOMS):
        return value
    kind: Any = type(value)
    if kind is list:
        return [copy_value(item) for item in value]
    if kind is dict:
        return {key: copy_value(item) for key, item in value.items()}
    if isinstance(value, Record):
        copy: Record = kind.__new__(kind)
        dict.update(copy, {key: copy_value(item) for key, item in value.items()})
        return copy
    return deepcopy(value)
