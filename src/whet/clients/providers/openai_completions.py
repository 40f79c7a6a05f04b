"""`OpenAICompletionsClient`: a server that continues plain text, through the `openai` package.

The prompt is the messages' texts with an empty line between. There are no roles, no tools and no images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whet.clients.providers.openai_shared import OpenAIPosts, one_choice, response_of, tokens_of
from whet.errors import ConfigError
from whet.messages import content_text, whole_characters
from whet.types import Messages, Response, Tool

if TYPE_CHECKING:
    from openai.types import Completion

INSTEAD = "Use client_type 'openai_chat_completions' for this model."


class OpenAICompletionsClient(OpenAIPosts[str, "Completion", None]):
    """OpenAI's completions of text, for base models."""

    resource = "completions"
    prompt_argument = "prompt"
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

    async def raise_from_native_response(self, response: Completion) -> None:
        one_choice(response)

    async def from_native_response(self, response: Completion) -> Response:
        choice = response.choices[0]
        logprobs = getattr(getattr(choice, "logprobs", None), "token_logprobs", None)
        ids = getattr(choice, "prompt_token_ids", None), getattr(choice, "token_ids", None)
        return response_of(response, tokens_of(*ids, logprobs), content=choice.text or "")
