"""How a run is stopped from outside, and what a person is told when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from whet.errors import WhetError
from whet.rl.monitors.protocol import Monitor, Outcome
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.supervision.finishing import close_and_kill_children
from whet.system.cancellation import cancel
from whet.system.signals import on_stopping_signals

T = TypeVar("T")


class StopRequested(Exception):
    """Somebody asked the run to stop; the step under way was abandoned before its weights changed."""


async def unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`, unless `stop` is set first: then `work` is cancelled and `StopRequested` raised."""
    job = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise StopRequested
        return job.result()
    finally:
        stopped.cancel()
        await cancel([job])


@contextmanager
def stop_on_signals(
    stop: asyncio.Event, monitor: Monitor, resume_command: str, step: Callable[[], int]
) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to stop with a checkpoint; the second ends the process without one.

    `step` returns the last step that was learned.
    """

    def ask(_: int) -> None:
        monitor.note(
            "stopping: the work under way ends first, then a checkpoint is written; a second signal ends at once"
        )
        stop.set()

    def end() -> None:
        message = "ended by a second signal, without a checkpoint of its last steps"
        close_and_kill_children(monitor, Outcome("interrupted", step(), message, next_command=resume_command))

    with on_stopping_signals(ask, say=monitor.note, end=end):
        yield


def explain_failure(error: BaseException, directory: RunDirectory) -> str | None:
    """What to tell a person about a failed run; None for an error that is nobody's but ours."""
    if isinstance(error, WhetError):
        return str(error)
    if isinstance(error, OSError) and error.filename and Path(error.filename).is_relative_to(directory.path):
        return f"cannot write {error.filename}: {error.strerror}. Make room or mend the disk, then --resume."
    return None
