"""Which requests an engine can answer at all: the rest are refused before they wait for anything."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from whet.errors import OverlongPromptError, RequestRefusedError
from whet.inference.protocol import MOST_STOP_CHARACTERS, MOST_STOPS, SampleRequest, SamplingParams


def check_request(
    request: SampleRequest,
    *,
    vocab_size: int,
    max_context: int,
    token_budget: int,
    decodes_text: bool,
    adapters: Collection[str],
) -> None:
    """Raises `RequestRefusedError`, or `OverlongPromptError` where prompt and answer together exceed the context.

    Rows of a batch share their tensors, so what passes here must not raise or give NaN in any of them.
    `token_budget` is the room of the whole KV cache in tokens; `adapters` are those that are loaded.
    """
    prompt, params = request.prompt_ids, request.params
    if request.adapter is not None:
        check_adapter(request.adapter, adapters)
    if not prompt or params.max_tokens < 1:
        raise RequestRefusedError("a request needs at least one prompt token and max_tokens of at least 1")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestRefusedError(f"the prompt has a token id outside the vocabulary of {vocab_size}")
    check_params(params)
    total = len(prompt) + params.max_tokens
    if total > max_context:
        raise OverlongPromptError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the context of {max_context}"
        )
    if total > token_budget:
        raise RequestRefusedError(
            f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) need more KV cache than the "
            f"{token_budget} tokens that fit; raise the engine's kv_bytes or lower max_tokens"
        )
    if params.stop and not decodes_text:
        raise RequestRefusedError("stop strings need an engine that was given the model's tokenizer")


def check_params(params: SamplingParams) -> None:
    """Raises `RequestRefusedError` for a number that is out of range, and for too many or too long stops."""
    for name, value, most in (
        ("temperature", params.temperature, math.inf),
        ("top_p", params.top_p, 1.0),
        ("min_p", params.min_p, 1.0),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, most):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise RequestRefusedError(f"{name} must be a finite number of at least 0{bound}, not {shown(value)}")
    for name, number in (("max_tokens", params.max_tokens), ("top_k", params.top_k), ("seed", params.seed or 0)):
        if not is_whole(number):
            raise RequestRefusedError(f"{name} must be a whole number of 64 bits, not {shown(number)}")
    check_stops("stop", params.stop, str)
    check_stops("stop_token_ids", params.stop_token_ids, int)


def check_stops(name: str, stops: Any, kind: type) -> None:
    """Raises `RequestRefusedError` unless `stops` is a short list of `kind`, text of which is short too."""
    fits = is_whole if kind is int else lambda stop: isinstance(stop, str)
    if not isinstance(stops, list | tuple) or not all(map(fits, stops)):
        what = "strings" if kind is str else "whole numbers"
        raise RequestRefusedError(f"{name} must be a list of {what}")
    if len(stops) > MOST_STOPS:
        raise RequestRefusedError(f"{name} has {len(stops)} entries; at most {MOST_STOPS} are possible")
    if kind is str and any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        raise RequestRefusedError(f"{name} has a string of more than {MOST_STOP_CHARACTERS} characters")


def is_whole(value: object) -> bool:
    """Whether it is an integer that int64 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _within(value: float, most: float) -> bool:
    try:
        return math.isfinite(value) and 0 <= value <= most
    except OverflowError:  # an integer beyond all floats
        return False


def shown(value: object) -> str:
    """A value that was refused, short enough for one line."""
    try:
        return repr(value)[:40]
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"


def check_adapter(name: str, adapters: Collection[str]) -> None:
    """Raises `RequestRefusedError` for an adapter that is not loaded."""
    if name not in adapters:
        raise RequestRefusedError(f"the engine has no adapter {name!r}; it has: {', '.join(adapters) or 'none'}")
