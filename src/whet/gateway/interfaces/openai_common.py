"""What the interfaces of OpenAI have in common: sampling, streams of several choices, usage, tools and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from whet.gateway.wire import INT64, Body, RequestError, TurnRequest, event, given, tool_of
from whet.inference.protocol import MOST_STOP_CHARACTERS, MOST_STOPS
from whet.types import Messages, Response, Tool

Stop = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]


class StreamOptions(Body):
    """`include_usage`: a last event with the usage."""

    include_usage: bool = False


class SamplingFields(Body):
    """How to draw tokens, as vLLM and OpenAI name it."""

    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1, le=INT64["le"])
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64["le"])
    min_p: float | None = Field(None, ge=0, le=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    seed: int | None = Field(None, ge=INT64["ge"], le=INT64["le"])


class SamplingBody(SamplingFields):
    """The fields of both interfaces."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    def turn(
        self, messages: Messages, max_tokens: int | None, *, tools: list[Tool] | None = None, logprobs: bool
    ) -> TurnRequest:
        """The request as a turn."""
        sampling_args = given(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop or None,
            seed=self.seed,
        )
        return TurnRequest(
            model=self.model,
            messages=messages,
            tools=tools,
            sampling_args=sampling_args,
            stream=bool(self.stream),
            stream_usage=self.stream_options is not None and self.stream_options.include_usage,
            token_ids=bool(self.return_token_ids),
            logprobs=logprobs,
            choices=self.n or 1,
        )


class ChoiceEvents:
    """The end of a stream with choices, which is the same in both interfaces."""

    def __init__(self, request: TurnRequest, head: dict[str, Any]) -> None:
        self._request, self._head = request, head
        if request.stream_usage:
            self._head["usage"] = None

    def last(self, index: int, response: Response) -> dict[str, Any]:
        """The last event of a choice, without its head."""
        raise NotImplementedError

    def finish(self, responses: Sequence[Response]) -> str:
        """The last event of each choice, the usage where requested, then `[DONE]`."""
        said = "".join(event({**self._head, **self.last(*choice)}) for choice in enumerate(responses))
        if self._request.stream_usage:
            said += event({**self._head, "choices": [], "usage": usage_of(responses)})
        return said + event("[DONE]")

    def fail(self, error: RequestError) -> str:
        """The error as an event."""
        return event(write_error(error))


def usage_of(responses: Sequence[Response]) -> dict[str, Any]:
    """Of all choices together: their prompt, which is the same, is counted once."""
    usages = [response.usage for response in responses if response.usage is not None]
    read = max((usage.prompt_tokens for usage in usages), default=0)
    written = sum(usage.completion_tokens for usage in usages)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class FunctionSpec(Body):
    """A function as a request describes it."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


def chosen_tools(tools: Sequence[tuple[str, FunctionSpec]], choice: Any) -> list[Tool] | None:
    """The tools that the model is shown, from pairs of type and function. A choice that forces a call is refused."""
    if choice == "none":
        return None
    if choice not in (None, "auto"):
        raise RequestError("tool_choice: only 'auto' and 'none' are possible here", param="tool_choice")
    for index, (kind, _) in enumerate(tools):
        if kind != "function":
            raise RequestError(f"tools.{index}.type: only 'function' is possible here", param=f"tools.{index}.type")
    return [tool_of(tool.name or "", tool.description, tool.parameters) for _, tool in tools] or None


def write_error(error: RequestError) -> dict[str, Any]:
    """An `error` object with OpenAI's type for the status."""
    return {"error": {"message": error.message, "type": kind_of(error), "param": error.param, "code": error.code}}


def kind_of(error: RequestError) -> str:
    """OpenAI's name for what an HTTP status means."""
    if error.status >= 500:
        return "server_error"
    named = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return named.get(error.status, "invalid_request_error")
