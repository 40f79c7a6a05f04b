"""The types that all rooms share: messages, tools, responses, trajectory steps, states, results.

Messages are OpenAI-shaped. They are plain `dict` subclasses whose keys can also be read as attributes, so
`m["content"]`, `m.get("content")` and `m.content` are the same thing, JSON needs no conversion, and a rollout
costs no validation. Names and fields follow the `verifiers` 0.1 contract.

Nothing here does I/O, and nothing here imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Self, TypeAlias, TypedDict

from whet.content import ContentPart as ContentPart
from whet.content import GenericContentPart as GenericContentPart
from whet.content import ImageUrlContentPart as ImageUrlContentPart
from whet.content import ImageUrlSource as ImageUrlSource
from whet.content import InputAudioContentPart as InputAudioContentPart
from whet.content import InputAudioSource as InputAudioSource
from whet.content import MessageContent as MessageContent
from whet.content import Record as Record
from whet.content import TextContentPart as TextContentPart
from whet.content import content_of
from whet.lazy_ids import LazyIds, TurnTokens
from whet.timing import RolloutTiming as RolloutTiming
from whet.timing import TimeSpan as TimeSpan

if TYPE_CHECKING:
    from whet.clients.client import Client

Info: TypeAlias = dict[str, Any]
"""Further data of a row, for its environment and reward functions."""
SamplingArgs: TypeAlias = dict[str, Any]
"""Arguments of sampling, as an OpenAI-compatible endpoint takes them."""
RewardFunc: TypeAlias = Callable[..., float | Awaitable[float] | list[float] | Awaitable[list[float]]]
"""A function, plain or async, that takes what it names and returns a number, or one for each rollout of a group."""
DatasetBuilder: TypeAlias = Callable[[], Any]
"""A function without arguments that returns a dataset."""
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"] | None


class SystemMessage(Record):
    """Instructions at the start of a conversation."""

    def __init__(self, content: MessageContent = "", **extra: Any) -> None:
        super().__init__({**extra, "role": "system", "content": content_of(content)})

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """The text of a file as a system message."""
        return cls(Path(path).read_text(encoding="utf-8"))


class UserMessage(Record):
    """A message of the environment in the role of the user."""

    def __init__(self, content: MessageContent = "", **extra: Any) -> None:
        super().__init__({**extra, "role": "user", "content": content_of(content)})


class ToolCall(Record):
    """One call of a tool by the model; `arguments` is the JSON text the model wrote, malformed or not."""

    def __init__(self, id: str, name: str, arguments: str, **extra: Any) -> None:
        super().__init__({**extra, "id": id, "name": name, "arguments": arguments})


class AssistantMessage(Record):
    """A message of the model, with its tool calls."""

    _defaults: ClassVar[dict[str, Any]] = {"reasoning_content": None, "tool_calls": None, "thinking_blocks": None}

    def __init__(
        self,
        content: MessageContent = None,
        *,
        tool_calls: list[ToolCall] | None = None,
        reasoning_content: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__({**extra, "role": "assistant", "content": content_of(content)})
        if tool_calls:
            self["tool_calls"] = [call if isinstance(call, ToolCall) else ToolCall(**call) for call in tool_calls]
        if reasoning_content is not None:
            self["reasoning_content"] = reasoning_content


class ToolMessage(Record):
    """The answer of a tool to one call."""

    def __init__(self, content: MessageContent = "", tool_call_id: str = "", **extra: Any) -> None:
        super().__init__({**extra, "role": "tool", "tool_call_id": tool_call_id, "content": content_of(content)})


class TextMessage(Record):
    """A prompt that is plain text, for completion models."""

    def __init__(self, content: MessageContent = "", **extra: Any) -> None:
        super().__init__({**extra, "role": "text", "content": content})


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage
"""A message of any role. Its fields can be read as attributes and as keys."""
Messages: TypeAlias = list[Message]
"""A conversation."""


class Tool(Record):
    """The definition of a tool for a model; `parameters` is a JSON schema."""

    _defaults: ClassVar[dict[str, Any]] = {"strict": None}

    def __init__(self, name: str, description: str, parameters: dict[str, Any], **extra: Any) -> None:
        super().__init__({**extra, "name": name, "description": description, "parameters": parameters})


class Usage(Record):
    """Tokens of one turn, counted by the model's server."""

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        reasoning_tokens: int = 0,
        total_tokens: int | None = None,
    ) -> None:
        super().__init__(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            reasoning_tokens=reasoning_tokens,
            total_tokens=prompt_tokens + completion_tokens if total_tokens is None else total_tokens,
        )


class ResponseTokens(TurnTokens):
    """Exactly what an engine was given and what it sampled in one turn.

    `policy_version` holds runs of equal version, `[[version, count], ...]`, whose counts add up to
    `len(completion_ids)`; it is empty where the server does not say.
    """

    def __init__(
        self,
        prompt_ids: list[int] | LazyIds,
        completion_ids: list[int],
        completion_logprobs: list[float],
        policy_version: list[list[int]] | None = None,
        prompt_mask: list[int] | None = None,
        completion_mask: list[int] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(
            {
                **extra,
                "prompt_ids": prompt_ids,
                "prompt_mask": LazyIds(len(prompt_ids)) if prompt_mask is None else prompt_mask,
                "completion_ids": completion_ids,
                "completion_mask": [1] * len(completion_ids) if completion_mask is None else completion_mask,
                "completion_logprobs": completion_logprobs,
                "policy_version": policy_version or [],
            }
        )


class ResponseMessage(AssistantMessage):
    """The model's message of one turn, with why it ended."""

    _defaults: ClassVar[dict[str, Any]] = {
        **AssistantMessage._defaults,
        "finish_reason": None,
        "is_truncated": False,
        "tokens": None,
    }


class Response(Record):
    """The result of one turn, the same for every client."""

    def __init__(
        self,
        id: str,
        model: str,
        message: ResponseMessage,
        usage: Usage | None = None,
        created: int | None = None,
        **extra: Any,
    ) -> None:
        created = int(time.time()) if created is None else created
        super().__init__({**extra, "id": id, "created": created, "model": model, "usage": usage, "message": message})


class TrajectoryStepTokens(TypedDict):
    """The tokens of one turn, right to the token; see `ResponseTokens`."""

    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    overlong_prompt: bool
    is_truncated: bool
    policy_version: list[list[int]]
    sampling: NotRequired[dict[str, float]]  # what the distributions were: temperature; top_p, top_k, min_p that cut
    kept_mass: NotRequired[list[float]]  # of each completion token: probability that those cuts left
    kept: NotRequired[Any]  # `TokenSets`: the tokens they left, where recorded
    routed_experts: NotRequired[Any]  # int16 [tokens but the last, layers, experts a token], where recorded


class TrajectoryStep(TypedDict):
    """One turn of a rollout: the model's prompt and its response."""

    prompt: Messages
    completion: Messages
    response: Response
    tokens: TrajectoryStepTokens | None
    reward: float | None
    advantage: float | None
    is_truncated: bool
    trajectory_id: str
    extras: dict[str, Any]


class TokenUsage(TypedDict):
    """Tokens of a rollout."""

    input_tokens: float
    output_tokens: float
    final_input_tokens: NotRequired[float]
    final_output_tokens: NotRequired[float]
    cost: NotRequired[float]  # dollars, where the endpoint's price is configured


class RolloutInput(TypedDict, total=False):
    """A dataset row that is ready to be attempted. `prompt` and `example_id` are always there."""

    prompt: Messages
    example_id: int
    answer: str
    info: Info | str
    task: str


_ABSENT = object()


class State(dict[str, Any]):
    """Everything known of one rollout. `prompt`, `answer`, `info` and `example_id` live in `state["input"]`."""

    INPUT_FIELDS: ClassVar[tuple[str, ...]] = ("prompt", "answer", "info", "example_id")

    client: Client[Any, Any, Any, Any]

    # Reading is the busiest operation of a rollout, so it stays the dict's own: the input's fields are kept out of
    # the dict itself, and looked up only once they are found missing from it.

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        row = dict.get(self, "input")
        if row is not None:
            for key in self.INPUT_FIELDS:
                if key in row:
                    self.pop(key, None)

    def __missing__(self, key: str) -> Any:
        if key in self.INPUT_FIELDS and "input" in self:
            return self["input"][key]
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        value = dict.get(self, key, _ABSENT)
        if value is _ABSENT:
            row = dict.get(self, "input") if key in self.INPUT_FIELDS else None
            return default if row is None else row.get(key, default)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.INPUT_FIELDS and "input" in self:
            row = self["input"]
            if key in row:
                row[key] = value
                return
        super().__setitem__(key, value)

    def __repr__(self) -> str:
        """A line. All of it, every turn with the whole conversation before it, is too much for a log: `dict(state)`."""
        shown = {name: self.get(name) for name in ("example_id", "reward", "stop_condition", "error")}
        fields = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"<State {fields}, {len(self.get('trajectory') or ())} turns>"


ROW_FIELDS = frozenset({
    "example_id", "rollout", "prompt", "completion", "answer", "info", "reward", "advantage", "metrics", "timing",
    "is_completed", "is_truncated", "stop_condition", "error", "error_chain", "long_error_chain", "tool_defs",
    "token_usage", "judge_usage", "parse_failed",
})  # fmt: skip
"""Fields of a row that have a meaning, in every row or in some."""


class RolloutOutput(dict[str, Any]):
    """A rollout as stored in `results.jsonl`: JSON values only.

    Metrics are below `metrics`. `row["exact_match"]` reads one too, unless it is called like a field.
    """

    def __missing__(self, name: str) -> Any:
        metrics = self.get("metrics") or {}
        if name in ROW_FIELDS or name not in metrics:
            raise KeyError(name)
        return metrics[name]


class GenerateMetadata(TypedDict):
    """What `metadata.json` says of one run of `generate`. Averages leave errored rollouts out."""

    env_id: str
    env_args: dict[str, Any]
    model: str
    base_url: str
    num_examples: int
    rollouts_per_example: int
    sampling_args: SamplingArgs
    date: str
    time: float
    avg_reward: float | None
    avg_metrics: dict[str, float]
    avg_error: float
    num_errors: int
    error_examples: dict[str, str]  # by class of error, what one of its rollouts says
    pass_at_k: dict[str, float]
    pass_all_k: dict[str, float]
    pass_threshold: float
    usage: TokenUsage | None
    version_info: dict[str, Any]
    state_columns: list[str]
    path_to_save: str | None
    tools: list[Tool] | None


class GenerateOutputs(TypedDict):
    """The result of `generate` and `evaluate`."""

    outputs: list[RolloutOutput]
    metadata: GenerateMetadata
