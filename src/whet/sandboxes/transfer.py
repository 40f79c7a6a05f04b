"""Folders between host and sandbox: `tar` inside, `tarfile` on the host, a stream between them.

Packing and unpacking run on a thread; memory holds a chunk, never a folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from whet.errors import ConfigError, SandboxError, SandboxFileError
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
        pack(local, lambda data: _in_loop(loop, _send(process, data, wait_s)))
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
            left_out = unpack(
                lambda count: _in_loop(loop, _receive(process, count, wait_s)), partial, max_bytes, max_files
            )
            while _in_loop(loop, _receive(process, CHUNK, wait_s)):  # what tar writes behind the end
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
        except (OSError, FolderError) as error:
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


# Folders as a stream of bytes (tar), packed on the host and unpacked on the host. No sandbox here: see `transfer`.
#
# What is unpacked was written by hostile code. Only folders and regular files are made, new ones, in a folder that was
# empty: where no link is ever made, a path without `..` cannot lead outside. (tarfile's `data` filter does make links,
# has had security fixes for them, and is not there in Python 3.11.0 to 3.11.3.) Bytes, entries and headers have caps.

CHUNK = 64 * 1024
HEADER_BYTES = 1 << 20  # of one entry: long names and attributes are read into memory


class FolderError(Exception):
    """A folder cannot be packed, or the bytes are no folder that may be unpacked."""


def pack(folder: Path, write: Callable[[bytes], object]) -> None:
    """Everything below a folder, without owners; links stay links. Raises FolderError for what no file system keeps."""
    with tarfile.open(fileobj=_Writer(write), mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for parent, names, files in os.walk(folder, onerror=_raise):
            for name in sorted([*names, *files]):
                _pack_one(tar, Path(parent, name), folder)


def unpack(read: Callable[[int], bytes], folder: Path, max_bytes: int, max_files: int) -> tuple[str, ...]:
    """Write what is read into an empty folder. Returns the names of symbolic links and special files, left out.

    Raises FolderError for whatever is not a plain folder of at most so many bytes and entries.
    """
    try:
        return _unpack(_Meter(read), folder, max_bytes, max_files)
    except FolderError:
        raise
    except Exception as error:  # a parser of hostile bytes: whatever it stumbles over is their fault
        raise FolderError(f"its bytes are no folder: {error!r}") from error


def _pack_one(tar: tarfile.TarFile, path: Path, folder: Path) -> None:
    member = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))  # None for a socket
    if member is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise FolderError(f"{path} is neither a file, a folder nor a link")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.isreg():
        with open(path, "rb") as file:
            tar.addfile(member, file)
    else:
        tar.addfile(member)


def _raise(error: OSError) -> None:
    raise error


def _unpack(meter: _Meter, folder: Path, max_bytes: int, max_files: int) -> tuple[str, ...]:
    left_out: list[str] = []
    size = count = unread = 0
    with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
        while True:
            meter.left = HEADER_BYTES + unread
            member = tar.next()
            if member is None:
                return tuple(left_out)
            tar.members = []  # or it keeps them all
            count, size = count + 1, size + max(0, member.size)
            if count > max_files:
                raise FolderError(f"it has more than {max_files} entries")
            if size > max_bytes:
                raise FolderError(f"it has more than {max_bytes} bytes")
            unread = 0 if member.isreg() else max(0, member.size)
            if not (member.isreg() or member.isdir() or member.islnk()):
                left_out.append(member.name.removeprefix("./"))
                continue
            path = folder / _relative(member.name)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isreg():
                meter.left = member.size + HEADER_BYTES
                content = tar.extractfile(member)
                assert content is not None
                _write_new(path, content.read, member.mode)
                continue
            twin = folder / _relative(member.linkname)  # a second name of a file that came before: copied
            size += twin.stat().st_size
            if size > max_bytes:
                raise FolderError(f"it has more than {max_bytes} bytes")
            with open(twin, "rb") as file:
                _write_new(path, file.read, twin.stat().st_mode)


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FolderError(f"it has an entry that leads outside: {name!r}")
    return path


def _write_new(path: Path, read: Callable[[int], bytes], mode: int) -> None:
    """A file that was not there before; of its mode only whether its owner may run it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o755 if mode & 0o100 else 0o644), "wb") as file:
        while data := read(CHUNK):
            file.write(data)


class _Writer:
    """As much of a file as tarfile needs to write a stream."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)


class _Meter:
    """As much of a file as tarfile needs to read a stream, and no more bytes than the next step may take."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.left = HEADER_BYTES

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0 and (data := self._read(min(count, CHUNK))):
            parts.append(data)
            count -= len(data)
            self.left -= len(data)
            if self.left < 0:
                raise FolderError(f"it has an entry whose header is longer than {HEADER_BYTES} bytes")
        return b"".join(parts)
