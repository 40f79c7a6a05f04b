"""`OpenAIChatCompletionsClient`: any server that speaks OpenAI's chat completions, through the `openai` package.

Token ids and logprobs are taken over where the server returns them (vLLM with `return_token_ids`). Which failures end a
run is in `provider_client.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from whet.clients.providers.openai_shared import OpenAIPosts, finish_reason_of, one_choice, usage_of
from whet.errors import EmptyModelResponseError, InvalidModelResponseError
from whet.messages import as_tool_call, content_text, whole_characters
from whet.types import Messages, Response, ResponseMessage, ResponseTokens, SamplingArgs, Tool, ToolCall

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

NativeMessage: TypeAlias = dict[str, Any]
NativeTool: TypeAlias = dict[str, Any]

REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details")  # as the servers spell it


class OpenAIChatCompletionsClient(OpenAIPosts[list[NativeMessage], "ChatCompletion", NativeTool]):
    """OpenAI's chat completions, and every server that speaks them."""

    resource = "chat.completions"
    answers = "openai.types.chat:ChatCompletion"

    async def to_native_prompt(self, messages: Messages) -> tuple[list[NativeMessage], dict[str, Any]]:
        return [whole_characters(_native_message(message)) for message in messages], {}

    async def to_native_tool(self, tool: Tool) -> NativeTool:
        return {"type": "function", "function": {key: value for key, value in tool.items() if value is not None}}

    async def get_native_response(
        self,
        prompt: list[NativeMessage],
        model: str,
        sampling_args: SamplingArgs,
        tools: list[NativeTool] | None = None,
        **kwargs: Any,
    ) -> ChatCompletion:
        arguments = dict(sampling_args)
        if "max_tokens" in arguments:
            arguments["max_completion_tokens"] = arguments.pop("max_tokens")
        if "modalities" not in arguments and _has_audio(prompt):
            arguments["modalities"] = ["text"]
        response: ChatCompletion = await self.post(
            arguments,
            model=model,
            messages=prompt,
            tools=tools or None,
            extra_headers=kwargs.get("extra_headers"),
        )
        return response

    async def raise_from_native_response(self, response: ChatCompletion) -> None:
        message = one_choice(response).message
        if not (content_text(message.content) or message.tool_calls or _reasoning(message)):
            raise EmptyModelResponseError("the model returned no text, no reasoning and no tool call")

    async def from_native_response(self, response: ChatCompletion) -> Response:
        choice = response.choices[0]
        message = ResponseMessage(
            content=choice.message.content,
            tool_calls=_tool_calls(choice.message),
            reasoning_content=_reasoning(choice.message),
            finish_reason=finish_reason_of(choice),
            is_truncated=choice.finish_reason == "length",
            tokens=_tokens(response),
        )
        return Response(
            id=response.id or "",
            created=response.created or 0,
            model=response.model or "",
            usage=usage_of(response),
            message=message,
        )


def _native_message(message: Mapping[str, Any]) -> NativeMessage:
    role = message["role"]
    content = message.get("content")
    native: NativeMessage = {
        "role": "user" if role == "text" else role,
        "content": [dict(part) for part in content] if isinstance(content, list) else content,
    }
    if content == []:  # of a tool that found nothing; endpoints refuse a list without parts
        native["content"] = ""
    if role == "tool":
        native["tool_call_id"] = message.get("tool_call_id", "")
    if role == "assistant":
        if message.get("reasoning_content") is not None:
            native["reasoning_content"] = message["reasoning_content"]
        if message.get("tool_calls"):
            native["tool_calls"] = [
                {
                    "type": "function",
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in message["tool_calls"]
            ]
    return native


def _has_audio(prompt: list[NativeMessage]) -> bool:
    return any(
        str(part.get("type", "")).startswith("input_audio")
        for message in prompt
        if isinstance(message["content"], list)
        for part in message["content"]
    )


def _reasoning(message: Any) -> str | None:
    for field in REASONING_FIELDS:
        value = getattr(message, field, None)
        if isinstance(value, str):
            return value
    return None


def _tool_calls(message: Any) -> list[ToolCall] | None:
    calls = message.tool_calls or []
    return [as_tool_call(call) for call in calls if getattr(call, "function", None) is not None] or None


def _tokens(response: Any) -> ResponseTokens | None:
    """The ids and logprobs of the turn; None unless the server returned all of them."""
    choice = response.choices[0]
    prompt_ids = getattr(response, "prompt_token_ids", None)
    completion_ids = getattr(choice, "token_ids", None)
    logprobs = getattr(choice.logprobs, "content", None)
    if prompt_ids is None or completion_ids is None or logprobs is None:
        return None
    if len(logprobs) != len(completion_ids):
        raise InvalidModelResponseError(
            f"the server returned {len(completion_ids)} token ids and {len(logprobs)} logprobs for one turn"
        )
    return ResponseTokens(
        prompt_ids=list(prompt_ids),
        completion_ids=list(completion_ids),
        completion_logprobs=[token.logprob for token in logprobs],
    )
