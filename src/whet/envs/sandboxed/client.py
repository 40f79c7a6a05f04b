"""Sandboxes by id, with the method names that environments written for 0.1 call on `self.sandbox_client`.

Creating one returns at once and goes on in the background, so that it overlaps with the model's first turn; whatever
uses the sandbox waits for it. The sandboxes are those of `whet.sandboxes`, from the pool that all environments of the
process share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whet.calls import describe
from whet.envs.sandboxed.request import CreateSandboxRequest, as_request, background_command, spec_of, without_meaning
from whet.errors import ConfigError, InfraError, SandboxError, SandboxFileError, WhetError
from whet.rollouts.limits import to_the_end
from whet.sandboxes.permits import Permit, Permits
from whet.sandboxes.pool import shared_pool
from whet.sandboxes.protocol import MIB, CommandJob, ExecResult, Sandbox
from whet.sandboxes.registry import default_backend, get_backend

_log = logging.getLogger(__name__)
_SHELL = 'if command -v bash >/dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi'
# Sandboxes whose set-up is running in this task or in one that it started: it must not wait for itself.
_in_setup: ContextVar[frozenset[str]] = ContextVar("whet_sandboxes_in_setup", default=frozenset())


class SandboxNotReadyError(SandboxError):
    """A sandbox cannot be used: it could not be made, or not be prepared."""


class SandboxCreationError(SandboxNotReadyError):
    """The host could not make a sandbox."""


class SandboxSetupError(SandboxNotReadyError):
    """What an environment does with a fresh sandbox, before the first command, failed."""


class CommandTimeoutError(RuntimeError):
    """A command was ended because its time was over; `result` has what it wrote until then."""

    def __init__(self, sandbox_id: str, command: str, timeout: float, result: ExecResult | None = None) -> None:
        super().__init__(f"a command in sandbox {sandbox_id} timed out after {timeout:g}s: {command[:200]}")
        self.result = result


@dataclass(frozen=True, slots=True)
class SandboxHandle:
    """A sandbox that is there or on its way."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CommandResponse:
    """How a command ended, with text for bytes; `result` says which limit it ran into, if any."""

    stdout: str
    stderr: str
    exit_code: int  # 128 plus the signal's number for a command that was killed
    result: ExecResult


@dataclass(frozen=True, slots=True)
class ReadFileResponse:
    content: str
    size: int


@dataclass(frozen=True, slots=True)
class FileUploadResponse:
    """A file that is in a sandbox now."""

    path: str
    size: int  # bytes
    success: bool = True
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    job_id: str
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class BackgroundJobStatus:
    job_id: str
    completed: bool
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class _Entry:
    """A sandbox from the request for it to its end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.created: asyncio.Future[Sandbox] = self.loop.create_future()
        self.ready: asyncio.Future[None] | None = None
        self.permit: Permit | None = None
        self.jobs: dict[str, CommandJob] = {}
        self.watch: asyncio.Future[None] | None = None


class SandboxClient:
    """The sandboxes of one environment. The `timeout` of a file's transfer is accepted for 0.1; the sandbox's holds."""

    def __init__(
        self,
        backend: str | None = None,
        max_sandboxes: int | None = None,
        timeout_s: float = 30.0,
        output_bytes: int = MIB,
        attempts: int = 3,
        delay_s: float = 0.5,
    ) -> None:
        """
        Args:
            backend: a name that `whet.sandboxes.registry.get_backend` takes; None = bubblewrap on Linux, else docker.
            max_sandboxes: how many of this environment there may be at once; None = only the process's own cap holds.
            timeout_s: seconds for one command whose call names no time-out.
            output_bytes: kept of a command's output; one that writes more is ended.
            attempts: how often a sandbox's creation is tried.
            delay_s: seconds before the second attempt; doubles with each further one.
        """
        self.backend = backend or default_backend()
        get_backend(self.backend)  # an unknown name is an error now rather than in the first rollout
        if max_sandboxes is not None and max_sandboxes < 1:
            raise ConfigError(f"max_sandboxes={max_sandboxes} should be at least 1.")
        self._own_permits = None if max_sandboxes is None else Permits(max_sandboxes)
        self._timeout_s = timeout_s
        self._output_bytes = output_bytes
        self._attempts = attempts
        self._delay_s = delay_s
        self._entries: dict[str, _Entry] = {}
        self._checked = False
        self._said: set[str] = set()

    def say_what_is_ignored(self, request: CreateSandboxRequest) -> None:
        """Warn, once for each thing, of what this kind of sandbox cannot heed."""
        new = [text for text in without_meaning(request, self.backend) if text not in self._said]
        self._said.update(new)
        if new:
            _log.warning("sandbox '%s': ignored: %s", request.name, "; ".join(new))

    async def check(self) -> None:
        """Raise SandboxUnavailableError, with what to do, where this kind of sandbox cannot run on this machine."""
        if not self._checked:
            await shared_pool(self.backend).backend.check()
            self._checked = True

    async def create(self, request: CreateSandboxRequest) -> SandboxHandle:
        """Begin to make a sandbox. Raises SandboxUnavailableError where this kind cannot run on this machine."""
        request = as_request(request)
        spec_of(request, self._timeout_s, self._output_bytes)
        self.say_what_is_ignored(request)
        await self.check()
        sandbox_id = f"sandbox-{uuid.uuid4().hex[:16]}"
        entry = self._entries[sandbox_id] = _Entry()
        entry.created = asyncio.ensure_future(self._make(request, entry))
        entry.created.add_done_callback(_retrieved)
        return SandboxHandle(sandbox_id, request.name)

    def set_up(self, sandbox_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Have `work` done once the sandbox is there; every other use of it waits for that as well."""
        entry = self._entry(sandbox_id)

        async def ready() -> None:
            await asyncio.shield(entry.created)
            _in_setup.set(_in_setup.get() | {sandbox_id})
            try:
                await work()
            except SandboxFileError as error:  # no code has run that could be at fault
                raise SandboxSetupError(str(error)) from error
            except (InfraError, WhetError):
                raise
            except Exception as error:
                raise SandboxSetupError(f"setting up a sandbox raised {describe(error)}") from error

        entry.ready = asyncio.ensure_future(ready())
        entry.ready.add_done_callback(_retrieved)

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """The sandbox itself (`whet.sandboxes.protocol.Sandbox`), once it is ready.

        Raises SandboxError when it could not be made or set up, or has been deleted.
        """
        entry = self._entry(sandbox_id)
        try:
            if entry.ready is not None and sandbox_id not in _in_setup.get():
                await asyncio.shield(entry.ready)
            return await asyncio.shield(entry.created)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise SandboxError(f"sandbox {sandbox_id} was deleted while it was being made") from None

    async def wait_for_creation(self, sandbox_id: str, max_attempts: int | None = None) -> None:
        """Return once the sandbox is ready; `max_attempts` is accepted for 0.1, nothing here is polled."""
        await self.sandbox(sandbox_id)

    async def execute_command(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResponse:
        """Run a command in a shell: bash where the sandbox has one. Raises CommandTimeoutError."""
        sandbox = await self.sandbox(sandbox_id)
        result = await sandbox.exec(_in_shell(command), cwd=working_dir, env=_clean(env), timeout_s=timeout)
        if result.limit == "time":
            raise CommandTimeoutError(sandbox_id, command, timeout or self._timeout_s, result)
        return _response(result)

    async def start_background_job(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> BackgroundJob:
        """Start a command and let it run for as long as the sandbox is there."""
        sandbox = await self.sandbox(sandbox_id)
        job_id = uuid.uuid4().hex[:16]
        job = sandbox.background(_in_shell(command), cwd=working_dir, env=_clean(env))
        self._entry(sandbox_id).jobs[job_id] = job
        return BackgroundJob(job_id, sandbox_id)

    async def get_background_job(self, sandbox_id: str, job: BackgroundJob, timeout: Any = None) -> BackgroundJobStatus:
        """Whether a job has ended, and how; `timeout` is accepted for 0.1."""
        running = self._job(job)
        return _status(job, await running.wait()) if running.done else BackgroundJobStatus(job.job_id, False)

    async def wait_background_job(self, job: BackgroundJob) -> BackgroundJobStatus:
        """How a job has ended, once it has."""
        return _status(job, await self._job(job).wait())

    async def run_background_job(
        self,
        sandbox_id: str,
        command: str,
        timeout: float = 900,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        poll_interval: float = 3,
    ) -> BackgroundJobStatus:
        """A long command, to its end. `poll_interval` is accepted for 0.1. Raises CommandTimeoutError."""
        response = await self.execute_command(sandbox_id, command, working_dir, env, timeout)
        return BackgroundJobStatus(uuid.uuid4().hex[:16], True, response.exit_code, response.stdout, response.stderr)

    async def upload_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, timeout: float | None = None
    ) -> FileUploadResponse:
        """Copy a file of the host to `file_path` inside: below home or /tmp, which is what can be written to."""
        await (await self.sandbox(sandbox_id)).upload(local_file_path, file_path)
        return FileUploadResponse(file_path, Path(local_file_path).stat().st_size)

    async def upload_bytes(
        self, sandbox_id: str, file_path: str, file_bytes: bytes, filename: str | None = None, timeout: Any = None
    ) -> FileUploadResponse:
        await (await self.sandbox(sandbox_id)).write(file_path, file_bytes)
        return FileUploadResponse(file_path, len(file_bytes))

    async def download_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, timeout: float | None = None
    ) -> None:
        await (await self.sandbox(sandbox_id)).download(file_path, local_file_path)

    async def read_file(self, sandbox_id: str, file_path: str, timeout: float | None = None) -> ReadFileResponse:
        data = await (await self.sandbox(sandbox_id)).read(file_path)
        return ReadFileResponse(data.decode(errors="replace"), len(data))

    async def delete(self, sandbox_id: str) -> None:
        """End a sandbox, also one that is still being made. One that is gone already is no error."""
        entry = self._entries.pop(sandbox_id, None)
        if entry is None or entry.loop is not asyncio.get_running_loop():
            return  # what a loop that has ended left behind, the pool takes back
        await to_the_end(self._end(entry))

    async def bulk_delete(self, sandbox_ids: Sequence[str]) -> None:
        ends = await asyncio.gather(*map(self.delete, list(sandbox_ids)), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def close(self) -> None:
        """End all sandboxes of this client."""
        await self.bulk_delete(list(self._entries))

    def creation_error(self, sandbox_id: str) -> BaseException | None:
        """Why a sandbox that no call waited for could not be made or set up; None where it could."""
        entry = self._entries.get(sandbox_id)
        for stage in (entry.created, entry.ready) if entry is not None else ():
            if stage is not None and stage.done() and not stage.cancelled() and stage.exception() is not None:
                return stage.exception()
        return None

    async def _make(self, request: CreateSandboxRequest, entry: _Entry) -> Sandbox:
        if self._own_permits is not None:
            entry.permit = await self._own_permits.take()
        pool = shared_pool(self.backend)
        spec = spec_of(request, self._timeout_s, self._output_bytes)
        try:
            sandbox = await pool.acquire(spec, owner=self, attempts=self._attempts, delay_s=self._delay_s)
        except SandboxError as error:
            raise SandboxCreationError(str(error)) from error
        command = background_command(request)
        if command is not None:
            job = entry.jobs["start_command"] = sandbox.background(_in_shell(command))
            entry.watch = asyncio.ensure_future(_say_if_it_fails(job, request.name))
        return sandbox

    async def _end(self, entry: _Entry) -> None:
        try:
            if entry.ready is not None:
                await _cancelled(entry.ready)
            await _cancelled(entry.created)
            if entry.created.cancelled() or entry.created.exception() is not None:
                return
            if entry.watch is not None:
                await _cancelled(entry.watch)
            for job in entry.jobs.values():
                if not job.done:
                    await job.kill()
            await shared_pool(self.backend).release(entry.created.result())
        finally:
            if entry.permit is not None and self._own_permits is not None:
                self._own_permits.give_back(entry.permit)

    def _entry(self, sandbox_id: str) -> _Entry:
        entry = self._entries.get(sandbox_id)
        if entry is None:
            raise SandboxError(f"there is no sandbox {sandbox_id}; it was never made, or has been deleted")
        return entry

    def _job(self, job: BackgroundJob) -> CommandJob:
        running = self._entry(job.sandbox_id).jobs.get(job.job_id)
        if running is None:
            raise SandboxError(f"sandbox {job.sandbox_id} has no background job {job.job_id}")
        return running


def encodable(text: str) -> str:
    """Half of a surrogate pair, which a model may write in JSON, is no character of a command or a message."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _in_shell(command: str) -> list[str]:
    return ["sh", "-c", _SHELL, "sh", encodable(command)]


def _clean(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else {encodable(name): encodable(value) for name, value in env.items()}


def _response(result: ExecResult) -> CommandResponse:
    code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
    return CommandResponse(result.stdout, result.stderr, code, result)


def _status(job: BackgroundJob, result: ExecResult) -> BackgroundJobStatus:
    response = _response(result)
    return BackgroundJobStatus(job.job_id, True, response.exit_code, response.stdout, response.stderr)


async def _say_if_it_fails(job: CommandJob, name: str) -> None:
    result = await job.wait()
    if not result.ok:
        _log.warning("sandbox '%s': start_command ended: %s: %s", name, result.describe(), result.stderr[-500:].strip())


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: callers that wait for the sandbox get it, and there may be none."""
    if not task.cancelled():
        task.exception()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel it and wait for its end; what it made of that is its own."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
