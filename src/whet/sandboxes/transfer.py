"""Folders between host and sandbox: `tar` inside, `folders` on the host, a stream between them.

Packing and unpacking run on a thread; memory holds a chunk, never a folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from whet.errors import ConfigError, SandboxError, SandboxFileError
from whet.sandboxes import folders
from whet.sandboxes.protocol import Process, Sandbox

STDERR_BYTES = 4096
T = TypeVar("T")
Failed = Callable[[str], SandboxError]  # the error for a reason


async def upload_folder(sandbox: Sandbox, local: Path, path: str, failed: Failed) -> None:
    """The contents of a folder of the host into a folder inside, which is made where it is not there.

    Raises what `failed` makes of the reason.
    """
    script = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'
    process = await sandbox.start(["sh", "-c", script, "sh", path])
    stdout = asyncio.ensure_future(process.stdout.read())

    def work() -> None:
        folders.pack(local, lambda data: _in_loop(loop, _send(process, data, wait_s)))
        _in_loop(loop, _finish(process))

    loop, wait_s = asyncio.get_running_loop(), sandbox.spec.timeout_s
    try:
        await _while_running(sandbox, process, work, failed)
    finally:
        stdout.cancel()
        await asyncio.gather(stdout, return_exceptions=True)


async def download_folder(sandbox: Sandbox, path: str, local: Path, max_bytes: int, max_files: int) -> tuple[str, ...]:
    """A folder inside as a new folder of the host, whole or not at all. Returns the names that were left out."""
    if local.is_symlink() or (local.exists() and (not local.is_dir() or any(local.iterdir()))):
        raise ConfigError(f"cannot download to {local}: it is there already. Name a folder that is new or empty.")
    if not local.parent.is_dir():
        raise ConfigError(f"cannot download to {local}: the folder {local.parent} is not there.")
    partial = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f".{local.name}-", dir=local.parent))

    def failed(why: str) -> SandboxError:
        return SandboxFileError(f"sandbox {sandbox.id}: cannot download {path}: {why}")

    try:
        process = await sandbox.start(["sh", "-c", 'cd -- "$1" && exec tar -cf - .', "sh", path])
        loop, wait_s = asyncio.get_running_loop(), sandbox.spec.timeout_s

        def work() -> tuple[str, ...]:
            left_out = folders.unpack(
                lambda count: _in_loop(loop, _receive(process, count, wait_s)), partial, max_bytes, max_files
            )
            while _in_loop(loop, _receive(process, folders.CHUNK, wait_s)):  # what tar writes behind the end
                continue
            return left_out

        left_out = await _while_running(sandbox, process, work, failed)
        os.chmod(partial, 0o755)
        os.rename(partial, local)
        return left_out
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


async def _while_running(sandbox: Sandbox, process: Process, work: Callable[[], T], failed: Failed) -> T:
    """Run `work` on a thread, concurrently with a process inside; what fails first is passed to `failed`."""
    said = asyncio.ensure_future(_complaint(process))
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        try:
            value = await asyncio.shield(working)
            async with asyncio.timeout(sandbox.spec.timeout_s):
                status = await process.wait()
        except (OSError, folders.FolderError) as error:
            process.kill()
            await process.wait()
            reason = await said or str(error) or f"no bytes for {sandbox.spec.timeout_s:g} s"
            ours = isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
            raise (SandboxError(f"sandbox {sandbox.id}: {reason}") if ours else failed(reason)) from error
        if status != 0:
            raise failed(await said or f"tar ended with {status}")
        return value
    finally:
        process.kill()
        process.close()
        said.cancel()
        await asyncio.gather(said, working, return_exceptions=True)  # the thread ends with the streams


async def _complaint(process: Process) -> str:
    """The beginning of what it writes to stderr, read to the end so that it never waits for us."""
    kept = b""
    while data := await process.stderr.read(STDERR_BYTES):
        kept = (kept + data)[:STDERR_BYTES]
    return "; ".join(kept.decode(errors="replace").split("\n")).strip("; ")


async def _send(process: Process, data: bytes, wait_s: float) -> None:
    process.stdin.write(data)
    async with asyncio.timeout(wait_s):
        await process.stdin.drain()


async def _finish(process: Process) -> None:
    process.stdin.close()


async def _receive(process: Process, count: int, wait_s: float) -> bytes:
    async with asyncio.timeout(wait_s):
        return await process.stdout.read(count)


def _in_loop(loop: asyncio.AbstractEventLoop, step: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(step, loop).result()
