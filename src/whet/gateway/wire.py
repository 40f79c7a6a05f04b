"""What every interface of the gateway is translated to and from: a `TurnRequest` and whet's own `Response`.

An interface is four pure functions: read a request, write an answer, write an error, and make the writer of a stream
of events. They live in a file each; nothing here or there does I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from whet.clients.client import Delta
from whet.messages import normalize_messages
from whet.types import Messages, Response, SamplingArgs, Tool

MOST_MESSAGES = 4096
MOST_TOOLS = 512
INT64 = {"ge": -(2**63), "le": 2**63 - 1}
"""Bounds of whole numbers: what any engine behind the gateway can hold."""


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, what is wrong, and with which field."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn that a program requests from the model."""

    model: str
    messages: Messages  # none where it has `prompt_ids`
    tools: list[Tool] | None = None
    sampling_args: SamplingArgs = field(default_factory=dict)
    stream: bool = False
    stream_usage: bool = False  # a last event with the usage, in the interface that has an option for it
    token_ids: bool = False  # the answer has the token ids of prompt and completion
    logprobs: bool = False
    prompt_ids: list[int] | None = None  # the prompt, of an interface of token ids
    prompt_logprobs: bool = False  # the answer has those of the prompt's ids
    choices: int = 1  # answers to the same prompt, each drawn on its own
    headers: Mapping[str, str] = field(default_factory=dict)  # of a session's request, by names of any case


@dataclass(frozen=True, slots=True)
class AnswerId:
    """What is known of an answer before it begins."""

    id: str
    created: int


class EventWriter(Protocol):
    """Writes one streamed answer as server-sent events, ready to be sent."""

    def begin(self, prompt_tokens: int | None) -> str:
        """The stream's head; `prompt_tokens` where they are known."""

    def add(self, delta: Delta, choice: int = 0) -> str:
        """The events of a delta of one choice, counted from 0; may be empty."""

    def finish(self, responses: Sequence[Response]) -> str:
        """What comes after the last delta of all choices."""

    def fail(self, error: RequestError) -> str:
        """The interface's word for an error after the beginning; nothing comes after it."""


class Interface(Protocol):
    """One way to speak to the gateway; a module with these four functions."""

    def read_request(self, body: Any) -> TurnRequest:
        """Raises `RequestError` for what is malformed, and for what this gateway cannot do."""

    def write_answer(self, request: TurnRequest, responses: Sequence[Response]) -> dict[str, Any]:
        """`responses` are as many as the request has choices."""

    def write_stream(self, request: TurnRequest, answer: AnswerId) -> EventWriter:
        """A writer of the events of one answer."""

    def write_error(self, error: RequestError) -> dict[str, Any]:
        """The body of an error; its HTTP status is in `error.status`."""


class Body(BaseModel):
    """A request's body. Fields that are not named are ignored, as the providers do: programs send many."""

    model_config = ConfigDict(extra="ignore", frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


def read_body(model: type[BodyT], body: Any) -> BodyT:
    """`body` as `model`. Raises `RequestError` that names the first field that is wrong."""
    if not isinstance(body, Mapping):
        raise RequestError(f"the body should be a JSON object, not {_json_type(body)}")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{param}: {first['msg']}" if param else str(first["msg"]), param=param or None) from None


def read_messages(value: Any, param: str) -> Messages:
    """Messages in OpenAI's form. Raises `RequestError` that names the first that is none."""
    if not value:
        raise RequestError(f"{param} should hold at least one message", param=param)
    try:
        return normalize_messages(value, field_name=param)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(str(error), param=param) from None


def string_in(item: Mapping[str, Any], key: str, where: str) -> str:
    """A text of an item at `where`. Raises `RequestError` that names the field."""
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{key} should be a string", param=f"{where}.{key}")
    return value


def content_of(parts: list[dict[str, Any]]) -> Any:
    """Text as a string: what a chat template knows best, and what the same text was when it was sampled."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def tool_of(name: str, description: str | None, schema: dict[str, Any] | None) -> Tool:
    """A tool with the defaults of what a request left out."""
    return Tool(name=name, description=description or "", parameters=schema or {"type": "object", "properties": {}})


def given(**arguments: Any) -> SamplingArgs:
    """The sampling arguments that a request named."""
    return {name: value for name, value in arguments.items() if value is not None}


def event(data: Mapping[str, Any] | str, name: str | None = None) -> str:
    """One server-sent event."""
    # ASCII: what a model wrote may hold half characters, which UTF-8 has no bytes for.
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
