"""`OpenAIChatCompletionsClient`: any server that speaks OpenAI's chat completions, through the `openai` package.

Token ids and logprobs are taken over where the server returns them (vLLM with `return_token_ids`). Which failures end a
run is in `provider_client.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from whet.clients.providers.openai_shared import OpenAIPosts, one_choice, response_of, tokens_of
from whet.clients.providers.provider_errors import WrittenError
from whet.errors import EmptyModelResponseError
from whet.messages import as_tool_call, content_text, object_text, whole_characters
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
    _reasoning_field = "reasoning_content"
    _named_empty = False  # whether the user has read that there are empty answers

    async def to_native_prompt(self, messages: Messages) -> tuple[list[NativeMessage], dict[str, Any]]:
        return [whole_characters(_native_message(message, self._reasoning_field)) for message in messages], {}

    async def to_native_tool(self, tool: Tool) -> NativeTool:
        return {"type": "function", "function": {key: value for key, value in tool.items() if value is not None}}

    def sampling_of(self, sampling_args: SamplingArgs, prompt: list[NativeMessage]) -> SamplingArgs:
        arguments = dict(sampling_args)
        if "max_tokens" in arguments:
            arguments["max_completion_tokens"] = arguments.pop("max_tokens")
        if "modalities" not in arguments and _has_audio(prompt):
            arguments["modalities"] = ["text"]
        return arguments

    async def get_native_response(
        self, prompt: list[NativeMessage], model: str, sampling_args: SamplingArgs, tools: Any = None, **kwargs: Any
    ) -> Any:
        try:
            return await super().get_native_response(prompt, model, sampling_args, tools, **kwargs)
        except WrittenError as error:  # a call that the server could not read is what the model answered
            message = {"role": "assistant", "content": error.text}
            choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
            return self._native.construct(id="", created=0, model=model, choices=[choice], usage=None)

    async def raise_from_native_response(self, response: ChatCompletion) -> None:
        if one_choice(response).message is None:
            raise EmptyModelResponseError("the server returned a choice without a message")

    async def from_native_response(self, response: ChatCompletion) -> Response:
        message = response.choices[0].message
        calls, reasoning, content = _tool_calls(message), _reasoning(message), message.content
        if not content_text(content) and not calls:
            content = getattr(message, "refusal", None) or ""
        if not content and not calls and not self._named_empty:
            self._named_empty = True
            self.logger.warning(
                "%s gave an answer without text or tool calls (finish_reason %s, reasoning: %s). Such answers are "
                "scored. Raise max_tokens where reasoning uses it up.",
                self.base_url, response.choices[0].finish_reason, "some" if reasoning else "none",
            )  # fmt: skip
        for field in ("reasoning", "reasoning_content"):
            if isinstance(getattr(message, field, None), str):
                self._reasoning_field = field  # an endpoint reads reasoning in the field that it writes it in
                break
        details = getattr(message, "reasoning_details", None)
        return response_of(
            response,
            _tokens(response),
            content=content,
            tool_calls=calls,
            reasoning_content=reasoning,
            **({"reasoning_details": details} if isinstance(details, list) and details else {}),
        )


def _native_message(message: Mapping[str, Any], reasoning_field: str) -> NativeMessage:
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
            native[reasoning_field] = message["reasoning_content"]
        if message.get("reasoning_details"):
            native["reasoning_details"] = message["reasoning_details"]
        if message.get("tool_calls"):
            native["tool_calls"] = [
                {
                    "type": "function",
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": object_text(call["arguments"])},
                    **({"extra_content": call["extra_content"]} if call.get("extra_content") else {}),
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
        if isinstance(value, list):  # parts, some of them encrypted
            parts = [part.get("text") or part.get("summary") for part in value if isinstance(part, Mapping)]
            value = "".join(part for part in parts if isinstance(part, str)) or None
        if isinstance(value, str):
            return value
    return None


def _tool_calls(message: Any) -> list[ToolCall] | None:
    calls = message.tool_calls or []
    return [_tool_call(call) for call in calls if getattr(call, "function", None) is not None] or None


def _tool_call(call: Any) -> ToolCall:
    read = as_tool_call(call)
    extra = getattr(call, "extra_content", None)  # a signature that the endpoint wants back
    return read if extra is None else ToolCall(read["id"], read["name"], read["arguments"], extra_content=extra)


def _tokens(response: Any) -> ResponseTokens | None:
    choice = response.choices[0]
    ids = getattr(response, "prompt_token_ids", None), getattr(choice, "token_ids", None)
    logprobs = getattr(choice.logprobs, "content", None)
    return None if logprobs is None or None in ids else tokens_of(*ids, [token.logprob for token in logprobs])
