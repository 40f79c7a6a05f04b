"""`reflections.jsonl`: requests to the reflection model and its replies, saved before they are used.

A row is found by its request and by how often the same request was made before. So a resumed search gets the same
replies, unusable ones included, and pays for none of them twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from whet.errors import RunError
from whet.system.files import LineFile, read_lines
from whet.types import Messages

Failure = Literal["refused", "too long"]
"""Why there is no answer: a content filter refused, or the request does not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class ReflectionRequest:
    """One question to a reflection model."""

    model: str
    messages: Messages
    sampling: Mapping[str, Any]  # without a seed, which follows from the key and the number

    @property
    def key(self) -> str:
        """16 hexadecimal digits that depend on the model, the messages and the sampling alone."""
        parts = [self.model, [dict(message) for message in self.messages], dict(self.sampling)]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class ReflectionReply:
    """An answer, or a failure that a second request would not change."""

    answer: str | None = None
    failure: Failure | None = None
    said: str = ""  # by the server, of a failure
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None  # tokens, and `cost` where the price is known
    replayed: bool = False  # whether an earlier process made the request

    @property
    def cut_off(self) -> bool:
        return self.finish_reason == "length"


class ReflectionLog:
    """The file, and what of it is needed to answer from it."""

    def __init__(self, path: Path) -> None:
        """Open it, mending a torn last line. Raises `RunError` for a line inside that is not JSON."""
        self.path = path
        self._replies: dict[tuple[str, int], ReflectionReply] = {}
        self.cost: float | None = None
        """Dollars that every answer in the file has cost; None where no price is known."""
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise self._cannot_write(error) from error
        if path.exists():
            for row in read_lines(path):
                self._keep(row["key"], row["number"], replace(ReflectionReply(**row["reply"]), replayed=True))

    def find(self, key: str, number: int) -> ReflectionReply | None:
        """The reply to this request when it was made for the `number`th time, from 0."""
        return self._replies.get((key, number))

    def write(self, request: ReflectionRequest, number: int, reply: ReflectionReply, about: Mapping[str, Any]) -> None:
        """Keep a reply; when this returns it survives a loss of power. `about` is for people who read the file."""
        key = request.key
        row = {
            "key": key,
            "number": number,
            **about,
            "model": request.model,
            "sampling": dict(request.sampling),
            "messages": [dict(message) for message in request.messages],
            "reply": {name: value for name, value in asdict(reply).items() if name != "replayed"},
        }
        try:
            self._file.append([row])
        except OSError as error:
            raise self._cannot_write(error) from error
        self._keep(key, number, reply)

    def _keep(self, key: str, number: int, reply: ReflectionReply) -> None:
        self._replies[key, number] = reply
        usage = reply.usage or {}
        if usage.get("cost") is not None:
            self.cost = (self.cost or 0.0) + float(usage["cost"])

    def _cannot_write(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path}: cannot write ({error.strerror or error}); what was written before is kept. "
            "Free some space or repair the disk, then continue with --resume."
        )
