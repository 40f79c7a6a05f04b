"""The collector while many rollouts are in flight; see `whet.rollouts.driver`."""

import asyncio
import gc
import sys
import weakref

import pytest

from whet.rollouts import driver
from whet.rollouts.driver import calm_collector, full_is_due, what_is_loaded_stays

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 collects in increments by itself")
MIB = 1 << 20


class Node:
    """One half of a cycle: only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed():
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0
    gc.freeze()  # for the tests of other files, as tests/conftest.py did


def test_what_has_survived_is_not_visited_again():
    async def run() -> tuple[int, int]:
        kept = [[] for _ in range(1000)]
        async with calm_collector():
            await asyncio.sleep(3 * driver.STEP_S)
            visited = {id(item) for item in gc.get_objects()}
            return sum(id(item) in visited for item in kept), gc.get_freeze_count()

    visited, frozen = asyncio.run(run())
    assert visited == 0
    assert frozen >= 1000


def test_young_cycles_are_collected_meanwhile():
    async def run() -> bool:
        async with calm_collector():
            gone = asyncio.Event()
            weakref.finalize(Node(), gone.set)
            await asyncio.wait_for(gone.wait(), 60)
            return gone.is_set()

    assert asyncio.run(run())


def test_old_cycles_are_collectable_again_at_the_end():
    async def run() -> weakref.ref[Node]:
        node = Node()
        async with calm_collector():
            await asyncio.sleep(3 * driver.STEP_S)
            reference = weakref.ref(node)
            del node
            gc.collect()
            assert reference() is not None
        return reference

    reference = asyncio.run(run())
    gc.collect()
    assert reference() is None


def test_old_cycles_are_collected_once_the_process_has_grown(monkeypatch):
    sizes = iter([100 * MIB])

    async def run() -> bool:
        node = Node()
        async with calm_collector():
            await asyncio.sleep(3 * driver.STEP_S)
            gone = asyncio.Event()
            weakref.finalize(node, gone.set)
            del node
            monkeypatch.setattr(driver, "peak_bytes", lambda: next(sizes, 10_000 * MIB))
            await asyncio.wait_for(gone.wait(), 60)
            return gone.is_set()

    assert asyncio.run(run())


def test_a_full_collection_is_due_after_growth_in_share_and_in_bytes():
    assert not full_is_due(400 * MIB, 100 * MIB)
    assert not full_is_due(4500 * MIB, 4000 * MIB)
    assert full_is_due(700 * MIB, 100 * MIB)


def test_two_at_once_thaw_when_the_last_ends():
    async def run() -> None:
        async with calm_collector():
            async with calm_collector():
                pass
            assert gc.get_freeze_count() > 0

    asyncio.run(run())


def test_a_program_that_has_frozen_objects_itself_is_left_alone():
    async def run() -> None:
        gc.freeze()
        count = gc.get_freeze_count()
        async with calm_collector():
            kept = [[] for _ in range(100)]
            await asyncio.sleep(3 * driver.STEP_S)
            assert gc.get_freeze_count() <= count
            assert kept
        assert gc.get_freeze_count() > 0
        gc.unfreeze()

    asyncio.run(run())


def test_frozen_objects_are_collected_only_after_the_run():
    loaded = [[] for _ in range(1000)]
    with what_is_loaded_stays():
        node = weakref.ref(Node())
        visited = {id(item) for item in gc.get_objects()}
        assert not any(id(item) in visited for item in loaded)
        gc.collect()
        assert node() is None
        with what_is_loaded_stays():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
