"""The state of a rollout as a line of JSON, from a worker to its session, and the state again.

    {"messages": [...], "trajectory": [{"prompt": [0, 1], "completion": [2], "answer": 5, "tokens": {...}, ...}], ...}

Messages are written once, and named by their number. Of an answer that a model of the session gave, the session has the
tokens as they were sampled: the line has its number, and only those tokens that the environment has changed. What JSON
cannot hold stays behind: clients, handles of the environment, columns of the row, which the session has itself.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from typing import Any

import whet.errors
from whet.calls import RAISED_AT, place_of
from whet.clients.client import Client
from whet.clients.usage import UsageTotals
from whet.lazy_ids import TurnTokens, unread
from whet.messages import normalize_messages
from whet.timing import RolloutTiming, TimeSpan
from whet.types import Response, ResponseMessage, ResponseTokens, State, Tool, Usage

_SPANS = ("setup", "generation", "scoring")
_LISTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs", "kept_mass")
_ARRAYS = ("kept", "routed_experts")
"""Of a turn's tokens, those that are no JSON. An environment may cut them, and not change them."""
_NOT_WRITTEN = frozenset({"client", "model", "input", "timing", "trajectory", "error", "completion"})
_STEP_NOT_WRITTEN = frozenset({"prompt", "completion", "response", "tokens"})


class Answers:
    """In a worker: the answers to one job, and their tokens as they arrived."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[int, Response, dict[str, list[Any]]]] = {}

    def note(self, number: int, response: Response) -> None:
        tokens = response["message"].get("tokens") or {}
        arrived = {name: list(tokens[name]) for name in _LISTS if name in tokens}
        self._answers[id(response)] = number, response, arrived

    def find(self, response: Any) -> tuple[int, dict[str, list[Any]]] | None:
        """The number of an answer, and its tokens as they arrived; None for what is no answer to this job."""
        entry = self._answers.get(id(response))
        return None if entry is None else (entry[0], entry[2])


def state_line(state: State, answers: Answers) -> bytes:
    """In a worker: a state as one line."""
    return _StateWriter(answers).line(state)


def turns_before(trajectory: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In a worker: the turns a rollout begins with, as far as a model reads them."""
    turns = []
    for step in trajectory:
        message = dict(step["response"]["message"])
        if message.get("tokens") is not None:
            message["tokens"] = {name: message["tokens"][name] for name in _LISTS if name in message["tokens"]}
        response = {"id": step["response"]["id"], "model": step["response"]["model"], "message": message}
        turns.append({"prompt": step["prompt"], "completion": step["completion"], "response": response})
    return turns


class _StateWriter:
    """Writes one state."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._numbers: dict[int, int] = {}  # of messages, by their identity
        self._messages: list[Any] = []

    def line(self, state: State) -> bytes:
        row = state["input"]
        fields = {key: value for key, value in state.items() if key not in _NOT_WRITTEN and value is not row}
        parts = {
            "fields": _encoded(fields),
            "rows": json.dumps([key for key, value in state.items() if value is row and key != "input"]),
            "totals": _encoded({key: value.seen for key, value in state.items() if isinstance(value, UsageTotals)}),
            "input": _encoded({**row, "prompt": self._conversation(row.get("prompt"))}),
            "completion": json.dumps(self._conversation(state.get("completion")), default=_plain_or_text),
            "trajectory": f"[{', '.join(map(self._step, state['trajectory']))}]",
            "error": json.dumps(error_chain(state.get("error"))),
            "timing": json.dumps(state["timing"].model_dump()),
        }
        parts["messages"] = json.dumps(self._messages, default=_plain_or_text)
        return _object(parts).encode() + b"\n"

    def _conversation(self, value: Any) -> Any:
        """Messages by their numbers; what is no list of messages as it is."""
        if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
            return value
        return {"messages": [self._number(message) for message in value]}

    def _number(self, message: Any) -> int:
        number = self._numbers.get(id(message))
        if number is None:
            number = self._numbers[id(message)] = len(self._messages)
            self._messages.append(message)  # alive until the line is written, so that its identity is its own
        return number

    def _step(self, step: Mapping[str, Any]) -> str:
        parts = {
            name: json.dumps(self._conversation(step[name]), default=_plain_or_text)
            for name in ("prompt", "completion")
            if name in step
        }
        recorded = self._answers.find(step.get("response"))
        if recorded is not None:
            parts["answer"] = str(recorded[0])
        elif isinstance(step.get("response"), Mapping):
            parts["response"] = json.dumps(step["response"], default=_plain_or_text)
        if "tokens" in step:
            parts["tokens"] = _tokens(step["tokens"], {} if recorded is None else recorded[1])
        parts["fields"] = _encoded({key: value for key, value in step.items() if key not in _STEP_NOT_WRITTEN})
        return _object(parts)


def _tokens(tokens: Mapping[str, Any] | None, arrived: Mapping[str, list[Any]]) -> str:
    """Of a turn: for each list its length where it begins like the one that arrived, else the list."""
    if tokens is None:
        return "null"
    written: dict[str, Any] = {}
    for name, value in tokens.items():
        if name in _ARRAYS:
            written[name] = len(tokens["completion_ids"]) if name == "kept" else len(value)
        elif name in arrived and list(value) == arrived[name][: len(value)]:
            written[name] = {"first": len(value)}
        else:
            written[name] = value
    return json.dumps(written, default=_plain_or_text)


def state_of_line(
    line: bytes, row: Mapping[str, Any], client: Client[Any, Any, Any, Any], model: str, answers: Mapping[int, Response]
) -> State:
    """In the session: the state that a worker has written, with the tokens of `answers`, by their numbers.

    Raises `ValueError`, `KeyError` or `TypeError` for a line that is none.
    """
    record = json.loads(line)
    messages = normalize_messages(record["messages"], field_name="messages of a worker")

    def conversation(value: Any) -> Any:
        if not isinstance(value, dict) or "messages" not in value:
            return value
        return [messages[number] for number in value["messages"]]

    given = record["input"]
    given["prompt"] = conversation(given.get("prompt"))
    state = State(record["fields"])
    state.update(
        input={**row, **given},
        client=client,
        model=model,
        completion=conversation(record["completion"]),
        trajectory=[_step_of(step, conversation, answers) for step in record["trajectory"]],
        error=error_of_chain(record["error"]),
        timing=_timing_of(record["timing"]),
        tool_defs=[Tool(**tool) for tool in state.get("tool_defs") or ()],
    )
    for name in record["rows"]:  # a state's task is its row where the row names none
        dict.__setitem__(state, name, state["input"])
    for name, seen in record["totals"].items():
        totals = UsageTotals()
        totals.update(state[name])
        totals.seen = bool(seen)
        dict.__setitem__(state, name, totals)
    return state


def _step_of(record: Mapping[str, Any], conversation: Any, answers: Mapping[int, Response]) -> dict[str, Any]:
    step: dict[str, Any] = {name: conversation(record[name]) for name in ("prompt", "completion") if name in record}
    sampled: Mapping[str, Any] = {}
    if "answer" in record:
        step["response"] = answers[record["answer"]]
        sampled = step["response"]["message"].get("tokens") or {}
    elif "response" in record:
        step["response"] = response_of(record["response"])
    if "tokens" in record:
        step["tokens"] = None if record["tokens"] is None else _tokens_of(record["tokens"], sampled)
    step.update(record["fields"])
    return step


def _tokens_of(record: Mapping[str, Any], sampled: Mapping[str, Any]) -> dict[str, Any]:
    tokens: dict[str, Any] = {}
    for name, value in record.items():
        if name in _ARRAYS:
            if name in sampled:  # else another client's, which stays behind
                tokens[name] = sampled[name].first(value) if name == "kept" else sampled[name][:value]
        elif isinstance(value, dict) and value.keys() == {"first"}:
            whole = unread(sampled, name)
            tokens[name] = whole if len(whole) == value["first"] else list(whole)[: value["first"]]
        else:
            tokens[name] = value
    return TurnTokens(tokens)


def response_of(record: Mapping[str, Any]) -> Response:
    """A response from its JSON."""
    message = {key: value for key, value in record["message"].items() if key != "role"}
    if isinstance(message.get("tokens"), Mapping):
        message["tokens"] = ResponseTokens(**message["tokens"])
    usage = record.get("usage")
    rest = {key: value for key, value in record.items() if key not in ("message", "usage")}
    return Response(
        **rest,
        message=ResponseMessage(message.pop("content", None), **message),
        usage=Usage(**usage) if isinstance(usage, Mapping) else None,
    )


def _timing_of(record: Mapping[str, Any]) -> RolloutTiming:
    timing = RolloutTiming()
    timing.start_time = record["start_time"]
    for name in _SPANS:
        setattr(timing, name, TimeSpan(record[name]["start"], record[name]["end"]))
    for name in ("model", "env"):
        getattr(timing, name).spans = [TimeSpan(span["start"], span["end"]) for span in record[name]["spans"]]
    return timing


# Errors: what a person reads of them, under their own names


def error_chain(error: BaseException | None) -> list[dict[str, str]]:
    """An error and its causes, each with the line that raised it."""
    chain = []
    while error is not None:
        chain.append({"kind": type(error).__name__, "text": str(error), "repr": repr(error), "place": place_of(error)})
        error = error.__cause__
    return chain


def error_of_chain(chain: Sequence[Mapping[str, str]]) -> Exception | None:
    """The error again; one of a class that is not known here has its name, and is an `Error`."""
    last: Exception | None = None
    for link in reversed(chain):
        known = getattr(whet.errors, link["kind"], None) or getattr(builtins, link["kind"], None)
        base = known if isinstance(known, type) and issubclass(known, Exception) else whet.errors.Error
        said = {"__str__": _saying(link["text"]), "__repr__": _saying(link["repr"]), "__module__": base.__module__}
        kind: type[Exception] = type(link["kind"], (base,), said)
        error = kind.__new__(kind, link["text"])
        error.__dict__[RAISED_AT] = link["place"]
        error.__cause__, last = last, error
    return last


def _saying(text: str) -> Any:
    return lambda _: text


# JSON


def _object(parts: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in parts.items()) + "}"


def _encoded(fields: Mapping[str, Any]) -> str:
    """The fields that JSON can hold."""
    parts = {}
    for key, value in fields.items():
        try:
            parts[key] = json.dumps(value, default=_plain)
        except (TypeError, ValueError, RecursionError):  # no JSON, or a circle
            continue
    return _object(parts)


def _plain(value: Any) -> Any:
    """What JSON does not know, where it means the same: numbers of numpy, mappings, dates as text."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def _plain_or_text(value: Any) -> Any:
    try:
        return _plain(value)
    except (TypeError, ValueError):
        return str(value)
