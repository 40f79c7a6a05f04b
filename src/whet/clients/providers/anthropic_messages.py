"""`AnthropicMessagesClient`: servers that speak Anthropic's messages interface, through the `anthropic` package.

Thinking comes back as signed blocks, kept on the message (`thinking_blocks`) and sent again with the next turn,
because the interface refuses tool results whose call's thinking is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from whet.clients.providers.provider_client import ProviderClient
from whet.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from whet.messages import content_text, object_text, whole_characters
from whet.types import FinishReason, Messages, Response, ResponseMessage, SamplingArgs, Tool, ToolCall, Usage

if TYPE_CHECKING:
    from anthropic.types import Message as NativeMessage

Block: TypeAlias = dict[str, Any]
DEFAULT_MAX_TOKENS = 4096  # the interface insists on a limit; this is what 0.1 environments get
FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "stop",
}


class AnthropicMessagesClient(ProviderClient[Any, list[Block], "NativeMessage", Block]):
    """Anthropic's messages."""

    package = "anthropic"
    constructor = "AsyncAnthropic"
    resource = "messages"
    ready = ("messages", "system", "tools")

    async def to_native_prompt(self, messages: Messages) -> tuple[list[Block], dict[str, Any]]:
        system = "\n\n".join(content_text(message.get("content")) for message in messages if _is_system(message))
        native: list[Block] = []
        for message in messages:
            if _is_system(message):
                continue
            role = "assistant" if message["role"] == "assistant" else "user"
            blocks = _blocks(message)
            if native and native[-1]["role"] == role:  # the roles have to alternate
                native[-1]["content"] += blocks
            else:
                native.append({"role": role, "content": blocks})
        kept = [whole_characters(message) for message in native if message["content"]]
        return kept, {"system": whole_characters(system)} if system else {}

    async def to_native_tool(self, tool: Tool) -> Block:
        return {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}

    def sampling_of(self, sampling_args: SamplingArgs, prompt: list[Block]) -> SamplingArgs:
        arguments = dict(sampling_args)
        if arguments.pop("n", None) not in (None, 1):
            raise ConfigError(
                "the messages interface gives one answer a request; leave n out of the sampling arguments."
            )
        limit = arguments.pop("max_completion_tokens", None)
        if arguments.get("max_tokens") is None:
            arguments["max_tokens"] = DEFAULT_MAX_TOKENS if limit is None else limit
        stop = arguments.pop("stop", None)
        if stop is not None:
            arguments.setdefault("stop_sequences", [stop] if isinstance(stop, str) else list(stop))
        return arguments

    async def raise_from_native_response(self, response: NativeMessage) -> None:
        if not isinstance(response.content, list):
            raise EmptyModelResponseError(f"the server returned no content: {str(response)[:300]}")
        if response.stop_reason is not None and response.stop_reason not in FINISH_REASONS:
            raise InvalidModelResponseError(
                f"the model stopped for a reason whet does not know: {response.stop_reason}"
            )

    async def from_native_response(self, response: NativeMessage) -> Response:
        blocks = [block.model_dump(mode="json", exclude_none=True) for block in response.content]
        calls = [
            ToolCall(id=block["id"], name=block["name"], arguments=json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ]
        thinking = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        message = ResponseMessage(
            content="".join(block["text"] for block in blocks if block["type"] == "text") or (None if calls else ""),
            tool_calls=calls or None,
            reasoning_content="".join(block.get("thinking", "") for block in thinking) or None,
            finish_reason=FINISH_REASONS.get(response.stop_reason or ""),
            is_truncated=FINISH_REASONS.get(response.stop_reason or "") == "length",
            tokens=None,
            **({"thinking_blocks": thinking} if thinking else {}),
        )
        usage = response.usage
        read = usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return Response(
            id=response.id,
            created=int(time.time()),
            model=response.model,
            usage=Usage(prompt_tokens=read, completion_tokens=usage.output_tokens),
            message=message,
        )


def _is_system(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "system")


def _blocks(message: Mapping[str, Any]) -> list[Block]:
    if message["role"] == "tool":
        result = _content(message.get("content"))
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": result}]
    thinking = [dict(block) for block in message.get("thinking_blocks") or []]
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["name"],
            "input": json.loads(object_text(call["arguments"])),
        }
        for call in message.get("tool_calls") or []
    ]
    return [*thinking, *_content(message.get("content")), *calls]


def _content(content: Any) -> list[Block]:
    if isinstance(content, list):
        return [block for part in content if (block := _part(part)) is not None]
    return [{"type": "text", "text": content}] if content else []  # the interface refuses an empty text


def _part(part: Mapping[str, Any]) -> Block | None:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part["text"]} if part.get("text") else None
    if kind == "image_url":
        image = part.get("image_url") or {}
        url = str(image.get("url") if isinstance(image, Mapping) else image)
        header, comma, data = url.partition(",")
        if comma and header.startswith("data:") and header.endswith(";base64"):
            source = {"type": "base64", "media_type": header[5:].split(";")[0] or "image/png", "data": data}
        else:
            source = {"type": "url", "url": url}
        return {"type": "image", "source": source}
    if kind == "input_audio":
        raise ConfigError("the messages interface takes no audio. Choose a model behind another interface.")
    return dict(part)
