"""`SandboxMixin` of `verifiers.envs.experimental`: sandboxes for an environment or a rubric that makes them itself.

    class Solve(SandboxMixin, vf.SingleTurnEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.init_sandbox_client()

The sandboxes are whet's, on this machine (`whet.envs.sandboxed`). Settings of the hosted service (workers, connections,
creations per minute) are accepted and have no effect.
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import math
import shlex
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.calls import describe, resolve
from whet.compat.hosted_sandboxes import (
    APIError,
    DownloadTimeoutError,
    SandboxFileNotFoundError,
    SandboxOOMError,
    SandboxTimeoutError,
    ThreadedAsyncSandboxClient,
    UploadTimeoutError,
)
from whet.compat.results import write_temp_file
from whet.decorators import teardown
from whet.envs.sandbox_env import with_retry
from whet.envs.sandboxed.client import (
    CommandTimeoutError,
    SandboxCreationError,
    SandboxNotReadyError,
    SandboxSetupError,
)
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.errors import SandboxError, WhetError
from whet.rubrics.rubric import Rubric
from whet.sandboxes.protocol import MIB
from whet.types import State

_TRANSIENT = ("502", "503", "ConnectError", "Temporary failure in name resolution")


@dataclass(frozen=True)
class SandboxTimeouts:
    """Seconds for single operations. Only that for unpacking holds here; nothing else goes over a network."""

    read_file: int = 10
    extract: int = 60
    poll: int = 60
    mkdir: int = 10


class SandboxMonitorRubric(Rubric):
    """Records whether a rollout's sandbox ran out of memory or of time."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.sandbox_oom)
        self.add_metric(self.sandbox_timeout)

    def sandbox_oom(self, state: State) -> float:
        return float(bool(state.get("sandbox_oom")))

    def sandbox_timeout(self, state: State) -> float:
        return float(bool(state.get("sandbox_timeout")))


def is_retryable_sandbox_api_error(exception: BaseException) -> bool:
    """Whether an error of a sandbox service is likely to pass."""
    return isinstance(exception, APIError) and any(sign in str(exception) for sign in _TRANSIENT)


def is_retryable_sandbox_read_error(exception: BaseException) -> bool:
    """Whether reading from a sandbox failed for a reason that is likely to pass: a time-out, or the service itself."""
    timeouts = (CommandTimeoutError, UploadTimeoutError, DownloadTimeoutError)
    # The HTTP library's, by name: it is not installed with whet.
    return (
        isinstance(exception, timeouts)
        or any(cls.__name__ == "ReadTimeout" for cls in type(exception).__mro__)
        or is_retryable_sandbox_api_error(exception)
    )


class SandboxMixin:
    """Makes, fills and ends sandboxes. Call `init_sandbox_client` in the constructor."""

    SANDBOX_MAX_TIMEOUT_MINUTES = 24 * 60
    SANDBOX_SCORING_BUFFER_MINUTES = 60
    sandbox_timeout_minutes: int | None = None
    active_sandboxes: set[str]
    sandbox_client: ThreadedAsyncSandboxClient
    timeouts: SandboxTimeouts
    with_retry: Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]
    logger: logging.Logger

    def init_sandbox_client(
        self,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 1e-3,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 1000,
        sandbox_client_max_keepalive_connections: int = 200,
        sandbox_wait_for_creation_max_attempts: int = 120,
        sandbox_creations_per_minute: float | None = 128,
        timeouts: SandboxTimeouts = SandboxTimeouts(),
        output_bytes: int = MIB,
    ) -> None:
        """Make `self.sandbox_client`, and `self.with_retry`, which tries a call `max_retries` more times."""
        if not hasattr(self, "logger"):
            self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self.active_sandboxes = set()
        self.sandbox_wait_for_creation_max_attempts = sandbox_wait_for_creation_max_attempts
        self.timeouts = timeouts
        self.sandbox_client = ThreadedAsyncSandboxClient(output_bytes=output_bytes)
        self.with_retry = functools.partial(
            with_retry, max_retries + 1, base_delay, backoff_factor, max_backoff_seconds, jitter
        )

    def compute_sandbox_timeout_minutes(self) -> int:
        """`sandbox_timeout_minutes`, else what a rollout may take and an hour for its scoring; a day at most."""
        if self.sandbox_timeout_minutes is not None:
            return self.sandbox_timeout_minutes
        seconds: float | None = getattr(self, "timeout_seconds", None)
        if seconds is None:
            return self.SANDBOX_MAX_TIMEOUT_MINUTES
        return min(math.ceil(seconds / 60) + self.SANDBOX_SCORING_BUFFER_MINUTES, self.SANDBOX_MAX_TIMEOUT_MINUTES)

    def register_sandbox(self, sandbox_id: str) -> None:
        self.active_sandboxes.add(sandbox_id)

    def deregister_sandbox(self, sandbox_id: str) -> None:
        self.active_sandboxes.discard(sandbox_id)

    async def create_sandbox(self, state: Any, request: CreateSandboxRequest) -> str:
        """Make a sandbox, wait for it and call `post_sandbox_setup`; its id, which is in `state["sandbox_id"]` too.

        Raises `SandboxCreationError`, `SandboxNotReadyError` or `SandboxSetupError`.
        """
        try:
            sandbox = await self.with_retry(self.sandbox_client.create)(request)
        except WhetError:
            raise
        except Exception as error:
            raise SandboxCreationError(f"a sandbox could not be made: {describe(error)}") from error
        sandbox_id: str = sandbox.id
        self.register_sandbox(sandbox_id)
        state["sandbox_id"] = sandbox_id
        try:
            await self.sandbox_client.wait_for_creation(
                sandbox_id, max_attempts=self.sandbox_wait_for_creation_max_attempts
            )
        except WhetError:
            raise
        except Exception as error:
            raise SandboxNotReadyError(f"sandbox {sandbox_id} did not become ready: {describe(error)}") from error
        try:
            await self.post_sandbox_setup(state)
        except (SandboxError, WhetError):
            raise
        except Exception as error:
            raise SandboxSetupError(f"setting up sandbox {sandbox_id} raised {describe(error)}") from error
        return sandbox_id

    async def post_sandbox_setup(self, state: Any) -> None:
        """Override to prepare a fresh sandbox."""

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """End a sandbox; a failure is a warning."""
        try:
            await self.with_retry(self.sandbox_client.delete)(sandbox_id)
        except Exception as error:
            self.logger.warning("sandbox %s could not be ended: %s", sandbox_id, error)
        else:
            self.deregister_sandbox(sandbox_id)

    async def bulk_delete_sandboxes(self, sandbox_ids: Sequence[str]) -> None:
        """End several sandboxes; a failure is logged, and all of them count as active still."""
        try:
            await self.with_retry(self.sandbox_client.bulk_delete)(sandbox_ids)
        except Exception as error:
            self.logger.error("sandboxes %s could not be ended: %s", list(sandbox_ids), error)
        else:
            self.active_sandboxes.difference_update(sandbox_ids)

    async def run_background_job(
        self, state: Any, command: str, timeout: int, working_dir: str | None = None, poll_interval: int = 3
    ) -> Any:
        """A long command in the rollout's sandbox, to its end. Raises `CommandTimeoutError`."""
        try:
            return await self.sandbox_client.run_background_job(
                sandbox_id=state["sandbox_id"],
                command=command,
                timeout=timeout,
                working_dir=working_dir,
                poll_interval=poll_interval,
            )
        except (SandboxOOMError, SandboxTimeoutError) as error:
            state["sandbox_oom" if isinstance(error, SandboxOOMError) else "sandbox_timeout"] = True
            raise SandboxError(str(error)) from error

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
        """Copy a file of the host into the sandbox. Raises `SandboxError`."""
        try:
            await self.sandbox_client.upload_file(sandbox_id, remote_path, local_path)
        except APIError as error:
            raise SandboxError(f"uploading {remote_path} to sandbox {sandbox_id} failed: {error}") from error

    async def upload_content(self, sandbox_id: str, content: str, remote_path: str) -> None:
        """Write a file in the sandbox."""
        await self._upload(sandbox_id, remote_path, functools.partial(write_temp_file, content))

    async def read_file(self, sandbox_id: str, remote_path: str, timeout: int | None = None) -> str | None:
        """A file of the sandbox; None where there is none, or with a warning where it cannot be read."""
        seconds = self.timeouts.read_file if timeout is None else timeout
        try:
            response = await self.sandbox_client.read_file(sandbox_id, remote_path, timeout=seconds)
        except SandboxFileNotFoundError:
            return None
        except Exception as error:
            self.logger.warning("%s of sandbox %s cannot be read: %s", remote_path, sandbox_id, describe(error))
            return None
        return response.content

    async def upload_bundle(self, sandbox_id: str, file_map: dict[str, str], dest_dir: str) -> None:
        """Write several files (relative path: text) below a directory of the sandbox, in one transfer."""
        archive = f"{dest_dir}/_bundle.tar.gz"
        await self._upload(sandbox_id, archive, functools.partial(_packed, file_map))
        target, packed = shlex.quote(dest_dir), shlex.quote(archive)
        command = f"mkdir -p {target} && tar -xzf {packed} -C {target} && rm -f {packed}"
        response = await self.sandbox_client.execute_command(sandbox_id, command, timeout=self.timeouts.extract)
        if response.exit_code != 0:
            raise SandboxError(f"unpacking files in sandbox {sandbox_id} failed: {(response.stderr or '')[:200]}")

    def teardown_sandboxes(self) -> Any:
        """End all sandboxes that are left. Returns an awaitable where there are any."""
        return self.bulk_delete_sandboxes(list(self.active_sandboxes)) if self.active_sandboxes else None

    def teardown_sandbox_client(self) -> None:
        self.sandbox_client.teardown()

    @teardown(priority=-10)
    async def teardown_mixin_sandboxes(self) -> None:
        await resolve(self.teardown_sandboxes())

    @teardown(priority=-20)
    async def teardown_mixin_sandbox_client(self) -> None:
        self.teardown_sandbox_client()

    async def _upload(self, sandbox_id: str, remote_path: str, write: Callable[[], str]) -> None:
        local = await asyncio.to_thread(write)
        try:
            await self.upload_file(sandbox_id, remote_path, local)
        finally:
            with suppress(OSError):
                await asyncio.to_thread(Path(local).unlink)


def _packed(file_map: dict[str, str]) -> str:
    """The path of a new archive with these files."""
    with (
        tempfile.NamedTemporaryFile(suffix=".tar.gz", delete=False) as file,
        tarfile.open(fileobj=file, mode="w:gz") as tar,
    ):
        for name, text in file_map.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.name
