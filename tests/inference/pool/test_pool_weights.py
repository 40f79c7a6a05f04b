"""Weights of a pool: the newest for every member before its first request, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scripted_members import Members, answer_of, request, until

from whet.errors import EndpointDownError, ModelLoadError, RequestRefusedError, TrainingError
from whet.inference.protocol import VersionRun, WeightUpdate

ASKED = request(max_tokens=20)


def update(version: int, adapter: str | None = None) -> WeightUpdate:
    return WeightUpdate(version, Path(f"{adapter}-{version}"), adapter=adapter)


def test_all_members_take_new_weights_and_say_so() -> None:
    members = Members()

    async def work() -> None:
        await members.pool.load_weights(update(3))
        assert members.pool.version == 3
        for _ in range(3):
            assert (await members.pool.sample(ASKED)).versions == [VersionRun(3, 20)]

    asyncio.run(members.run(work()))
    assert [member.engine.version for member in members.all] == [3, 3, 3]


def test_a_restarted_member_has_the_newest_of_everything_before_its_first_request() -> None:
    members = Members(2)
    newest = [update(2), update(7, "one"), update(5, "two")]

    async def work() -> None:
        for each in (update(1), update(6, "one"), update(4, "gone"), *newest):
            await members.pool.load_weights(each)
        await members.pool.unload_adapter("gone")
        members.all[0].kill()
        members.all[1].holds_at = 0  # so that the other one is the less loaded
        busy = asyncio.create_task(members.pool.sample(ASKED))
        await until(lambda: len(members.all[0].engines) == 2 and members.pool.metrics()["engine/healthy"] == 2)
        while not members.all[0].engine.requests:
            await members.pool.sample(ASKED)
        members.all[1].holds_at = None
        await busy

    asyncio.run(members.run(work()))
    assert members.all[0].engine.did[:3] == [newest[0], newest[1], newest[2]]
    assert members.all[0].engine.did[3:] == members.all[0].engine.requests


def test_weights_that_arrive_while_a_member_restarts_do_not_leave_it_behind() -> None:
    members, reached, may_go = Members(2), asyncio.Event(), asyncio.Event()
    versions: list[int] = []

    async def slow(loaded: WeightUpdate) -> None:
        versions.append(loaded.version)
        reached.set()
        await may_go.wait()

    async def work() -> None:
        await members.pool.load_weights(update(1))
        members.all[0].kill()
        members.all[0].loading = slow
        await reached.wait()  # it takes version 1
        await members.pool.load_weights(update(2))
        assert members.pool.version == 2
        may_go.set()
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        assert members.all[0].engine.version == 2
        assert await asyncio.gather(*(members.pool.sample(ASKED) for _ in range(4)))

    asyncio.run(members.run(work()))
    assert versions == [1, 2]
    answers = [asked for asked in members.all[0].engine.did if not isinstance(asked, WeightUpdate)]
    assert answers
    assert members.all[0].engine.did.index(answers[0]) == 2


def test_a_file_that_newer_weights_replaced_is_not_a_failure() -> None:
    members, reached, may_go = Members(2), asyncio.Event(), asyncio.Event()

    async def gone(loaded: WeightUpdate) -> None:
        if loaded.version == 1:
            reached.set()
            await may_go.wait()
            raise ModelLoadError(f"{loaded.path} is missing")

    async def work() -> None:
        await members.pool.load_weights(update(1))
        members.all[0].loading = gone
        members.all[0].kill()
        await reached.wait()
        await members.pool.load_weights(update(2))
        may_go.set()
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)

    asyncio.run(members.run(work()))
    assert [member.engine.version for member in members.all] == [2, 2]
    assert len(members.all[0].engines) == 2


@pytest.mark.parametrize(
    "error", [EndpointDownError("lost"), TrainingError("3 tensors differ"), ModelLoadError("torn")]
)
def test_a_member_that_fails_to_take_weights_is_restarted_and_answers_nothing_with_the_old(error: Exception) -> None:
    members, failing = Members(2), [error]

    async def fails_once(loaded: WeightUpdate) -> None:
        if loaded.version == 2 and failing:
            raise failing.pop()

    async def work() -> None:
        await members.pool.load_weights(update(1))
        members.all[0].loading = fails_once
        await members.pool.load_weights(update(2))
        samples = await asyncio.gather(*(members.pool.sample(ASKED) for _ in range(6)))
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        samples += await asyncio.gather(*(members.pool.sample(ASKED) for _ in range(6)))
        assert all(sample.versions == [VersionRun(2, 20)] for sample in samples)

    asyncio.run(members.run(work()))
    first, second = members.all[0].engines
    assert first.requests == []
    assert second.updates == [update(2)]
    assert second.requests


def test_an_update_that_all_refuse_is_the_callers_and_changes_nothing() -> None:
    members = Members(2)

    async def refuse(loaded: WeightUpdate) -> None:
        raise ModelLoadError("a tensor is missing")

    async def work() -> None:
        await members.pool.load_weights(update(1))
        for member in members.all:
            member.loading = refuse
        with pytest.raises(ModelLoadError, match="a tensor is missing"):
            await members.pool.load_weights(update(2))
        assert members.pool.version == 1
        assert (await members.pool.sample(ASKED)).versions == [VersionRun(1, 20)]

    asyncio.run(members.run(work()))
    assert [len(member.engines) for member in members.all] == [1, 1]


def test_new_requests_wait_for_a_member_that_takes_weights_and_are_spread_as_ever() -> None:
    members, may_go = Members(2), asyncio.Event()

    async def slow(loaded: WeightUpdate) -> None:
        await may_go.wait()

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.loading = slow
        loading = asyncio.create_task(members.pool.load_weights(update(1)))
        await until(lambda: all(member.engine.updates for member in members.all))
        samples = [asyncio.create_task(members.pool.sample(ASKED)) for _ in range(6)]
        await until(lambda: members.pool.metrics()["engine/queue"] == 6)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(member.engine.requests for member in members.all)
        assert "engine 0 takes new weights" in members.pool.waiting_for()
        may_go.set()
        await loading
        assert all(sample.versions == [VersionRun(1, 20)] for sample in await asyncio.gather(*samples))

    asyncio.run(members.run(work()))
    assert [len(member.engine.requests) for member in members.all] == [3, 3]


def test_a_member_that_hangs_while_it_takes_weights_holds_nothing_up_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whet.inference.pool.member.CUT_AFTER_S", 0.01)
    members = Members(2)

    async def hang(loaded: WeightUpdate) -> None:
        if len(members.all[0].engines) == 1:
            await asyncio.Event().wait()

    async def work() -> None:
        await members.pool.start()
        members.all[0].loading = hang
        loading = asyncio.create_task(members.pool.load_weights(update(1)))
        await until(lambda: members.all[0].engine.updates)
        members.all[0].kill()
        await loading
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)

    asyncio.run(members.run(work()))
    assert [member.engine.version for member in members.all] == [1, 1]


def test_a_load_that_is_given_up_leaves_no_member_with_older_weights() -> None:
    members = Members(2)

    async def hang(loaded: WeightUpdate) -> None:
        if len(members.all[0].engines) == 1:
            await asyncio.Event().wait()

    async def work() -> None:
        await members.pool.start()
        members.all[0].loading = hang
        loading = asyncio.create_task(members.pool.load_weights(update(1)))
        await until(lambda: members.all[1].engine.version == 1)
        loading.cancel()
        await asyncio.wait({loading})
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        samples = await asyncio.gather(*(members.pool.sample(ASKED) for _ in range(4)))
        assert all(sample.versions == [VersionRun(1, 20)] for sample in samples)

    asyncio.run(members.run(work()))
    assert len(members.all[0].engines) == 2


def test_an_engine_that_starts_with_another_version_is_not_used() -> None:
    members = Members(1, version=4)

    async def work() -> None:
        with pytest.raises(Exception, match="it has policy version 0, and the latest is 4"):
            await members.pool.sample(ASKED)

    asyncio.run(members.run(work()))


def test_a_lost_answer_has_the_versions_of_both_engines() -> None:
    members, heard = Members(2), list[int]()

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.holds_at = 8
        running = asyncio.create_task(members.pool.sample(ASKED, on_tokens=heard.extend))
        await until(lambda: len(heard) == 8)
        lost = members.with_requests()[0]
        await members.pool.load_weights(update(1))
        for member in members.all:
            member.holds_at = 8 if member is lost else None
        lost.kill()
        sample = await running
        assert sample.versions == [VersionRun(0, 8), VersionRun(1, 12)]
        assert (sample.ids, sample.logprobs) == answer_of(ASKED)

    asyncio.run(members.run(work()))


def test_adapters_are_known_by_name_to_the_pool() -> None:
    members = Members(2)
    asked = request(max_tokens=5, adapter="one")

    async def work() -> None:
        with pytest.raises(RequestRefusedError, match="no adapter 'one'; it has: none"):
            await members.pool.sample(asked)
        await members.pool.load_weights(update(3, "one"))
        assert members.pool.version == 0
        assert (await members.pool.sample(asked)).versions == [VersionRun(3, 5)]
        with pytest.raises(RequestRefusedError, match="no adapter 'two'; it has: one"):
            await members.pool.unload_adapter("two")
        await members.pool.unload_adapter("one")
        with pytest.raises(RequestRefusedError, match="no adapter 'one'"):
            await members.pool.sample(asked)

    asyncio.run(members.run(work()))
    assert [member.engine.adapters for member in members.all] == [{}, {}]


def test_the_pool_recomputes_contexts_where_all_members_do() -> None:
    members = Members(2)
    assert not members.pool.recomputes

    async def work() -> None:
        await members.pool.start()
        assert members.pool.recomputes
        members.all[0].engine.recomputes = False
        assert not members.pool.recomputes

    asyncio.run(members.run(work()))
