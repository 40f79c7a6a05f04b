"""`/v1/completions` of vLLM with token ids: what is sent for a request, and the sample in an answer. No I/O.

Every sampling setting is sent, since a server fills what is missing from the model's generation_config.json. Seeds are
not: vLLM's answers depend on what else is in the batch all the same, a generator for each request slows every step
down, and in the CPU build of 0.32 a prompt that is computed in pieces ends a server whose request has one.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from whet.errors import EndpointDownError, EngineError, ModelError, RequestRefusedError
from whet.inference.protocol import (
    FinishReason,
    OnTokens,
    PromptScores,
    Sample,
    SampleRequest,
    Scoring,
    TokenLogprobs,
    VersionRun,
)
from whet.inference.requests import check_scoring

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
    prompt_scores: PromptScores | None = None
    top: TokenLogprobs | None = None


MOST_TOP = 20
"""Most probable tokens that a server returns, unless it was started with another `--max-logprobs`."""


def check_scores(request: SampleRequest, *, listens: bool) -> None:
    """Raise `RequestRefusedError` for what `Scoring` has and this API does not."""
    scoring, count = request.scoring, len(request.prompt_ids)
    if scoring is None:
        return
    check_scoring(scoring, count, None, listens=listens)
    lacking = {"targets": scoring.targets is not None, "prompt_draws": scoring.prompt_draws > 0}
    if named := [f"scoring.{name}" for name, wanted in lacking.items() if wanted]:
        raise RequestRefusedError(f"a vLLM server has nothing like {' and '.join(named)}; the embedded engine has")
    if max(scoring.top, scoring.prompt_top) > MOST_TOP:
        raise RequestRefusedError(f"a vLLM server returns at most {MOST_TOP} tokens of each position")


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
    if (scoring := request.scoring) is not None:
        body["logprobs"] = scoring.top
        if scoring.of_prompt:
            body["prompt_logprobs"] = scoring.prompt_top
    return json.dumps(body).encode()


def drawn_in(choice: dict[str, Any], request: SampleRequest | None = None) -> CompletionPiece:
    """The tokens in one choice of an answer, with what the scoring of a `request` names.

    Raises `ModelError` for a server that does not return them.
    """
    ids, given = choice.get("token_ids"), choice.get("logprobs") or {}
    logprobs, reason = given.get("token_logprobs") or [], choice.get("finish_reason")
    if ids is None or len(logprobs) != len(ids):
        what = "no token ids" if ids is None else f"{len(ids)} ids and {len(logprobs)} logprobs"
        raise ModelError(f"the vLLM server returned {what}; whet needs vLLM 0.20 or newer")
    if reason not in (None, "stop", "length", INTERRUPTED):
        raise ModelError(f"the vLLM server ended an answer with {reason!r}")
    piece = CompletionPiece(
        ids, logprobs, None if reason == INTERRUPTED else reason, _experts(choice.get("routed_experts"))
    )
    if request is None or (scoring := request.scoring) is None or piece.finish_reason is None:
        return piece
    tops = [
        {int(key.removeprefix("token_id:")): logprob for key, logprob in each.items()}
        for each in given.get("top_logprobs") or []
    ]
    if scoring.top and len(tops) != len(ids):
        raise ModelError(f"the vLLM server returned {len(tops)} lists of most probable tokens for {len(ids)} tokens")
    return piece._replace(
        prompt_scores=_prompt_scores(request, scoring, choice.get("prompt_logprobs")) if scoring.of_prompt else None,
        top=_likeliest(tops, scoring.top) if scoring.top else None,
    )


def part_of(drawn: CompletionPiece, version: int) -> Sample:
    """What one answer of the server adds to a sample."""
    versions = [VersionRun(version, len(drawn.ids))] if drawn.ids else []
    part = Sample(drawn.ids, drawn.logprobs, versions, drawn.finish_reason or "length", experts=drawn.experts)
    part.prompt_scores, part.top = drawn.prompt_scores, drawn.top
    return part


def _prompt_scores(request: SampleRequest, scoring: Scoring, given: list[Any] | None) -> PromptScores:
    import numpy as np

    prompt, first = request.prompt_ids, scoring.first(len(request.prompt_ids))
    if given is None or len(given) != len(prompt):
        raise ModelError(f"the vLLM server returned no logprobs of {len(prompt)} prompt tokens")
    by_token = [
        {} if each is None or number < first else {int(token): entry["logprob"] for token, entry in each.items()}
        for number, each in enumerate(given)
    ]
    own = [each.get(token, np.nan) for token, each in zip(prompt, by_token, strict=True)]
    return PromptScores(
        np.array(own, np.float32) if scoring.prompt else None,
        _likeliest(by_token, scoring.prompt_top) if scoring.prompt_top else None,
        None,
        None,
    )


def _likeliest(by_token: list[dict[int, float]], width: int) -> TokenLogprobs:
    """The most probable of the tokens at each position: beside those that were wanted, a server names the own one."""
    likeliest = TokenLogprobs.blank(len(by_token), width)
    for number, logprobs in enumerate(by_token):
        for rank, (token, logprob) in enumerate(sorted(logprobs.items(), key=lambda pair: -pair[1])[:width]):
            likeliest.ids[number, rank], likeliest.logprobs[number, rank] = token, logprob
    return likeliest


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


# What a run needs of a vLLM server that it did not start, compared with how that was started.
#
# A server with another model, fewer tokens or other logprobs answers as any other does, and what is learned from it is
# wrong or cut short. So it is found before the first sample, and each line names the flag to add. Weights are not
# compared here: they are loaded, and compared then.

Ask = Callable[..., Awaitable[Any]]
"""Method, path and body of a request: the answer, read from JSON."""

SIZES = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
"""Keys of a model's config.json in which two models of different weights' shapes differ."""
PROBE = "Whet 3.14: naïve Σ\n\tdef f(x): return 'é'  # 27 * 43"
"""A text that tokenizers divide differently."""
EXTENSION_FLAGS = (
    "--worker-extension-cls whet_vllm_worker.WeightReceiver, with PYTHONPATH set to the folder that "
    'python -c "from whet.inference.vllm.members import EXTENSION; print(EXTENSION)" prints'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of a server."""

    model: str  # as the run names it
    config: Mapping[str, Any]  # the model's config.json
    probe_ids: list[int]  # of `PROBE`, by the model's tokenizer
    dtype: str
    logprobs_mode: LogprobsMode
    lora_rank: int | None = None
    record_experts: bool = False
    base: Path | None = None  # the weights that an adapter is trained on, which the server must hold


async def described(ask: Ask, body: bytes) -> dict[str, Any]:
    """What the server's workers say of it. Raises `EngineError` where it was started without whet's extension."""
    try:
        answer = await ask("POST", "/collective_rpc", body)
    except RequestRefusedError as error:
        raise EngineError(
            "it was started without VLLM_SERVER_DEV_MODE=1, so it takes no weights. Set this variable, and start it "
            f"with {EXTENSION_FLAGS}. ({error})"
        ) from None
    except EndpointDownError as error:
        raise EngineError(
            f"it was started without the extension that takes weights. Start it with {EXTENSION_FLAGS}. ({error})"
        ) from None
    description: dict[str, Any] = answer["results"][0]
    return description


def mistakes(server: Mapping[str, Any], ids: list[int] | None, needs: Needs) -> list[str]:
    """What of a server, as `described`, and of its ids of `PROBE` (None: not known) does not fit, a line each."""
    texts, own = [], server["config"]
    if other := [key for key in SIZES if key in own and key in needs.config and own[key] != needs.config[key]]:
        shown = ", ".join(f"{key} {own[key]} and not {needs.config[key]}" for key in other)
        texts.append(f"its model {server['model']} is not {needs.model} ({shown}): --model")
    elif ids is not None and ids != needs.probe_ids:
        texts.append(f"its tokenizer is not that of {needs.model}: --tokenizer")
    if server["dtype"] != needs.dtype:
        texts.append(
            f"it computes in {server['dtype']} and [inference] dtype is {needs.dtype}: --dtype {needs.dtype}, or "
            f'inference.dtype = "{server["dtype"]}"'
        )
    if server["logprobs_mode"] != needs.logprobs_mode:
        texts.append(
            f"its logprobs are {server['logprobs_mode']}, which a learner cannot use with this [sampling]: "
            f"--logprobs-mode {needs.logprobs_mode}"
        )
    if needs.lora_rank is not None and server["lora_rank"] < needs.lora_rank:
        has = f"of rank {server['lora_rank']} at most" if server["lora_rank"] else "none"
        texts.append(f"it takes adapters {has}: --enable-lora --max-lora-rank {needs.lora_rank}")
    if needs.record_experts and not server["routed_experts"]:
        texts.append("it does not report experts: --enable-return-routed-experts")
    return texts
