"""The `openai` package on a session: its own client, whose requests never leave the process.

For programs written with that package, or with a library on top of it. Only chat completions, not streamed. The model
name and the sampling arguments of a request are ignored: the rollout's own are used.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from whet.errors import MissingExtraError
from whet.types import Response, Tool

ADDRESS = "http://rollout.invalid/v1"  # never resolved: no request leaves the process


Respond = Callable[[Any, Any], Awaitable[Response]]
"""One turn of the rollout: the response to messages, given tools."""


def openai_client(respond: Respond, wait: Callable[[Awaitable[Any]], Any], *, sync: bool) -> Any:
    """`openai.AsyncOpenAI` (or `OpenAI`) that calls `respond`; `wait` blocks a thread until an awaitable is done."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError("state.get_client()", "openai") from error
    # The HTTP library is httpx up to openai 2 and httpx2 since.
    base = next(cls for cls in openai.DefaultAsyncHttpxClient.__mro__ if cls.__name__ == "AsyncClient")
    http = importlib.import_module(base.__module__.partition(".")[0])

    class AsyncTransport(http.AsyncBaseTransport):  # type: ignore[misc,name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            status, body = await answer(respond, request.url.path, await request.aread())
            return http.Response(status, json=body)

    class Transport(http.BaseTransport):  # type: ignore[misc,name-defined]
        def handle_request(self, request: Any) -> Any:
            status, body = wait(answer(respond, request.url.path, request.read()))
            return http.Response(status, json=body)

    settings: dict[str, Any] = {"api_key": "none", "base_url": ADDRESS, "max_retries": 0, "timeout": None}
    if sync:
        return openai.OpenAI(**settings, http_client=http.Client(transport=Transport()))
    return openai.AsyncOpenAI(**settings, http_client=http.AsyncClient(transport=AsyncTransport()))


async def answer(respond: Respond, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of the response to one request."""
    if not path.endswith("/chat/completions"):
        return refusal(f"{path} is not there: a session speaks chat completions only")
    request = json.loads(body)
    if request.get("stream"):
        return refusal("a session does not stream; leave stream out")
    if request.get("n") not in (None, 1):
        return refusal(f"n = {request['n']}: a session gives one answer at a time")
    try:
        tools = [as_tool(tool) for tool in request.get("tools") or []]
        response = await respond(request["messages"], tools)
    except (KeyError, TypeError, ValueError) as error:
        return refusal(f"the request is not a chat completion: {error}")
    return 200, completion(response)


def refusal(message: str) -> tuple[int, dict[str, Any]]:
    return 400, {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None}}


def as_tool(tool: dict[str, Any]) -> Tool:
    function = tool["function"]
    return Tool(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {"type": "object", "properties": {}},
    )


def completion(response: Response) -> dict[str, Any]:
    """A response as the JSON of OpenAI's chat completions."""
    said = response["message"]
    message: dict[str, Any] = {"role": "assistant", "content": said.get("content")}
    if said.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in said["tool_calls"]
        ]
    if said.get("reasoning_content"):
        message["reasoning_content"] = said["reasoning_content"]
    choice = {"index": 0, "message": message, "finish_reason": said.get("finish_reason") or "stop", "logprobs": None}
    usage = response.get("usage") or {}
    prompt, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "id": response["id"],
        "object": "chat.completion",
        "created": response["created"],
        "model": response["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }
