"""The rectangle of keys and values keeps what it is to keep, and is finite everywhere."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.inference.architecture import read_architecture
from whet.inference.decoding.cache import KVCache
from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import Sample, SampleRequest, SamplingParams


@pytest.fixture
def cache(checkpoints: Callable[[str], tuple[Path, Any]]) -> KVCache:
    """Four slots of eight columns, each number different."""
    made = KVCache(
        read_architecture(checkpoints("qwen3-moe")[0]),
        dtype=torch.float32,
        device=torch.device("cpu"),
        record_experts=True,
    )
    made.resize(4, 8, kept=0)
    for number, tensor in enumerate((*made.keys, *made.values, made.experts)):
        tensor.copy_(1000 * number + torch.arange(tensor.numel()).view_as(tensor))
    return made


def slots_of(cache: KVCache, columns: int) -> list[torch.Tensor]:
    """Everything in the first columns, slots first."""
    keys_values = [tensor[:, :, :columns] for tensor in (*cache.keys, *cache.values)]
    return [tensor.clone() for tensor in (*keys_values, cache.experts[:, :, :columns].transpose(0, 1))]


@pytest.mark.parametrize(("slots", "columns"), [(6, 12), (4, 12), (3, 8), (3, 5)])
def test_another_size_keeps_what_lies_in_both(cache: KVCache, slots: int, columns: int) -> None:
    both = min(columns, 8)
    before = slots_of(cache, both)
    cache.resize(slots, columns, kept=3)
    for was, now in zip(before, slots_of(cache, both), strict=True):
        assert torch.equal(now[:3], was[:3])
    for tensor in (*cache.keys, *cache.values):
        assert not tensor[3:].any()
        assert not tensor[:, :, both:].any()


def test_a_prefix_is_copied_to_several_slots(cache: KVCache) -> None:
    before = slots_of(cache, 8)
    cache.copy_prefix([1, 1], [0, 3], 5)
    for was, now in zip(before, slots_of(cache, 8), strict=True):
        axis = now.dim() - 2
        ends = [part.narrow(axis, 5, 3) for part in (now, was)]
        assert torch.equal(*ends)
        for slot, source in enumerate((1, 1, 2, 1)):
            assert torch.equal(now[slot].narrow(axis - 1, 0, 5), was[source].narrow(axis - 1, 0, 5))


def test_slots_change_places(cache: KVCache) -> None:
    before = slots_of(cache, 8)
    cache.swap([3, 2], [0, 1], 8)
    for was, now in zip(before, slots_of(cache, 8), strict=True):
        assert torch.equal(now, was.flip(0))


def bytes_of(cache: KVCache) -> int:
    return sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))


def all_caches() -> list[KVCache]:
    return [each for each in gc.get_objects() if type(each) is KVCache]


@pytest.mark.parametrize("rollout_key", [None, "0"], ids=["one turn", "turns"])
def test_a_large_cache_is_freed_while_nothing_is_sampled(
    checkpoints: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch, rollout_key: str | None
) -> None:
    others = all_caches()
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(max_rows=8))
    (cache,) = (each for each in all_caches() if each not in others)

    requests = [
        SampleRequest([1, 2, 3, 4, 5], SamplingParams(max_tokens=40, seed=seed), rollout_key=rollout_key)
        for seed in range(8)
    ]

    async def burst() -> list[Sample]:
        samples = await asyncio.gather(*(engine.sample(request) for request in requests))
        if rollout_key is not None:
            assert bytes_of(cache) > 0, "the rollout may have another turn"
            await engine.release(rollout_key)
        return samples

    first = asyncio.run(burst())
    assert bytes_of(cache) > 0, "a small one stays"
    monkeypatch.setattr("whet.inference.decoding.parts.KEPT_CACHE", 0)
    assert asyncio.run(burst()) == first
    assert bytes_of(cache) == 0
    assert asyncio.run(burst()) == first
