"""What was cancelled is waited for briefly, whatever it does about it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from whet.system import cancellation


async def stubborn() -> None:
    """Goes on, however often it is cancelled."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def fails_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise RuntimeError("while it was cleaning up")


def test_what_ends_when_it_is_cancelled_is_waited_for() -> None:
    ended = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def scenario() -> bool:
        tasks = [asyncio.create_task(tidy()) for _ in range(3)]
        await asyncio.sleep(0)
        return await cancellation.cancel(tasks)

    assert cancellation.run(scenario())
    assert len(ended) == 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "GRACE_S", 0.01)
    monkeypatch.setattr(cancellation, "_left", set())  # or pytest's own process would end with what is left here


@pytest.mark.usefixtures("impatient")
def test_what_goes_on_is_left_behind() -> None:
    async def scenario() -> bool:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        return await cancellation.cancel([task])

    assert not cancellation.run(scenario())


def test_what_fails_when_it_is_cancelled_is_nobodys_warning(recwarn: pytest.WarningsRecorder) -> None:
    async def scenario() -> bool:
        task = asyncio.create_task(fails_when_cancelled())
        await asyncio.sleep(0)
        return await cancellation.cancel([task])

    assert cancellation.run(scenario())
    assert not [warning for warning in recwarn if warning.category is not ResourceWarning]  # of earlier tests' garbage


def test_what_has_ended_already_is_no_matter() -> None:
    async def scenario() -> bool:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        return await cancellation.cancel([task])

    assert cancellation.run(scenario())
    assert cancellation.run(cancellation.cancel([]))


class TestCancellable:
    def test_gives_what_the_work_gives(self) -> None:
        async def work() -> int:
            await asyncio.sleep(0)
            return 7

        assert cancellation.run(cancellation.cancellable(work())) == 7

    def test_raises_what_the_work_raises(self) -> None:
        async def work() -> int:
            raise KeyError("x")

        with pytest.raises(KeyError):
            cancellation.run(cancellation.cancellable(work()))

    @pytest.mark.usefixtures("impatient")
    def test_cancelled_caller_continues_while_work_runs(self) -> None:
        told = []

        async def scenario() -> bool:
            work = cancellation.cancellable(stubborn(), on_left=lambda: told.append(True))
            caller = asyncio.create_task(work)
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait({caller})
            return caller.cancelled()

        assert cancellation.run(scenario())
        assert told == [True]

    def test_work_that_is_cancelled_by_itself_is_a_cancellation(self) -> None:
        async def work() -> None:
            raise asyncio.CancelledError

        async def scenario() -> bool:
            task = asyncio.create_task(cancellation.cancellable(work()))
            await asyncio.wait({task})
            return task.cancelled()

        assert cancellation.run(scenario())


class TestRun:
    def test_cancels_what_is_still_under_way(self) -> None:
        ended = []

        async def other() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        async def main() -> int:
            task = asyncio.create_task(other())
            await asyncio.sleep(0)
            assert not task.done()
            return 3

        assert cancellation.run(main()) == 3
        assert ended == [True]

    def test_raises_what_the_work_raises_and_cleans_up(self) -> None:
        async def main() -> None:
            await asyncio.to_thread(lambda: None)
            raise ValueError("so")

        before = set(threading.enumerate())
        with pytest.raises(ValueError, match="so"):
            cancellation.run(main())
        assert set(threading.enumerate()) <= before

    def test_closes_generators_that_were_left(self) -> None:
        closed = []

        async def numbers():  # type: ignore[no-untyped-def]
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        async def main() -> None:
            generator = numbers()
            async for _ in generator:
                break
            kept.append(generator)

        kept: list[object] = []
        cancellation.run(main())
        assert closed == [True]


NEVER_ENDS = """
import asyncio, atexit, sys, threading
from whet.system import cancellation

atexit.register(print, "cleaned up")
cancellation.GRACE_S = 0.05

async def main():
    if "thread" in sys.argv:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    asyncio.create_task(stubborn())
    await asyncio.sleep(0)

cancellation.run(main())
print("done")
sys.exit(cancellation.leave(3))
"""


@pytest.mark.parametrize("what", ["task", "thread"])
def test_a_process_ends_with_its_status_although_something_never_ends(what: str) -> None:
    ended = subprocess.run([sys.executable, "-c", NEVER_ENDS, what], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["done", "cleaned up"]
    assert not ended.stderr
