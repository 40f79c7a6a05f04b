"""What one endpoint does not take of a request, and what is sent in its place.

Endpoints that speak OpenAI's interface refuse different fields of it. A refusal that names a field (or a form of
messages) is learned: the request is sent again without it, and so are all later ones. `fields` and `forms` of an
endpoint in endpoints.toml say so from the start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from whet.clients.config import EndpointConfig, MessageForm
from whet.messages import content_text

RENAMES = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}
_NEEDED = frozenset(
    {"model", "messages", "prompt", "input", "role", "content", "type", "text", "tools", "function", "name", "id"}
    | {"tool_calls", "tool_call_id", "parameters", "properties", "arguments", "system", "image_url", "url"}
    | {"extra_body", "extra_headers", "extra_query", "timeout"}
)
"""Without these a request would be another one."""
_REFUSED = re.compile(
    r"unsupported|not (\w+ )?(supported|permitted|allowed|recogni[sz]ed|accepted|valid (field|param))|unknown"
    r"|extraneous|unrecogni[sz]ed|unexpected|extra[ _](inputs?|fields?|forbidden|propert)"
    r"|do(es)? not (support|allow|accept)|find field|no such field|additional propert|deprecated|cannot both be"
    r"|may only be|only the default",
    re.IGNORECASE,
)


class Dialect:
    """What one endpoint is known not to take. Shared by all its requests."""

    def __init__(self, config: EndpointConfig | None) -> None:
        self.fields: dict[str, str] = dict(config.fields) if config is not None else {}
        self.forms: list[MessageForm] = list(config.forms) if config is not None else []

    def spoken(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a request as the endpoint takes them."""
        if not self.fields and not self.forms:
            return dict(request)
        said = dict(_without(request, self.fields))
        for form, (_, change) in _FORMS.items():
            if form in self.forms and isinstance(said.get("messages"), list):
                said["messages"] = change(said["messages"])
        return said

    def learn(self, refusal: str, request: Mapping[str, Any]) -> str | None:
        """What to change after a refusal of `request`, in words; None where it names nothing that can be changed."""
        messages = request.get("messages")
        messages = messages if isinstance(messages, list) else []
        for form, (wording, change) in _FORMS.items():
            if re.search(wording, refusal, re.IGNORECASE | re.DOTALL) and change(messages) != messages:
                self.forms.append(form)
                return f'forms = ["{form}"]'
        name = _named(refusal, request) if _REFUSED.search(refusal) else None
        if name is None:
            return None
        target = RENAMES.get(name, "")
        if target in self.fields:  # neither name is taken
            self.fields[target] = target = ""
        self.fields[name] = target
        return f'fields = {{ {name} = "{self.fields[name]}" }}'


def _named(refusal: str, request: Mapping[str, Any]) -> str | None:
    """The field of the request that a refusal names first; of two that exclude each other, the second."""
    positions: list[tuple[int, str]] = []
    for name in set(_names(request)) - _NEEDED:
        word = rf"(?:{re.escape(name)}|{re.escape(re.sub('_([a-z])', lambda letter: letter[1].upper(), name))})"
        # A plain word has to be marked as a name: "stop" and "user" are words of any sentence.
        marked = word if "_" in name else rf"(?<=[\"'`.\[]){word}|{word}(?=[\"'`\]:])"
        if match := re.search(rf"(?<!\w)(?:{marked})(?!\w)", refusal):
            positions.append((match.start(), name))
    names = [name for _, name in sorted(positions)]
    return names[-1 if re.search(r"cannot both|only one of|together", refusal) else 0] if names else None


def _names(value: Any) -> Iterator[str]:
    """The names of fields anywhere in a request, except those of the user's own data."""
    if isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            if key == "properties" and isinstance(inner, Mapping):
                yield from _names(list(inner.values()))
            elif key not in ("arguments", "input") or isinstance(inner, list):
                yield from _names(inner)


def _without(value: Any, fields: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_without(item, fields) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        if key in fields:
            if fields[key] and inner is not None:
                kept[fields[key]] = inner
        elif key == "properties" and isinstance(inner, Mapping):
            kept[key] = {name: _without(schema, fields) for name, schema in inner.items()}
        else:
            kept[key] = (
                inner if key in ("arguments", "input") and not isinstance(inner, list) else _without(inner, fields)
            )
    if isinstance(kept.get("required"), list) and isinstance(kept.get("properties"), dict):
        kept["required"] = [name for name in kept["required"] if name in kept["properties"]]
    return kept


def _each(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """A change of some fields of each message, for all of them."""
    return lambda messages: [{**message, **change(message)} for message in messages]


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    parts = _parts(message)
    whole = isinstance(message.get("content"), list) and all(part.get("type") == "text" for part in parts)
    return {"content": "\n".join(part["text"] for part in parts)} if whole else {}


def _filled(message: dict[str, Any]) -> dict[str, Any]:
    return {} if message.get("content") or message.get("tool_calls") else {"content": "(no text)"}


def _images_as_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images that tools returned in a user message after the results of all the calls."""
    written: list[dict[str, Any]] = []
    images: list[Any] = []
    for message in [*messages, {"role": ""}]:
        if images and message["role"] != "tool":
            written.append({"role": "user", "content": images})
            images = []
        if message["role"] == "tool" and (others := [part for part in _parts(message) if part.get("type") != "text"]):
            images = [*images, *others]
            message = {**message, "content": content_text(message["content"]) or "The result is in the next message."}
        written.append(message)
    return written[:-1]


def _system_as_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system's text before that of the first user message."""
    system = [part for message in messages if message["role"] == "system" for part in _parts(message)]
    rest = [message for message in messages if message["role"] != "system"]
    begun = bool(rest) and rest[0]["role"] == "user"
    first = {"role": "user", "content": [*system, *(_parts(rest[0]) if begun else ())]}
    return [{**first, **_joined(first)}, *rest[begun:]] if system else messages


def _short_ids(message: dict[str, Any]) -> dict[str, Any]:
    def short(id: str) -> str:
        known = re.fullmatch("[A-Za-z0-9]{9}", id)
        return id if known else hashlib.blake2b(id.encode(), digest_size=8).hexdigest()[:9]

    changed: dict[str, Any] = {"tool_call_id": short(message["tool_call_id"])} if "tool_call_id" in message else {}
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": short(call["id"])} for call in message["tool_calls"]]
    return changed


_FORMS: dict[MessageForm, tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]]] = {
    "no_null_content": (
        r"content.{0,80}(\bnull\b|\bnone(type)?\b|<nil>|string)|(null|none)\b.{0,80}content",
        _each(lambda message: {"content": ""} if message.get("content") is None else {}),
    ),
    "images_as_user": (r"image|multi-?modal|content (type|part)|string", _images_as_user),
    "system_as_user": (
        r"(system|developer)\b.{0,60}\b(not|unsupported|only)\b|not support.{0,20}\b(system|developer)\b",
        _system_as_user,
    ),
    "text_content": (r"(sequence|array|list|must|should|expected)\b.{0,80}\bstr(ing)?\b", _each(_joined)),
    "no_empty_content": (r"(content|message|text)\b.{0,80}(empty|blank|whitespace|at least|either)", _each(_filled)),
    "short_call_ids": (r"tool.?call.?id.{0,120}(length|a-z)", _each(_short_ids)),
}
"""For each form: how refusals name it, and the change of the messages."""
