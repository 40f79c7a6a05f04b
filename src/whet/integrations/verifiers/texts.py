"""Small functions over text: sizes and durations for people, and what judges of `verifiers.v1` answer as JSON."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from whet.messages import content_text


class JsonFormatter(logging.Formatter):
    """Log lines as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.now(UTC).isoformat(),
            "level": record.levelname,
            "name": record.name,
            "message": record.getMessage(),
            "module": record.module,
            "function": record.funcName,
            "line": record.lineno,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def print_time(time_s: float) -> str:
    """A duration in its two largest units: `1d 2h`, `3m 5s`, `7s`, `120ms`."""
    if time_s < 1:
        return f"{time_s * 1000:.0f}ms"
    if time_s < 60:
        return f"{time_s:.0f}s"
    seconds = int(time_s)
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}" + (f" {rest}{part_unit}" if rest else "")
    raise AssertionError("a minute is the smallest of the units")


def print_size(num_bytes: float) -> str:
    """A size in the largest binary unit: `1.5 GB`, `3.0 MB`, `12 bytes`."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def truncate(s: str, limit: int = 200) -> str:
    """At most `limit` characters, then `...`."""
    return s if len(s) <= limit else f"{s[:limit]}..."


def parse_judge_json(text: str) -> dict[str, Any]:
    """The JSON object of a judge's answer, also between other text; score 0 and the reason where there is none."""
    for candidate in (text, text[text.find("{") : text.rfind("}") + 1]):
        try:
            found = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {"score": 0.0, "reason": "judge did not return JSON", "raw": text}


def clamp_float(value: object) -> float:
    """The number of a value between 0 and 1; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        number = float(value)
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(number) else max(0.0, min(1.0, number))


def truncate_text(text: str, limit: int = 6_000) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n...<truncated>"


def truncate_command_record(record: Any) -> Any:
    """A record of a command with `command`, `stdout` and `stderr` cut to what a judge can read."""
    if not isinstance(record, Mapping):
        return record
    limits = {"command": 2_000, "stdout": 6_000, "stderr": 6_000}
    cut = {name: truncate_text(str(record.get(name) or ""), limit) for name, limit in limits.items()}
    return {**record, **cut}


def completion_text(completion: Any) -> str:
    """The text of the last assistant message, or of what is no list of messages."""
    if isinstance(completion, list):
        for message in reversed(completion):
            if isinstance(message, Mapping) and message.get("role") == "assistant":
                return content_text(message.get("content"))
    return str(completion or "")


def json_args(value: str) -> dict[str, Any]:
    """The arguments of a tool call. Raises ValueError where they are no JSON object."""
    arguments = json.loads(value or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a tool call should be a JSON object")
    return arguments


def assistant_completion_from_messages(prompt: list[Any], messages: list[Any]) -> list[Any]:
    """What of a conversation follows its prompt."""
    return messages[len(prompt) :]
