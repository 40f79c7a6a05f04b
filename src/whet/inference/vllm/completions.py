"""`/v1/completions` of vLLM with token ids: what is sent for a request, and the sample in an answer. No I/O.

Every sampling setting is sent, since a server fills what is missing from the model's generation_config.json. Seeds are
not: vLLM's answers depend on what else is in the batch all the same, a generator for each request slows every step
down, and in the CPU build of 0.32 a prompt that is computed in pieces ends a server whose request has one.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any, Literal, NamedTuple

from whet.errors import EndpointDownError, ModelError, RequestRefusedError
from whet.inference.protocol import FinishReason, OnTokens, SampleRequest

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
"""`--logprobs-mode` of a server: of the model's logits, or of those after temperature and cuts."""

INTERRUPTED = "abort"
"""The finish reason of a request that the server was made to give up; what it sampled before is in the answer."""


class CompletionPiece(NamedTuple):
    """Tokens of one answer, or of one piece of it. `finish_reason` is None in the middle, and where it was given up."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None
    experts: Any = None


def check_logprobs(request: SampleRequest, mode: LogprobsMode) -> None:
    """Raise `RequestRefusedError` where the server's logprobs would not be log softmax(logits / temperature).

    That is what a learner computes again. `raw_logprobs` have no temperature, `processed_logprobs` are those of what
    top-p, top-k and min-p left. Greedy logprobs are those of temperature 1 in both.
    """
    params = request.params
    if params.greedy:
        return
    if mode == "raw_logprobs" and params.temperature != 1:
        raise RequestRefusedError(
            f"temperature {params.temperature:g} needs a vLLM server with --logprobs-mode processed_logprobs; this one "
            "returns logprobs of temperature 1, which a learner cannot use"
        )
    if mode == "processed_logprobs" and params.cuts:
        cuts = ", ".join(f"{name} {value:g}" for name, value in params.shape().items() if name != "temperature")
        raise RequestRefusedError(
            f"{cuts}: this vLLM server returns logprobs of what these leave, which a learner cannot use. Sample "
            "without them, or with temperature 1 and --logprobs-mode raw_logprobs"
        )


def body_of(request: SampleRequest, model: str, *, stream: bool) -> bytes:
    """The JSON of a request; `model` is the name that the server has for its weights, or for an adapter's."""
    params, greedy = request.params, request.params.greedy
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt_ids,
        "max_tokens": params.max_tokens,
        "temperature": 0.0 if greedy else params.temperature,
        "top_p": 1.0 if greedy else params.top_p,
        "top_k": 0 if greedy else params.top_k,
        "min_p": 0.0 if greedy else params.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,  # those of the sampled token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "add_special_tokens": False,
        "ignore_eos": True,  # the tokens that end an answer are named
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
        "include_stop_str_in_output": True,
        "stream": stream,
    }
    return json.dumps(body).encode()


def drawn_in(choice: dict[str, Any]) -> CompletionPiece:
    """The tokens in one choice of an answer. Raises `ModelError` for a server that does not return them."""
    ids, given = choice.get("token_ids"), choice.get("logprobs") or {}
    logprobs, reason = given.get("token_logprobs") or [], choice.get("finish_reason")
    if ids is None or len(logprobs) != len(ids):
        what = "no token ids" if ids is None else f"{len(ids)} ids and {len(logprobs)} logprobs"
        raise ModelError(f"the vLLM server returned {what}; whet needs vLLM 0.20 or newer")
    if reason not in (None, "stop", "length", INTERRUPTED):
        raise ModelError(f"the vLLM server ended an answer with {reason!r}")
    return CompletionPiece(
        ids, logprobs, None if reason == INTERRUPTED else reason, _experts(choice.get("routed_experts"))
    )


def _experts(encoded: str | None) -> Any:
    """Experts [tokens, layers, experts a token] of prompt and answer; None where the server does not record them."""
    if encoded is None:
        return None
    import numpy as np

    return np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False).astype(np.int16)


class DrawnStream:
    """Server-sent events of one completion: passes ids on as they are drawn, and keeps what was drawn so far."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._rest = b""
        self.drawn = CompletionPiece([], [], None)
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Raises `EndpointDownError` for an event that reports an error, and what the listener raises."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            text = event.removeprefix(b"data: ")
            if text == b"[DONE]":
                self.complete = True
                continue
            piece = json.loads(text)
            if "error" in piece:
                message = piece["error"].get("message", piece["error"])
                raise EndpointDownError(f"the vLLM server ended an answer: {message}")
            for choice in piece.get("choices", []):
                self._add(drawn_in(choice))

    def _add(self, piece: CompletionPiece) -> None:
        if piece.ids:
            self._on_tokens(piece.ids)
        before = self.drawn
        self.drawn = CompletionPiece(before.ids + piece.ids, before.logprobs + piece.logprobs, piece.finish_reason)
