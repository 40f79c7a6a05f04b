"""Logprobs of prompts, of the most probable tokens and of named ones: those of a plain forward."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from whet.errors import RequestRefusedError
from whet.inference.decoding import decoder
from whet.inference.decoding.functions import at_once
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import PromptScores, Sample, SampleRequest, SamplingParams, Scoring, TokenLogprobs

Checkpoints = Callable[[str], tuple[Path, Any]]
TOLERANCE = 5e-5  # of logits whose spread is far larger than a trained model's
K = 5


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(length)]


def logprobs_of(model: Any, ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """Of all tokens of the vocabulary at each position from the second on: [len(ids) - 1, V]."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
    return np.asarray((logits / temperature).log_softmax(-1).numpy())


def every_kind(prompt: list[int], seed: int = 0) -> Scoring:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 512, (len(prompt) - 1, 3))
    targets[: len(targets) // 4] = -1
    targets[:, 2] = -1
    return Scoring(prompt=True, prompt_top=K, targets=targets, prompt_draws=4, top=3)


def run(engine: EmbeddedEngine, *requests: SampleRequest) -> list[Sample]:
    async def together() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(together())


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def check(model: Any, request: SampleRequest, sample: Sample) -> None:
    prompt, scoring, scores = request.prompt_ids, request.scoring, sample.prompt_scores
    assert scoring is not None
    assert scores is not None
    assert scores.logprobs is not None
    assert scores.top is not None
    assert scores.drawn is not None
    rows, expected = np.arange(len(prompt) - 1), logprobs_of(model, prompt)
    assert np.isnan(scores.logprobs[0])
    close(scores.logprobs[1:], expected[rows, prompt[1:]])
    assert np.isnan(scores.top.logprobs[0]).all()
    close(scores.top.logprobs[1:], np.sort(expected, 1)[:, ::-1][:, :K])
    close(scores.top.logprobs[1:], np.take_along_axis(expected, scores.top.ids[1:], 1))
    targets = scoring.targets
    assert targets is not None
    close(scores.targets, np.where(targets < 0, 0, np.take_along_axis(expected, targets.clip(0), 1)))
    close(scores.drawn.logprobs, np.take_along_axis(expected, scores.drawn.ids, 1))
    assert sample.top is not None
    temperature = 1.0 if request.params.greedy else request.params.temperature
    of_drawn = logprobs_of(model, prompt + sample.ids, temperature)[len(prompt) - 1 :]
    close(sample.top.logprobs, np.sort(of_drawn, 1)[:, ::-1][:, :3])
    close(sample.top.logprobs, np.take_along_axis(of_drawn, sample.top.ids, 1))


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe", "qwen2", "llama"])
def test_scores_are_those_of_a_plain_forward(
    checkpoints: Checkpoints, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "LOGITS_AT_ONCE", 512 * 7)
    directory, model = checkpoints(kind)
    engine = EmbeddedEngine.from_directory(directory)
    requests = []
    for number, (length, temperature) in enumerate([(60, 1.0), (2, 0.7), (33, 0.0), (5, 1.0)]):
        prompt, params = prompt_of(length, number), SamplingParams(max_tokens=6, seed=number, temperature=temperature)
        requests.append(SampleRequest(prompt, params, scoring=every_kind(prompt)))
        requests.append(SampleRequest(prompt, params))
    samples = run(engine, *requests)
    for request, sample in zip(requests[::2], samples[::2], strict=True):
        check(model, request, sample)
    for scored, plain in zip(samples[::2], samples[1::2], strict=True):
        assert scored.ids == plain.ids
        assert (plain.prompt_scores, plain.top) == (None, None)


def test_a_prompt_in_several_passes_is_scored_whole(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_SCORES_PER_CHUNK", 4 * 90 * 9)
    directory, model = checkpoints("qwen3")
    prompts = [prompt_of(90, 1), prompt_of(77, 2)]
    requests = [SampleRequest(p, SamplingParams(max_tokens=2, seed=1), scoring=every_kind(p)) for p in prompts]
    for request, sample in zip(requests, run(EmbeddedEngine.from_directory(directory), *requests), strict=True):
        check(model, request, sample)


def test_only_what_is_scored_is_computed_again(checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    engine, prompt = EmbeddedEngine.from_directory(directory), prompt_of(50)
    params = SamplingParams(max_tokens=2, seed=1)
    last = Scoring(prompt=True, prompt_top=1, prompt_last=5)

    async def turns() -> Sample:
        await engine.sample(SampleRequest(prompt, params, rollout_key="r"))
        return await engine.sample(SampleRequest(prompt, params, rollout_key="r", scoring=last))

    sample = asyncio.run(turns())
    assert engine.stats.reused_tokens == 44  # the state of the token before the five is needed
    assert sample.prompt_scores is not None
    logprobs, top = sample.prompt_scores.logprobs, sample.prompt_scores.top
    assert logprobs is not None
    assert top is not None
    assert np.isnan(logprobs[:45]).all()
    assert np.isnan(top.logprobs[:45]).all()
    expected = logprobs_of(model, prompt)
    close(logprobs[45:], expected[np.arange(44, 49), prompt[45:]])
    close(top.logprobs[45:, 0], expected.max(1)[44:])


def test_samples_of_one_prompt_share_it_when_one_of_them_scores_it(checkpoints: Checkpoints) -> None:
    engine, prompt = EmbeddedEngine.from_directory(checkpoints("qwen3")[0]), prompt_of(40)
    requests = [
        SampleRequest(
            prompt, SamplingParams(max_tokens=3, seed=n), "g", scoring=Scoring(prompt=True) if n == 0 else None
        )
        for n in range(8)
    ]
    run(engine, *requests)
    assert (engine.stats.prefill_tokens, engine.stats.reused_tokens) == (39, 7 * 39)


def flat(scores: PromptScores | None, top: TokenLogprobs | None) -> list[bytes]:
    assert scores is not None
    assert top is not None
    arrays = [scores.logprobs, *(scores.top or ()), scores.targets, *(scores.drawn or ()), *top]
    return [array.tobytes() for array in arrays if array is not None]


def test_scores_have_the_same_bits_alone_and_in_any_batch(checkpoints: Checkpoints) -> None:
    directory, _ = checkpoints("qwen3")
    requests = []
    for number, length in enumerate([1, 2, 3, 5, 18, 33, 70, 71]):
        prompt = prompt_of(length, number)
        scoring = every_kind(prompt, number) if length > 1 else Scoring(prompt=True, prompt_top=2, top=1)
        requests.append(SampleRequest(prompt, SamplingParams(max_tokens=4 + number, seed=number), scoring=scoring))

    def engine() -> EmbeddedEngine:
        return EmbeddedEngine.from_directory(directory, batch_invariant=True)

    mixed = run(engine(), *requests)
    for request, sample in zip(requests, mixed, strict=True):
        (alone,) = run(engine(), request)
        assert (alone.ids, alone.logprobs) == (sample.ids, sample.logprobs)
        assert flat(alone.prompt_scores, alone.top) == flat(sample.prompt_scores, sample.top)


def test_draws_at_prompt_positions_have_the_models_distribution(checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    prompt = prompt_of(3)
    draws = []
    for seed in range(40):
        request = SampleRequest(
            prompt, SamplingParams(max_tokens=1, seed=seed, temperature=0.5), scoring=Scoring(prompt_draws=100)
        )
        (sample,) = run(EmbeddedEngine.from_directory(directory), request)
        assert sample.prompt_scores is not None
        assert sample.prompt_scores.drawn is not None
        draws.append(sample.prompt_scores.drawn.ids)
    drawn, expected = np.concatenate(draws, 1), np.exp(logprobs_of(model, prompt, 0.5))
    for position in range(2):
        likeliest = int(expected[position].argmax())
        share, p = float((drawn[position] == likeliest).mean()), float(expected[position, likeliest])
        assert abs(share - p) < 4 * (p * (1 - p) / drawn.shape[1]) ** 0.5


@pytest.mark.parametrize(
    ("scoring", "said"),
    [
        ({"prompt_top": 129}, "prompt_top must be a whole number from 0 to 128"),
        ({"top": -1}, "top must be a whole number"),
        ({"prompt_draws": True}, "prompt_draws must be a whole number"),
        ({"prompt": True, "prompt_last": 4}, "prompt_last must be from 1 to 3"),
        ({"prompt_last": 1}, "needs scoring.prompt or"),
        ({"targets": np.zeros((4, 1), np.int64)}, r"int64 of shape \[3, K\]"),
        ({"targets": np.zeros((3, 1), np.int32)}, "not int32"),
        ({"targets": np.full((3, 1), 512)}, "token ids below 512"),
        ({"targets": np.full((3, 1), -1)}, "token ids below 512"),
    ],
)
def test_scoring_out_of_range_is_refused(checkpoints: Checkpoints, scoring: dict[str, Any], said: str) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    with pytest.raises(RequestRefusedError, match=said):
        run(engine, SampleRequest([1, 2, 3, 4], SamplingParams(max_tokens=1), scoring=Scoring(**scoring)))


def test_a_request_with_scoring_has_no_listener(checkpoints: Checkpoints) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    request = SampleRequest([1, 2], SamplingParams(max_tokens=1), scoring=Scoring(top=1))
    with pytest.raises(RequestRefusedError, match="has no listener"):
        asyncio.run(engine.sample(request, on_tokens=print))


def test_more_is_computed_at_once_on_cuda() -> None:
    assert at_once(1 << 20, torch.device("cpu")) == 1 << 20
    assert at_once(1 << 20, torch.device("cuda", 1)) == 1 << 24
