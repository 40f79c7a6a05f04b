"""Types, constants and small functions of the `verifiers` 0.1 contract, with the arguments they have there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from whet.calls import CallSpec, maybe_await
from whet.content import Record
from whet.errors import Error
from whet.system.logs import log_level
from whet.types import RolloutInput

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
