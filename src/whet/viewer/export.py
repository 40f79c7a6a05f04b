"""One rollout as text, to be copied or saved: Markdown, plain text, or the JSON line it is.

Whatever a model or an environment wrote stays what it is: characters that could steer a terminal or reorder a line
are written as escapes (`\\x1b`), and in Markdown every message stands in a fence that its text cannot close.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from whet.messages import readable_text
from whet.system.files import json_line
from whet.viewer.calls import tool_calls

Format = Literal["markdown", "text", "json"]
SUFFIXES: Mapping[Format, str] = {"markdown": ".md", "text": ".txt", "json": ".json"}
_FACTS = ("environment", "example_id", "reward", "advantage", "stop_condition", "is_truncated", "answer")


def export(row: Mapping[str, Any], format: Format) -> str:
    """A rollout in one of the formats, with a newline at its end."""
    formats: dict[Format, Callable[[Mapping[str, Any]], str]] = {"markdown": markdown, "text": plain, "json": json_line}
    return formats[format](row)


def markdown(row: Mapping[str, Any]) -> str:
    """Headings for what was asked and what the model did; facts as a list."""
    blocks = ["# Rollout", "\n".join(f"- {name}: {_code(value)}" for name, value in _facts(row, _name))]
    for title, text in _parts(row, _name):
        blocks += [f"## {title}", _fenced(text)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def plain(row: Mapping[str, Any]) -> str:
    """The same without marks: facts, then every message under its title."""
    blocks = ["\n".join(f"{name}: {visible(value)}" for name, value in _facts(row, visible))]
    blocks += [f"--- {title} ---\n{visible(text, lines=True)}" for title, text in _parts(row, visible)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with escapes for what cannot be seen; on one line, or with `lines` on those it has."""
    kept = "\n\t" if lines else ""
    text = text.replace("\r\n", "\n") if lines else text
    return "".join(one if one.isprintable() or one in kept else _escape(one) for one in text)


def _escape(character: str) -> str:
    code = ord(character)
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _facts(row: Mapping[str, Any], name_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for name in _FACTS:
        if row.get(name) is not None:
            yield name, _written(row[name])
    metrics = row.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        yield f"metric {name_of(str(name))}", _written(value)
    error = row.get("error")
    if error is not None:
        chain = error.get("error_chain_repr") if isinstance(error, Mapping) else None
        yield "error", _written(chain if chain is not None else error)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parts(row: Mapping[str, Any], name_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """(title, text) of every message, its reasoning and its tool calls, in order."""
    for name in ("prompt", "completion"):
        messages = row.get(name)
        if isinstance(messages, str):
            yield name, messages
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, Mapping):
                yield from _message(message, name_of)


def _message(message: Mapping[str, Any], name_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    role = name_of(str(message.get("role") or "message"))
    reasoning = message.get("reasoning_content")
    calls = list(tool_calls(message))
    text = readable_text(message.get("content"))
    if isinstance(reasoning, str) and reasoning:
        yield f"{role}, reasoning", reasoning
    if text or not (reasoning or calls):
        yield role, text
    for call in calls:
        yield f"{role} calls {name_of(call.name or 'a tool')}", call.arguments


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{visible(text, lines=True)}\n{fence}"


def _name(text: str) -> str:
    """A name in Markdown: as it is where it is a plain word."""
    return text if re.fullmatch(r"[\w -]+", text) else _code(text)


def _code(text: str) -> str:
    """`text` as inline code, whatever backticks are in it."""
    shown = visible(text)
    longest = max(map(len, re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
