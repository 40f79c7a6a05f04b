"""`OpenAICompletionsClient`: a server that continues plain text, through the `openai` package.

The prompt is the messages' texts with an empty line between. There are no roles, no tools and no images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whet.clients.providers.openai_shared import OpenAIPosts, finish_reason_of, one_choice, usage_of
from whet.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from whet.messages import content_text, whole_characters
from whet.types import Messages, Response, ResponseMessage, ResponseTokens, SamplingArgs, Tool

if TYPE_CHECKING:
    from openai.types import Completion

INSTEAD = "Use client_type 'openai_chat_completions' for this model."


class OpenAICompletionsClient(OpenAIPosts[str, "Completion", None]):
    """OpenAI's completions of text, for base models."""

    resource = "completions"
    answers = "openai.types:Completion"

    async def to_native_prompt(self, messages: Messages) -> tuple[str, dict[str, Any]]:
        for message in messages:
            content = message.get("content")
            if isinstance(content, list) and any(part.get("type") != "text" for part in content):
                raise ConfigError(
                    f"the completions interface takes text only, and a message has other parts. {INSTEAD}"
                )
        text = "\n\n".join(content_text(message.get("content")) for message in messages)
        whole: str = whole_characters(text)
        return whole, {}

    async def to_native_tool(self, tool: Tool) -> None:
        raise ConfigError(f"the completions interface knows no tools, and there is '{tool['name']}'. {INSTEAD}")

    async def get_native_response(
        self, prompt: str, model: str, sampling_args: SamplingArgs, tools: list[None] | None = None, **kwargs: Any
    ) -> Completion:
        response: Completion = await self.post(
            sampling_args,
            model=model,
            prompt=prompt,
            extra_headers=kwargs.get("extra_headers"),
        )
        return response

    async def raise_from_native_response(self, response: Completion) -> None:
        if not one_choice(response).text:
            raise EmptyModelResponseError("the model returned no text")

    async def from_native_response(self, response: Completion) -> Response:
        choice = response.choices[0]
        message = ResponseMessage(
            content=choice.text,
            finish_reason=finish_reason_of(choice),
            is_truncated=choice.finish_reason == "length",
            tokens=_tokens(choice),
        )
        return Response(
            id=response.id or "",
            created=response.created or 0,
            model=response.model or "",
            usage=usage_of(response),
            message=message,
        )


def _tokens(choice: Any) -> ResponseTokens | None:
    """The ids and logprobs of the turn; None unless the server (vLLM with `return_token_ids`) returned all of them."""
    prompt_ids = getattr(choice, "prompt_token_ids", None)
    completion_ids = getattr(choice, "token_ids", None)
    logprobs = getattr(getattr(choice, "logprobs", None), "token_logprobs", None)
    if prompt_ids is None or completion_ids is None or logprobs is None:
        return None
    if len(logprobs) != len(completion_ids):
        raise InvalidModelResponseError(
            f"the server returned {len(completion_ids)} token ids and {len(logprobs)} logprobs for one turn"
        )
    return ResponseTokens(list(prompt_ids), list(completion_ids), list(logprobs))
