"""The engine's logprobs are those of a plain forward, wherever and however a row was computed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import Sample, SampleRequest, SamplingParams

Checkpoints = Callable[[str], tuple[Path, Any]]
Reference = Callable[..., torch.Tensor]
TOLERANCE = 5e-5  # of logits whose spread is far larger than a trained model's


def engine_of(directory: Path, **limits: Any) -> EmbeddedEngine:
    return EmbeddedEngine.from_directory(directory, limits=EngineLimits(**limits))


def random_prompt(rng: random.Random, least: int = 1, most: int = 90) -> list[int]:
    return [rng.randrange(512) for _ in range(rng.randrange(least, most))]


def worst(reference: Reference, model: Any, requests: list[SampleRequest], samples: list[Sample]) -> float:
    return max(
        (reference(model, r.prompt_ids, s.ids, r.params.temperature or 1.0) - torch.tensor(s.logprobs))
        .abs()
        .max()
        .item()
        for r, s in zip(requests, samples, strict=True)
    )


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-moe", "qwen2", "llama", "llama3-rope", "mistral"])
def test_mixed_requests_agree_with_a_plain_forward(reference: Reference, checkpoints: Checkpoints, kind: str) -> None:
    directory, model = checkpoints(kind)
    engine = engine_of(directory, max_rows=12)
    rng = random.Random(1)
    requests = [
        SampleRequest(
            random_prompt(rng),
            SamplingParams(
                max_tokens=rng.randrange(1, 50),
                temperature=rng.choice([1.0, 0.6, 0.0]),
                top_p=rng.choice([1.0, 0.9]),
                stop_token_ids=(3, 4, 5),
                seed=number,
            ),
        )
        for number in range(30)
    ]

    async def run() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    samples = asyncio.run(run())
    assert worst(reference, model, requests, samples) < TOLERANCE
    for request, sample in zip(requests, samples, strict=True):
        stopped = sample.ids[-1] in request.params.stop_token_ids
        assert sample.finish_reason == ("stop" if stopped else "length")
        assert not set(sample.ids[:-1]) & set(request.params.stop_token_ids)
        assert stopped or len(sample.ids) == request.params.max_tokens


def test_a_group_shares_its_prefill_and_stays_exact(reference: Reference, checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    engine = engine_of(directory)
    prompt = random_prompt(random.Random(2), 60, 61)
    requests = [SampleRequest(prompt, SamplingParams(max_tokens=20, seed=i), group_key="g") for i in range(8)]

    async def run() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    samples = asyncio.run(run())
    assert engine.stats.prefill_tokens == len(prompt) - 1
    assert engine.stats.reused_tokens == 7 * (len(prompt) - 1)
    assert worst(reference, model, requests, samples) < TOLERANCE
    assert len({tuple(sample.ids) for sample in samples}) > 1


def test_later_turns_reuse_what_is_there_and_stay_exact(reference: Reference, checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    engine = engine_of(directory, max_rows=8)
    requests: list[SampleRequest] = []
    samples: list[Sample] = []

    async def rollout(number: int) -> None:
        rng = random.Random(number)
        prompt = random_prompt(rng, 5, 40)
        for turn in range(4):
            request = SampleRequest(
                prompt,
                SamplingParams(max_tokens=rng.randrange(1, 12), seed=10 * number + turn),
                rollout_key=f"r{number}",
            )
            sample = await engine.sample(request)
            requests.append(request)
            samples.append(sample)
            prompt = prompt + sample.ids + random_prompt(rng, 1, 10)
        await engine.release(f"r{number}")

    async def run() -> None:
        await asyncio.gather(*(rollout(number) for number in range(12)))

    asyncio.run(run())
    assert worst(reference, model, requests, samples) < TOLERANCE
    all_prompts = sum(len(request.prompt_ids) - 1 for request in requests)
    assert engine.stats.prefill_tokens + engine.stats.reused_tokens == all_prompts
    assert engine.stats.reused_tokens > all_prompts / 2


def test_a_turn_that_rewrites_history_reuses_only_the_common_prefix(
    reference: Reference, checkpoints: Checkpoints
) -> None:
    directory, model = checkpoints("qwen3")
    engine = engine_of(directory)
    first = SampleRequest(list(range(10, 40)), SamplingParams(max_tokens=5, seed=1), rollout_key="r")
    second = SampleRequest(list(range(10, 30)) + [7] * 15, SamplingParams(max_tokens=5, seed=2), rollout_key="r")

    async def run() -> list[Sample]:
        return [await engine.sample(first), await engine.sample(second)]

    samples = asyncio.run(run())
    assert engine.stats.reused_tokens == 20
    assert worst(reference, model, [first, second], samples) < TOLERANCE


def test_finished_rows_survive_cache_growth(reference: Reference, checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    engine = engine_of(directory)
    rng = random.Random(4)
    first, second, third = (random_prompt(rng, length, length + 1) for length in (40, 5, 20))
    requests = [
        SampleRequest(first, SamplingParams(max_tokens=25, seed=1), rollout_key="1"),  # its columns are just full
        SampleRequest(second, SamplingParams(max_tokens=200, seed=2)),
        SampleRequest(third, SamplingParams(max_tokens=3, seed=3), rollout_key="3"),
    ]

    async def run() -> list[Sample]:
        samples = await asyncio.gather(*(engine.sample(request) for request in requests))
        for place in (0, 2):
            prompt = requests[place].prompt_ids + samples[place].ids + random_prompt(rng, 5, 20)
            params = SamplingParams(max_tokens=9, seed=place)
            requests.append(SampleRequest(prompt, params, rollout_key=requests[place].rollout_key))
            samples.append(await engine.sample(requests[-1]))
        return samples

    samples = asyncio.run(run())
    assert engine.stats.reused_tokens == 64 + 22
    assert worst(reference, model, requests, samples) < TOLERANCE


def test_what_is_reused_and_what_is_new_are_computed_together_in_a_narrow_cache(
    reference: Reference, checkpoints: Checkpoints
) -> None:
    directory, model = checkpoints("qwen3")
    engine = engine_of(directory)
    first = SampleRequest(list(range(10, 100)), SamplingParams(max_tokens=5, seed=1), rollout_key="r")

    async def run() -> tuple[list[SampleRequest], list[Sample]]:
        seen = first.prompt_ids + (await engine.sample(first)).ids
        # Padded to the longest of them, the continued turn would reach beyond the columns there are.
        turn = SampleRequest(seen + list(range(30)), SamplingParams(max_tokens=3, seed=2), rollout_key="r")
        others = [
            SampleRequest(random_prompt(random.Random(i), 36, 37), SamplingParams(max_tokens=3, seed=i))
            for i in range(150)
        ]
        return [turn, *others], await asyncio.gather(*(engine.sample(each) for each in (turn, *others)))

    requests, samples = asyncio.run(run())
    assert worst(reference, model, requests[:5], samples[:5]) < TOLERANCE


def test_a_long_prompt_is_computed_in_pieces_and_stays_exact(
    reference: Reference, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.decoding.decoder._SCORES_PER_CHUNK", 20_000)
    directory, model = checkpoints("llama3-rope")
    engine = engine_of(directory)
    rng = random.Random(3)
    requests = [SampleRequest(random_prompt(rng, 200, 300), SamplingParams(max_tokens=8, seed=i)) for i in range(3)]

    async def run() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    assert worst(reference, model, requests, asyncio.run(run())) < TOLERANCE


def test_bfloat16_stays_near(reference: Reference, checkpoints: Checkpoints) -> None:
    directory, model = checkpoints("qwen3")
    engine = EmbeddedEngine.from_directory(directory, dtype=torch.bfloat16)
    requests = [SampleRequest([5, 6, 7, 8], SamplingParams(max_tokens=10, seed=i)) for i in range(4)]

    async def run() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    assert worst(reference, model, requests, asyncio.run(run())) < 1.0
