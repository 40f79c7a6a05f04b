"""`OpenAIResponsesClient`: OpenAI's responses interface, through the `openai` package.

Every request carries the whole conversation, and the server is to keep none of it (`store`). What the model reasoned
comes back encrypted; it is kept on the message (`responses_output`) and sent again with the next turn, where the
interface wants it next to the tool calls it led to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from whet.clients.providers.openai_shared import usage_of
from whet.clients.providers.provider_client import ProviderClient
from whet.errors import ConfigError, ContentFilterError, EmptyModelResponseError, InvalidModelResponseError
from whet.messages import content_text, object_text, whole_characters
from whet.types import FinishReason, Messages, Response, ResponseMessage, SamplingArgs, Tool, ToolCall

if TYPE_CHECKING:
    from openai.types.responses import Response as NativeResponse

Item: TypeAlias = dict[str, Any]
OUTPUT_FIELD = "responses_output"


class OpenAIResponsesClient(ProviderClient[Any, list[Item], "NativeResponse", Item]):
    """OpenAI's responses."""

    package = "openai"
    constructor = "AsyncOpenAI"
    resource = "responses"
    prompt_argument = "input"
    ready = ("input", "tools")

    async def to_native_prompt(self, messages: Messages) -> tuple[list[Item], dict[str, Any]]:
        return [whole_characters(item) for message in messages for item in _items(message)], {}

    async def to_native_tool(self, tool: Tool) -> Item:
        strict = tool.get("strict")
        native = {key: tool[key] for key in ("name", "description", "parameters")}
        return {"type": "function", **native, "strict": False if strict is None else strict}

    def sampling_of(self, sampling_args: SamplingArgs, prompt: list[Item]) -> SamplingArgs:
        arguments = {"store": False, "include": ["reasoning.encrypted_content"], **sampling_args}
        if arguments.pop("n", None) not in (None, 1):
            raise ConfigError(
                "the responses interface gives one answer a request; leave n out of the sampling arguments."
            )
        if arguments.pop("stop", None) is not None:
            raise ConfigError(
                "the responses interface knows no stop sequences; leave stop out of the sampling arguments."
            )
        for name in ("max_tokens", "max_completion_tokens"):
            limit = arguments.pop(name, None)
            if limit is not None:
                arguments.setdefault("max_output_tokens", limit)
        effort = arguments.pop("reasoning_effort", None)
        if effort is not None:
            arguments.setdefault("reasoning", {"effort": effort})
        return arguments

    async def raise_from_native_response(self, response: NativeResponse) -> None:
        if response.error is not None:
            raise InvalidModelResponseError(f"the model failed: {response.error.message} See the provider's status.")
        if response.incomplete_details is not None and response.incomplete_details.reason == "content_filter":
            raise ContentFilterError("the provider's content filter stopped the answer")
        if not isinstance(response.output, list):
            raise EmptyModelResponseError(f"the server returned no output: {str(response)[:300]}")

    async def from_native_response(self, response: NativeResponse) -> Response:
        calls = [
            ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            for item in response.output
            if item.type == "function_call"
        ]
        truncated = (
            response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
        )
        finish_reason: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
        message = ResponseMessage(
            content=_texts(response, "message") or (None if calls else ""),
            tool_calls=calls or None,
            reasoning_content=_texts(response, "reasoning") or None,
            finish_reason=finish_reason,
            is_truncated=truncated,
            tokens=None,
            **{OUTPUT_FIELD: [item.model_dump(mode="json", exclude_none=True) for item in response.output]},
        )
        return Response(
            id=response.id,
            created=int(response.created_at or 0),
            model=response.model,
            usage=usage_of(response),
            message=message,
        )


def _items(message: Mapping[str, Any]) -> list[Item]:
    """A message as items of the interface; an answer of this interface as exactly the items it came in."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else [_part(part, "input") for part in content or []]
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}]
    if role != "assistant":
        return [_message("user" if role == "text" else role, content, "input")]
    if message.get(OUTPUT_FIELD):
        return [_again(item) for item in message[OUTPUT_FIELD]]
    items = [_message("assistant", content, "output")] if content_text(content) else []
    for call in message.get("tool_calls") or []:
        fields = {"call_id": call["id"], "name": call["name"], "arguments": object_text(call["arguments"])}
        items.append({"type": "function_call", **fields})
    return items


def _again(item: Mapping[str, Any]) -> Item:
    again = {key: value for key, value in item.items() if key != "status"}
    return {**again, "arguments": object_text(item["arguments"])} if item.get("type") == "function_call" else again


def _message(role: str, content: Any, direction: str) -> Item:
    parts = [_part(part, direction) for part in content] if isinstance(content, list) else content or ""
    return {"type": "message", "role": role, "content": parts}


def _part(part: Mapping[str, Any], direction: str) -> Item:
    kind = part.get("type")
    if kind == "text":
        return {"type": f"{direction}_text", "text": part.get("text", "")}
    if kind == "image_url":
        image = part.get("image_url") or {}
        url = image.get("url") if isinstance(image, Mapping) else image
        detail = image.get("detail") if isinstance(image, Mapping) else None
        return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
    if kind == "input_audio":
        raise ConfigError(
            "the responses interface takes no audio. Use client_type 'openai_chat_completions' for this model."
        )
    return dict(part)


def _texts(response: Any, kind: str) -> str:
    """The texts of all output items of a kind; a refusal is what the model said, too."""
    texts = []
    for item in response.output:
        if item.type == kind:
            for part in [*(getattr(item, "summary", None) or []), *(getattr(item, "content", None) or [])]:
                texts.append(getattr(part, "text", None) or getattr(part, "refusal", None) or "")
    return ("\n" if kind == "reasoning" else "").join(texts)
