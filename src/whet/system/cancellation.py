"""Cancel third-party code, which may catch its cancellation: it is awaited briefly, then abandoned.

`asyncio.gather`, task groups and `asyncio.run` wait for what they have cancelled however long that takes, and Python
waits at its end for every thread of an executor. Here each of these has a limit.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from whet.system.quiet import new_loop

T = TypeVar("T")

GRACE_S = 5.0
"""Seconds for what was cancelled to end."""
_left: set[asyncio.Task[Any] | threading.Thread] = set()


async def cancel(tasks: Iterable[asyncio.Future[Any]], *, within: float | None = None) -> bool:
    """Cancel all of these and wait until they have ended, at most `within` seconds (`GRACE_S`); whether all have."""
    tasks = set(tasks)
    going = {task for task in tasks if not task.done()}
    for task in going:
        task.cancel()
    if going:
        _, going = await asyncio.wait(going, timeout=GRACE_S if within is None else within)
    for task in tasks - going:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn: the caller reports the first failure
    for task in going:
        if isinstance(task, asyncio.Task):
            _left.add(task)  # the only reference may be this one, and asyncio warns when a pending task is collected
            task.add_done_callback(_left.discard)
    return not going


async def cancellable(
    work: Coroutine[Any, Any, T], *, on_left: Callable[[], None] | None = None, within: float | None = None
) -> T:
    """The result of `work`. Where the caller is cancelled, `work` is too, and has `within` seconds (`GRACE_S`) to end.

    `on_left` is called where it has not. The caller's cancellation is raised either way.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not await cancel([task], within=within) and on_left is not None:
            on_left()
        raise


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but tasks that ignore their cancellation, and threads that do not end, are abandoned.

    Ctrl-C is not turned into a cancellation: the caller handles signals, or gets a `KeyboardInterrupt`.
    """
    loop = new_loop()
    prefix = f"whet-{id(loop)}"
    threads = ThreadPoolExecutor(thread_name_prefix=prefix)
    loop.set_default_executor(threads)
    try:
        return loop.run_until_complete(work)
    finally:
        try:
            loop.run_until_complete(cancel(asyncio.all_tasks(loop)))
            loop.run_until_complete(asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=GRACE_S))
            threads.shutdown(wait=False, cancel_futures=True)
            _wait_for_threads(prefix)
        finally:
            loop.close()


def leave(status: int) -> int:
    """The status, for `sys.exit`. Where something was abandoned Python would wait for it: the process ends here."""
    if _left:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _wait_for_threads(prefix: str) -> None:
    deadline = time.monotonic() + GRACE_S
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _left.add(thread)
