"""Types, constants and small functions of the `verifiers` 0.1 contract, with the arguments they have there."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from whet.calls import CallSpec, maybe_await, name_of
from whet.content import Record
from whet.envs.multiturn_env import completion_messages, step_tokens
from whet.envs.tool_env import ToolMonitorRubric
from whet.errors import Error
from whet.messages import content_text
from whet.system.logs import log_level
from whet.types import Messages, Response, RolloutInput, State, TrajectoryStepTokens

T = TypeVar("T")

# Prompts of mathematical environments; the first is that of lighteval (github.com/huggingface/lighteval).
BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
THINK_BOXED_SYSTEM_PROMPT = (
    "Think step by step inside <think>...</think> tags, then give your final answer in \\boxed{}."
)

CustomBaseModel = Record
BaseRolloutInput = RolloutInput
MessageType: TypeAlias = Literal["chat", "completion"]
JsonPrimitive: TypeAlias = Literal["string", "number", "integer", "boolean", "array", "object"]
SignalStage: TypeAlias = Literal["rollout", "group"]
IndividualRewardFunc: TypeAlias = Callable[..., float | Awaitable[float]]
GroupRewardFunc: TypeAlias = Callable[..., list[float] | Awaitable[list[float]]]
StartCallback: TypeAlias = Callable[[list[Any], list[Any]], None]
ProgressCallback: TypeAlias = Callable[[list[Any], list[Any], Any], None]
LogCallback: TypeAlias = Callable[[str], None]
TASK_INPUT_FIELDS = frozenset({"prompt", "answer", "info", "example_id"})
VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


class ErrorInfo(TypedDict):
    """An error as stored in a result row."""

    error: str
    error_chain_repr: str
    error_chain_str: str
    message: str


class RolloutScore(TypedDict):
    reward: float
    metrics: dict[str, float]


class RolloutScores(TypedDict):
    reward: list[float]
    metrics: dict[str, list[float]]


class VersionInfo(TypedDict, total=False):
    whet: str


def strip_non_numeric(text: str) -> str:
    """The digits and points of a text."""
    return "".join(character for character in text if character.isdigit() or character == ".")


def is_valid_tool_content_parts(value: Any) -> bool:
    """Whether a tool's result is a list of text and image parts, which a message takes as it is."""
    return isinstance(value, list) and all(
        isinstance(part, Mapping) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES for part in value
    )


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call a plain or async function with those of `objects` that it names."""
    return await maybe_await(func, **CallSpec.of(func).select(objects))


async def maybe_semaphore(limit: int | None = None) -> AbstractAsyncContextManager[Any]:
    """A semaphore of `limit` permits, or one that never waits for None, 0 and -1."""
    return asyncio.Semaphore(limit) if limit is not None and limit > 0 else nullcontext()


async def with_sem(sem: AbstractAsyncContextManager[Any], coro: Coroutine[Any, Any, T]) -> T:
    """What `coro` returns, awaited inside `sem`; closed where that is never entered."""
    try:
        async with sem:
            return await coro
    finally:
        coro.close()


NullContext = nullcontext
NullAsyncContext = nullcontext


def quiet_verifiers() -> AbstractContextManager[None]:
    """No log lines below warnings inside a `with` block."""
    return log_level("WARNING")


def get_error_chain(error: BaseException | None, parent_type: type[BaseException] | None = None) -> list[BaseException]:
    """An error and its causes, up to the first that is no `parent_type`."""
    chain = []
    while error is not None and (parent_type is None or isinstance(error, parent_type)):
        chain.append(error)
        error = error.__cause__
    return chain


def get_vf_error_chain(error: BaseException) -> list[BaseException]:
    return get_error_chain(error, Error)


class ErrorChain:
    """An error with its causes, by the names of their classes: equal where those are, `in` for kinds of errors."""

    def __init__(
        self, error: BaseException, build_error_chain: Callable[[BaseException], list[Any]] = get_error_chain
    ) -> None:
        self.root_error = error
        self.chain = build_error_chain(error)

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, ErrorChain) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __contains__(self, kind: type[BaseException]) -> bool:
        return any(isinstance(error, kind) for error in self.chain)

    def __str__(self) -> str:
        return " -> ".join(type(error).__name__ for error in self.chain)

    def __repr__(self) -> str:
        return " -> ".join(map(repr, self.chain))


# Small functions over text: sizes and durations for people, and what judges of `verifiers.v1` answer as JSON.


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
            verdict = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(verdict, dict):
            return verdict
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


# Names for environments of the `verifiers` 0.1 contract: hook types, responses as messages, tools, quiet datasets.

StopCondition: TypeAlias = Callable[[State], Awaitable[bool]]
RolloutCleanup: TypeAlias = Callable[[State], Awaitable[None]]
EnvironmentTeardown: TypeAlias = Callable[[], Awaitable[None]]


async def parse_response_message(response: Response) -> Messages:
    """The response as the one assistant message that goes into the conversation."""
    return completion_messages(response)


async def parse_response_messages(response: Response, message_type: str = "chat") -> Messages:
    """`parse_response_message` by its name before 0.1.10; a response of any kind of client is of one form now."""
    return completion_messages(response)


async def parse_response_tokens(response: Response, max_seq_len: int | None = None) -> TrajectoryStepTokens | None:
    """The tokens of a turn, cut to `max_seq_len`; None where the client gave none."""
    return step_tokens(response, max_seq_len)


def filter_signature(func: Callable[..., Any], args_to_skip: Collection[str]) -> Callable[..., Any]:
    """A function that does the same, whose signature and hints leave out `self` and these parameters."""
    if not args_to_skip:
        return func
    signature = inspect.signature(func)
    shown = [one for name, one in signature.parameters.items() if name not in args_to_skip and name != "self"]

    @functools.wraps(func, updated=())
    def filtered(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    del filtered.__wrapped__  # else its signature would be that of `func`
    hints = getattr(func, "__annotations__", {})
    filtered.__annotations__ = {name: hint for name, hint in hints.items() if name not in args_to_skip}
    filtered.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return filtered


class ToolRubric(ToolMonitorRubric):
    """Counts calls of tools, in all and of each; the name that 0.1 gave it before 0.1.9, where the count is awaited."""

    def __init__(self, tools: Sequence[Callable[..., Any]] | None = None) -> None:
        self.tools = list(tools or [])
        super().__init__([name_of(tool) for tool in self.tools])

    async def total_tool_calls(self, completion: Messages) -> float:  # type: ignore[override]
        return super().total_tool_calls(completion)


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Without the progress bars and log lines below warnings of the `datasets` package."""
    import datasets

    level = datasets.logging.get_verbosity()
    bars = datasets.is_progress_bar_enabled()
    datasets.logging.set_verbosity_warning()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()
