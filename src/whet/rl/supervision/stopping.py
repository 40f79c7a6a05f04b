"""How a run is stopped, how a failure is explained, and what a run leaves when it ends: weights and a report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from whet.errors import WhetError
from whet.rl.learner.config import LoraConfig
from whet.rl.monitors.protocol import Monitor, Outcome
from whet.rl.report import write_report
from whet.rl.storage.run_directory import RunDirectory
from whet.runs.directory import disk_failure
from whet.system.cancellation import cancel
from whet.system.files import replace_directory
from whet.system.signals import on_stopping_signals

T = TypeVar("T")


class StopRequested(Exception):
    """A stop was requested; the step under way was abandoned before its weights changed."""


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
    """The first Ctrl-C or SIGTERM stops the run with a checkpoint; the second ends the process without one.

    `step` returns the last step that was learned.
    """

    def request_stop(_: int) -> None:
        monitor.note(
            "stopping: the work under way ends first, then a checkpoint is written; a second signal ends at once"
        )
        stop.set()

    def end() -> None:
        message = "ended by a second signal, without a checkpoint of its last steps"
        close_and_kill_children(monitor, Outcome("interrupted", step(), message, next_command=resume_command))

    with on_stopping_signals(request_stop, say=monitor.note, end=end):
        yield


def explain_failure(error: BaseException, directory: RunDirectory) -> str | None:
    """The message for the user about a failed run; None for an error that is a fault of whet."""
    if isinstance(error, WhetError):
        return str(error)
    return disk_failure(error, directory.path)


class Exports(Protocol):
    """A learner as far as its weights go."""

    def export(self, directory: Path) -> None: ...
    def export_merged(self, directory: Path) -> None: ...


def export_weights(learner: Exports, directory: RunDirectory, step: int, lora: LoraConfig | None) -> Path:
    """The trained weights: an adapter (and the whole model, if it is to be merged), or a model with its tokenizer."""
    if lora is not None and lora.merge:
        replace_directory(directory.model, learner.export_merged)
    target = directory.model if lora is None else directory.adapters / f"step_{step}"
    return replace_directory(target, learner.export)


def with_report(outcome: Outcome, directory: RunDirectory, monitor: Monitor) -> Outcome:
    """The same outcome with its report; a report that cannot be written is noted and fails nothing else."""
    try:
        return replace(outcome, report=write_report(directory.path))
    except (OSError, WhetError) as error:
        monitor.note(f"no report was written: {error}")
        return outcome


def stall(failure: str | None, directory: RunDirectory, step: int) -> str | None:
    """Why the watchdog stopped a run, if it did, whatever that led to."""
    if failure is None:
        return None
    saved = (directory.checkpoints / f"step_{step}").is_dir()
    return f"{failure}." + (f" There is a checkpoint of step {step}." if saved else "")


def end_the_process(monitor: Monitor, outcome: Outcome) -> NoReturn:
    """Nothing else has helped: code that cannot be interrupted. The run can be resumed from its last checkpoint."""
    close_and_kill_children(monitor, outcome)
    os._exit(1)


def close_and_kill_children(monitor: Monitor, outcome: Outcome) -> None:
    """What is left to do before the process is ended from outside its event loop."""
    monitor.ended(outcome)
    for child in active_children():  # a process that hangs does not notice that its parent has ended
        child.kill()
