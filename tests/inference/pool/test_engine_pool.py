"""A pool over scripted engines: where requests go, what becomes of lost ones, and who is at fault."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_members import Members, answer_of, request, until

from whet.errors import ConfigError, EndpointDownError, ModelError, OverlongPromptError, RequestRefusedError
from whet.inference.pool import engine_pool
from whet.inference.pool.member import STRIKES
from whet.inference.protocol import Sample, SampleRequest, VersionRun, WeightUpdate

LONG = request(max_tokens=40)


def is_whole(sample: Sample, asked: Any = LONG) -> bool:
    """Whether it is what an engine answers that nothing interrupts."""
    return (sample.ids, sample.logprobs) == answer_of(asked)


def test_requests_spread_over_members_and_turns_of_a_rollout_stay() -> None:
    members = Members()

    async def work() -> None:
        for turn in range(3):
            asked = [replace(LONG, rollout_key=str(n), prompt_ids=[n, turn]) for n in range(9)]
            await asyncio.gather(*map(members.pool.sample, asked))

    asyncio.run(members.run(work()))
    by_member = [{r.rollout_key for r in member.engine.requests} for member in members.all]
    assert [len(keys) for keys in by_member] == [3, 3, 3]
    assert len(set.union(*by_member)) == 9


def test_the_end_of_a_rollout_reaches_its_member() -> None:
    members = Members()

    async def work() -> None:
        await asyncio.gather(*(members.pool.sample(replace(LONG, rollout_key=key)) for key in "abc"))
        for key in "abcd":
            await members.pool.release(key)

    asyncio.run(members.run(work()))
    assert [sorted(member.engine.released) for member in members.all] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("drawn", [0, 1, 17, 40])
def test_a_request_whose_engine_ends_is_answered_by_another_as_if_nothing_was(listens: bool, drawn: int) -> None:
    members, heard = Members(), list[int]()

    async def work() -> Sample:
        await members.pool.start()
        for member in members.all:
            member.holds_at = drawn
        options: dict[str, Any] = {"on_tokens": heard.extend} if listens else {}
        running = asyncio.create_task(members.pool.sample(LONG, **options))
        await until(members.with_requests)
        (lost,) = members.with_requests()
        if listens:
            await until(lambda: len(heard) == drawn)
        for member in members.all:
            member.holds_at = None if member is not lost else drawn
        lost.kill()
        return await running

    sample = asyncio.run(members.run(work()))
    assert is_whole(sample)
    assert sample.versions == [VersionRun(0, 40)]
    assert heard == (sample.ids if listens else [])
    sent = [(len(r.prompt_ids), r.params.max_tokens) for member in members.all for r in member.engines[0].requests]
    kept = len(heard) and drawn
    assert sorted(sent) == [(3, 40), (3 + kept, 40 - kept)][: 1 if kept == 40 else 2]


def test_an_answer_that_ended_with_a_stop_token_is_not_continued() -> None:
    ids, _ = answer_of(LONG)
    members, heard, asked = Members(), list[int](), request(max_tokens=40, stop_token_ids=(ids[5],))

    async def work() -> Sample:
        await members.pool.start()
        for member in members.all:
            member.holds_at = 6
        running = asyncio.create_task(members.pool.sample(asked, on_tokens=heard.extend))
        await until(lambda: len(heard) == 6)
        members.with_requests()[0].kill()
        return await running

    sample = asyncio.run(members.run(work()))
    assert (sample.ids, sample.finish_reason) == (ids[:6], "stop")
    assert heard == ids[:6]


def test_what_a_caller_has_is_not_continued_without_its_logprobs() -> None:
    members, heard = Members(), list[int]()

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.holds_at, member.knows_parts = 5, False
        running = asyncio.create_task(members.pool.sample(LONG, on_tokens=heard.extend))
        await until(lambda: len(heard) == 5)
        members.with_requests()[0].kill()
        with pytest.raises(EndpointDownError, match="log-probabilities of its first 5 tokens are lost as well"):
            await running

    asyncio.run(members.run(work()))


@pytest.mark.parametrize("error", [RequestRefusedError("no"), OverlongPromptError("long")])
def test_a_refused_request_is_the_callers_and_costs_no_engine(error: Exception) -> None:
    members = Members()

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.refuses = error
        for _ in range(2 * STRIKES):
            with pytest.raises(type(error)):
                await members.pool.sample(LONG)

    asyncio.run(members.run(work()))
    assert [len(member.engines) for member in members.all] == [1, 1, 1]


def test_what_a_listener_raises_ends_its_request_alone() -> None:
    members = Members(1)

    def refuse(ids: list[int]) -> None:
        raise ModelError("enough")

    async def work() -> Sample:
        for _ in range(2 * STRIKES):
            with pytest.raises(ModelError, match="enough"):
                await members.pool.sample(LONG, on_tokens=refuse)
        return await members.pool.sample(LONG)

    assert is_whole(asyncio.run(members.run(work())))
    assert len(members.all[0].engines) == 1


def test_a_cancelled_request_is_freed_on_its_member() -> None:
    members = Members(1)

    async def work() -> None:
        await members.pool.start()
        members.all[0].holds_at = 3
        running = asyncio.create_task(members.pool.sample(LONG))
        await until(members.with_requests)
        assert members.pool.metrics()["engine/queue"] == members.pool.metrics()["engine/0/queue"] == 1
        running.cancel()
        await asyncio.wait({running})
        assert members.all[0].engine.in_flight == 0
        assert members.pool.metrics()["engine/queue"] == members.pool.metrics()["engine/0/queue"] == 0

    asyncio.run(members.run(work()))


def test_an_engine_that_fails_again_and_again_without_ending_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        members.all[0].refuses = ModelError("CUDA error")
        while len(members.all[0].engines) == 1:
            assert is_whole(await members.pool.sample(LONG)), "the other one answers"
        members.all[0].refuses = None

    asyncio.run(members.run(work()))
    (line,) = [record.getMessage() for record in caplog.records if "is down" in record.getMessage()]
    assert f"engine 0 is down: {STRIKES} requests failed one after the other, the last one with: CUDA error" in line


def test_a_request_that_ends_every_engine_is_not_sent_for_ever() -> None:
    members = Members(4)

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.refuses = EndpointDownError("it fell over")
        with pytest.raises(EndpointDownError, match="it fell over"):
            await members.pool.sample(LONG)

    asyncio.run(members.run(work()))
    sent = [len(engine.requests) for member in members.all for engine in member.engines]
    assert sum(sent) == engine_pool.MOST_LOSSES
    assert len(sent) == 4, "too few failures of each to restart it"


def test_requests_of_a_connection_that_hangs_end_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.inference.pool.member.CUT_AFTER_S", 0.01)
    members = Members(2)

    async def work() -> Sample:
        await members.pool.start()
        for member in members.all:
            member.holds_at, member.hangs = 3, True
        running = asyncio.create_task(members.pool.sample(LONG))
        await until(members.with_requests)
        lost = members.with_requests()[0]
        for member in members.all:
            member.holds_at = None
        lost.kill()
        return await running

    assert is_whole(asyncio.run(members.run(work())))


def test_answer_lengths_are_those_of_all_members() -> None:
    members = Members(2)

    async def work() -> None:
        assert members.pool.answer_lengths() == []
        await members.pool.start()
        for member in members.all:
            member.holds_at = 1
        running = [asyncio.create_task(members.pool.sample(LONG)) for _ in range(3)]
        await until(lambda: len(members.pool.answer_lengths()) == 3)
        for member in members.all:
            member.holds_at = None
        await asyncio.gather(*running)

    asyncio.run(members.run(work()))


def test_closing_ends_members_and_fails_what_waits() -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.holds_at = 1
        running = asyncio.create_task(members.pool.sample(LONG))
        await until(members.with_requests)
        await members.pool.close()
        with pytest.raises(ModelError, match="closed while requests were waiting"):
            await running
        with pytest.raises(ModelError, match="closed"):
            await members.pool.sample(LONG)

    asyncio.run(members.run(work()))
    assert all(member.cause == "it was stopped" for member in members.all)


def test_more_healthy_engines_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="min_healthy = 3 is not possible with 2 engines"):
        Members(2, min_healthy=3)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5)),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("load"), st.just(0)),
        st.tuples(st.just("turns"), st.integers(1, 30)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(ACTIONS)
def test_whatever_ends_and_is_loaded_each_request_is_answered_whole_by_the_newest_weights(
    actions: list[tuple[str, int]],
) -> None:
    members, version = Members(3), 0
    asked: list[tuple[SampleRequest, list[int], asyncio.Task[Sample]]] = []

    async def work() -> None:
        nonlocal version
        await members.pool.start()
        loads = []
        for action, number in actions:
            if action == "ask":
                heard: list[int] = []
                one = request([len(asked)], 8 + number, rollout_key=f"{number}", group_key=f"{number % 2}")
                options: dict[str, Any] = {"on_tokens": heard.extend} if number % 2 else {}
                asked.append((one, heard, asyncio.create_task(members.pool.sample(one, **options))))
            elif action == "kill":
                members.all[number].kill()
            elif action == "load":
                version += 1
                loads.append(asyncio.create_task(members.pool.load_weights(WeightUpdate(version, Path("w")))))
            for _ in range(number if action == "turns" else 0):
                await asyncio.sleep(0)
        await asyncio.gather(*loads, *(task for _, _, task in asked))
        await until(lambda: members.pool.metrics()["engine/healthy"] == 3)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("whet.inference.pool.member.LOOK_S", 0.0)
        asyncio.run(members.run(work()))
    for one, heard, task in asked:
        sample = task.result()
        assert is_whole(sample, one)
        assert not heard or heard == sample.ids
        versions = [run.version for run in sample.versions]
        assert versions == sorted(versions)
    assert [member.engine.version for member in members.all] == [version] * 3
