"""What the clients of OpenAI's interfaces share: posting a request, and reading the answer.

`OpenAIPosts` sends a request in fewer steps than the package's method for it takes.

That method looks through its arguments for fields to rename, and builds its answer field by field, each with a look at
its type: together a quarter of a short request's processor time. Here the body is posted as it is, through the same
client of the package (retries, time-outs, headers and errors stay with the package), and the answer is read in one go.
What does not fit the package's types, as of servers that are not quite OpenAI's, is built as the package would.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from whet.clients.client import MessagesT, ResponseT, ToolT
from whet.clients.providers.provider_client import ProviderClient, http_library, together
from whet.clients.providers.provider_errors import said
from whet.errors import ContentFilterError, EmptyModelResponseError, InvalidModelResponseError
from whet.system.redaction import redacted
from whet.types import FinishReason, Response, ResponseMessage, ResponseTokens, SamplingArgs, Usage

OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}
"""Arguments of every method of the package that are not of the body, and what they are called in a post."""


class OpenAIPosts(ProviderClient[Any, MessagesT, ResponseT, ToolT]):
    """A client over the `openai` package. A subclass names resource and type, and translates."""

    package = "openai"
    constructor = "AsyncOpenAI"
    answers: ClassVar[str]  # module and name of the package's type

    async def request(self, sampling_args: SamplingArgs, **arguments: Any) -> Any:
        """The server's answer to a post to the resource's path, as the package's type."""
        if self._config is None:  # a client of the user's own may be anything, and is called like the package's
            return await super().request(sampling_args, **arguments)
        body = together(sampling_args, arguments)
        options = {OPTIONS[name]: body.pop(name) for name in OPTIONS.keys() & body.keys()}
        path, answer = "/" + self.resource.replace(".", "/"), http_library(self._package).Response
        return read(self._native, await self.send(self.client.post, path, cast_to=answer, body=body, options=options))

    @functools.cached_property
    def _native(self) -> Any:
        module, _, name = self.answers.partition(":")
        return getattr(importlib.import_module(module), name)


def read(native: Any, response: Any) -> Any:
    """What a response holds, as `native`. Raises `InvalidModelResponseError` for what is no JSON object."""
    try:
        return native.model_validate_json(response.content)
    except ValueError:  # not of that type, or no JSON
        pass
    try:
        data = response.json()
    except ValueError:
        raise InvalidModelResponseError(_no_json(response)) from None
    if not isinstance(data, Mapping):
        raise InvalidModelResponseError(f"{_address(response)} answers with JSON that is no object: {str(data)[:200]}")
    return native.construct(**data)


def _no_json(response: Any) -> str:
    text, where = response.text.strip(), _address(response)
    if not text:
        return f"{where} answers with an empty body (status 200). See the server's log."
    if text.startswith(("data:", "event:", ":")):
        return f"{where} answers with a stream of events, which was not requested. Turn streaming off at the server."
    if text.startswith("<"):
        return f"{where} answers with {said(text)} Check the address: it should be the interface's, as in .../v1."
    return f"{where} answers with what is no JSON: {text[:200]!r}. Check the address, and the proxies before it."


def _address(response: Any) -> str:
    return str(redacted(str(response.url)))


def one_choice(response: Any) -> Any:
    """The one choice of a response. Raises where there is none, there are several, or a filter stopped it."""
    choices = getattr(response, "choices", None)
    if not choices:
        raise EmptyModelResponseError(f"the model returned no choices: {response.to_json(indent=None)[:300]}")
    if len(choices) != 1:
        raise InvalidModelResponseError(f"the model returned {len(choices)} choices; expected 1")
    if choices[0].finish_reason == "content_filter":
        raise ContentFilterError("the provider's content filter stopped the answer")
    return choices[0]


def response_of(response: Any, tokens: ResponseTokens | None, **message: Any) -> Response:
    """A response of one choice as whet's; `message` are the fields of its message."""
    reason = response.choices[0].finish_reason
    finish_reason = cast(FinishReason, reason) if reason in ("stop", "length", "tool_calls") else None
    return Response(
        id=response.id or "",
        created=response.created or 0,
        model=response.model or "",
        usage=usage_of(response),
        message=ResponseMessage(finish_reason=finish_reason, is_truncated=reason == "length", tokens=tokens, **message),
    )


def tokens_of(prompt_ids: Any, completion_ids: Any, logprobs: Any) -> ResponseTokens | None:
    """The ids and logprobs of a turn; None unless the server (vLLM with `return_token_ids`) returned all of them."""
    if prompt_ids is None or completion_ids is None or logprobs is None:
        return None
    if len(logprobs) != len(completion_ids):
        raise InvalidModelResponseError(
            f"the server returned {len(completion_ids)} token ids and {len(logprobs)} logprobs for one turn"
        )
    return ResponseTokens(list(prompt_ids), list(completion_ids), list(logprobs))


def usage_of(response: Any) -> Usage | None:
    """Tokens in the words of either generation of the interfaces: prompt and completion, or input and output."""
    usage = response.usage
    if usage is None:
        return None
    new = getattr(usage, "input_tokens", None) is not None
    details = getattr(usage, "output_tokens_details" if new else "completion_tokens_details", None)
    return Usage(
        prompt_tokens=(usage.input_tokens if new else usage.prompt_tokens) or 0,
        completion_tokens=(usage.output_tokens if new else usage.completion_tokens) or 0,
        reasoning_tokens=getattr(details, "reasoning_tokens", None) or 0,
        total_tokens=usage.total_tokens,
    )
