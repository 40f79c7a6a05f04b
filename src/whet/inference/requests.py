"""Which requests an engine can answer at all: the rest are refused before they wait for anything."""

from __future__ import annotations

import math
from collections.abc import Collection

from whet.errors import ModelError, OverlongPromptError
from whet.inference.protocol import SampleRequest


def check_request(
    request: SampleRequest,
    *,
    vocab_size: int,
    max_context: int,
    token_budget: int,
    decodes_text: bool,
    adapters: Collection[str],
) -> None:
    """Raises `ModelError`, or `OverlongPromptError` where prompt and answer together exceed the context.

    `token_budget` is the room of the whole KV cache in tokens; `adapters` are those that are loaded.
    """
    prompt, params = request.prompt_ids, request.params
    if request.adapter is not None:
        check_adapter(request.adapter, adapters)
    if not prompt or params.max_tokens < 1:
        raise ModelError("a request needs at least one prompt token and max_tokens of at least 1")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ModelError(f"the prompt has a token id outside the vocabulary of {vocab_size}")
    if params.temperature < 0 or not math.isfinite(params.temperature):
        raise ModelError(f"temperature must be a finite number of at least 0, not {params.temperature}")
    total = len(prompt) + params.max_tokens
    if total > max_context:
        raise OverlongPromptError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the context of {max_context}"
        )
    if total > token_budget:
        raise ModelError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) need more KV cache than the "
            f"{token_budget} tokens that fit; raise the engine's kv_bytes or lower max_tokens"
        )
    if params.stop and not decodes_text:
        raise ModelError("stop strings need an engine that was given the model's tokenizer")


def check_adapter(name: str, adapters: Collection[str]) -> None:
    """Raises `ModelError` for an adapter that is not loaded."""
    if name not in adapters:
        raise ModelError(f"the engine has no adapter {name!r}; it has: {', '.join(adapters) or 'none'}")
