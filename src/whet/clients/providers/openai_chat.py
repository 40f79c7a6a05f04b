"""`OpenAIChatCompletionsClient`: any server that speaks OpenAI's chat completions, through the `openai` package.

Token ids and logprobs are taken over where the server returns them (vLLM with `return_token_ids`). Which failures end a
run is in `provider_client.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from whet.clients.providers.openai_shared import OpenAIPosts, one_choice, response_of, tokens_of
from whet.errors import EmptyModelResponseError
from whet.messages import as_tool_call, content_text, whole_characters
from whet.types import Messages, Response, ResponseTokens, SamplingArgs, Tool, ToolCall

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

    def sampling_of(self, sampling_args: SamplingArgs, prompt: list[NativeMessage]) -> SamplingArgs:
        arguments = dict(sampling_args)
        if "max_tokens" in arguments:
            arguments["max_completion_tokens"] = arguments.pop("max_tokens")
        if "modalities" not in arguments and _has_audio(prompt):
            arguments["modalities"] = ["text"]
        return arguments

    async def raise_from_native_response(self, response: ChatCompletion) -> None:
        message = one_choice(response).message
        if not (content_text(message.content) or message.tool_calls or _reasoning(message)):
            raise EmptyModelResponseError("the model returned no text, no reasoning and no tool call")

    async def from_native_response(self, response: ChatCompletion) -> Response:
        message = response.choices[0].message
        return response_of(
            response,
            _tokens(response),
            content=message.content,
            tool_calls=_tool_calls(message),
            reasoning_content=_reasoning(message),
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
    choice = response.choices[0]
    ids = getattr(response, "prompt_token_ids", None), getattr(choice, "token_ids", None)
    logprobs = getattr(choice.logprobs, "content", None)
    return None if logprobs is None or None in ids else tokens_of(*ids, [token.logprob for token in logprobs])
