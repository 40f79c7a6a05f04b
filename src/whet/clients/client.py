"""`Client`: one turn of a model, whatever serves it.

A client for an HTTP interface implements the native hooks, and `get_response` calls them in order. A client that has no
native form (an engine in this process, a script) overrides `get_response` itself. A client with a
`release(state)` method is called when a rollout is over. Where the endpoint's price is known, `usage` has its `cost`;
every response is charged (`usage.py`).
"""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from whet.calls import describe
from whet.clients.usage import charge
from whet.errors import Error, ModelError, WhetError
from whet.types import AssistantMessage, Messages, Response, SamplingArgs, State, Tool, ToolCall

if TYPE_CHECKING:
    from whet.clients.config import ClientConfig


ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")


class Client(ABC, Generic[ClientT, MessagesT, ResponseT, ToolT]):
    """One turn of a model, whatever serves it."""

    # Here too, for subclasses that do without this constructor.
    logger: logging.Logger = logging.getLogger(__name__)
    _config: ClientConfig | None = None

    def __init__(self, client_or_config: ClientT | ClientConfig) -> None:
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        if hasattr(client_or_config, "api_base_url"):
            self._config = cast("ClientConfig", client_or_config)
            self._client: ClientT = self.setup_client(self._config)
        else:
            self._client = client_or_config

    @property
    def client(self) -> ClientT:
        """The provider's own client."""
        return self._client

    @property
    def config(self) -> ClientConfig | None:
        """The config that it was made from; None for one made from a provider's client."""
        return self._config

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        *,
        state: State | None = None,
        on_delta: OnDelta | None = None,
        **kwargs: Any,
    ) -> Response:
        """The model's next message. `on_delta` receives it in deltas; here that is one, when it is finished.

        Raises `ModelError` or `OverlongPromptError` where this turn fails, `WhetError` where every turn would.
        """
        try:
            headers = self._headers_of(state)
            if headers:
                kwargs["extra_headers"] = headers
            if state is not None:
                kwargs["state"] = state
            native_prompt, extra = await self.to_native_prompt(prompt)
            native_tools = await self.to_native_tools(tools)
            native = await self.get_native_response(
                native_prompt, model, sampling_args, native_tools, **extra, **kwargs
            )
            await self.raise_from_native_response(native)
            response = self._priced(await self.from_native_response(native))
        except (Error, WhetError):
            raise
        except Exception as error:
            raise ModelError(describe(error)) from error
        return self.delivered(response, on_delta)

    def delivered(self, response: Response, on_delta: OnDelta | None) -> Response:
        """The response, charged, and passed to `on_delta` as one delta."""
        charge(response)
        if on_delta is not None:
            on_delta(StreamedAnswer().rest(response.message))
        return response

    def setup_client(self, config: ClientConfig) -> ClientT:
        """The provider's client for a config."""
        raise self._missing("setup_client")

    async def to_native_prompt(self, messages: Messages) -> tuple[MessagesT, dict[str, Any]]:
        """The messages in the provider's form, and further arguments for `get_native_response`."""
        raise self._missing("to_native_prompt")

    async def to_native_tool(self, tool: Tool) -> ToolT:
        """A tool in the provider's form."""
        raise self._missing("to_native_tool")

    async def to_native_tools(self, tools: list[Tool] | None) -> list[ToolT] | None:
        """`to_native_tool` of each; None where the turn has no tools."""
        return None if tools is None else [await self.to_native_tool(tool) for tool in tools]

    async def get_native_response(
        self,
        prompt: MessagesT,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[ToolT] | None = None,
        **kwargs: Any,
    ) -> ResponseT:
        """One request to the provider. Raises the provider's errors, or `ModelError`."""
        raise self._missing("get_native_response")

    async def raise_from_native_response(self, response: ResponseT) -> None:
        """Raise a `ModelError` where the response is none."""
        raise self._missing("raise_from_native_response")

    async def from_native_response(self, response: ResponseT) -> Response:
        """The provider's response as whet's own: message, usage, token ids and logprobs where they are there."""
        raise self._missing("from_native_response")

    async def close(self) -> None:
        """Close connections. Nothing to do for a client that holds none."""

    def _headers_of(self, state: State | None) -> dict[str, str]:
        wanted = self._config.extra_headers_from_state if self._config is not None else None
        if not wanted or state is None:
            return {}
        return {header: str(state[field]) for header, field in wanted.items() if state.get(field) is not None}

    def _priced(self, response: Response) -> Response:
        price = self._config.price if self._config is not None else None
        if price is not None and response.usage is not None:
            response.usage["cost"] = price.of(response.usage)
        return response

    def _missing(self, hook: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} implements neither get_response nor {hook}")


AnyClient: TypeAlias = Client[Any, Any, Any, Any]
"""A client of any provider."""


# An answer in deltas, passed on while the model still writes. Together they are the finished message.


@dataclass(frozen=True, slots=True)
class Delta:
    """What has been added: text in the order reasoning, content, and whole tool calls after it."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int | None = None  # on the first delta, where it is known

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


OnDelta = Callable[[Delta], None]
"""Receives the deltas in order. It returns at once; what it raises ends the turn."""


@dataclass(slots=True)
class StreamedAnswer:
    """What has been streamed of an answer so far."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.reasoning += delta.reasoning
        self.content += delta.content
        self.tool_calls += delta.tool_calls

    def rest(self, message: AssistantMessage) -> Delta:
        """The part of the finished `message` that is not streamed yet.

        Raises `ModelError` where something that was streamed is not in it.
        """
        reasoning, content = str(message.get("reasoning_content") or ""), str(message.get("content") or "")
        calls, streamed = list(message.get("tool_calls") or ()), len(self.tool_calls)
        kept = reasoning.startswith(self.reasoning) and content.startswith(self.content)
        if not kept or calls[:streamed] != self.tool_calls:
            raise ModelError("the answer turned out other than it was streamed; ask for it without streaming")
        return Delta(reasoning[len(self.reasoning) :], content[len(self.content) :], tuple(calls[streamed:]))
