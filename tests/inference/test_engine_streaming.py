"""Tokens handed out as they are sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.inference.embedded import EmbeddedEngine
from whet.inference.limits import EngineLimits
from whet.inference.protocol import SampleRequest, SamplingParams, VersionRun

Checkpoints = Callable[[str], tuple[Path, Any]]


@pytest.fixture
def engine(checkpoints: Checkpoints) -> EmbeddedEngine:
    return EmbeddedEngine.from_directory(checkpoints("qwen3")[0], limits=EngineLimits(max_rows=2), seed=0)


def request(seed: int, max_tokens: int = 12) -> SampleRequest:
    return SampleRequest([1, 2, 3, 4, 5], SamplingParams(max_tokens=max_tokens, seed=seed))


def test_each_token_is_told_once_in_order_and_the_sample_is_the_same_as_unheard(engine: EmbeddedEngine) -> None:
    heard: list[list[list[int]]] = [[] for _ in range(4)]

    async def run() -> list[list[int]]:
        asked = [engine.sample(request(seed), on_tokens=heard[seed].append) for seed in range(4)]
        return [sample.ids for sample in await asyncio.gather(*asked)]

    async def unheard() -> list[list[int]]:
        return [sample.ids for sample in await asyncio.gather(*(engine.sample(request(seed)) for seed in range(4)))]

    ids = asyncio.run(run())
    assert [[token for piece in pieces for token in piece] for pieces in heard] == ids
    assert all(len(pieces) == 12 for pieces in heard)
    assert asyncio.run(unheard()) == ids


def test_tokens_are_told_while_the_row_still_runs(engine: EmbeddedEngine) -> None:
    async def run() -> None:
        first = asyncio.Event()
        asked = asyncio.create_task(engine.sample(request(0, 400), on_tokens=lambda ids: first.set()))
        await first.wait()
        assert not asked.done()
        assert sum(count for _, count in (await asked).versions) == 400

    asyncio.run(run())


@pytest.mark.parametrize("running", [True, False], ids=["running", "waiting"])
def test_cancelling_one_that_listens_frees_its_place(engine: EmbeddedEngine, running: bool) -> None:
    async def run() -> None:
        first = asyncio.Event()
        others = [asyncio.create_task(engine.sample(request(seed, 300))) for seed in range(1 if running else 2)]
        asked = asyncio.create_task(engine.sample(request(5, 300), on_tokens=lambda ids: first.set()))
        await (first.wait() if running else asyncio.sleep(0))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert engine.requests_in_flight == len(others)
        assert [len((await other).ids) for other in others] == [300] * len(others)

    asyncio.run(run())


def test_a_listener_that_fails_ends_its_own_request_only(engine: EmbeddedEngine) -> None:
    def refuse(ids: list[int]) -> None:
        raise ValueError("no more")

    async def run() -> None:
        asked = engine.sample(request(0, 50), on_tokens=refuse), engine.sample(request(1, 50))
        failed, other = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, ValueError)
        assert not isinstance(other, BaseException)
        assert other.versions == [VersionRun(0, 50)]
        assert engine.requests_in_flight == 0

    asyncio.run(run())
