"""Names of `prime_sandboxes`, the package of a hosted sandbox service, where that is not installed.

Clients are those of `whet.envs.sandboxed`, whose sandboxes run on this machine. Of the errors, whet's client raises
`CommandTimeoutError` alone, and `whet.SandboxError` for what its host fails at; the others are for code that catches
them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from whet.envs.sandboxed.client import SandboxClient, SandboxHandle
from whet.sandboxes.protocol import MIB


class AdvancedConfigs(BaseModel):
    """Settings of the hosted service. They are kept with a request, and have no effect on whet's sandboxes."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class HostedSandbox(SandboxHandle):
    """A sandbox that is there. `Sandbox` in the 0.1 contract."""

    status: str = "RUNNING"


Sandbox = HostedSandbox


class APIError(Exception):
    """The service failed."""


class _TransferTimeoutError(APIError):
    def __init__(self, sandbox_id: str, file_path: str, timeout: float) -> None:
        super().__init__(f"a transfer of {file_path} with sandbox {sandbox_id} timed out after {timeout:g}s")


class UploadTimeoutError(_TransferTimeoutError):
    """A file could not be uploaded in time."""


class DownloadTimeoutError(_TransferTimeoutError):
    """A file could not be downloaded in time."""


class SandboxNotRunningError(APIError):
    """A sandbox has ended."""

    def __init__(self, sandbox_id: str, *details: Any, **more: Any) -> None:
        super().__init__(f"sandbox {sandbox_id} is not running", *details, *more.values())


class SandboxImagePullError(SandboxNotRunningError):
    """The image of a sandbox could not be had."""


class SandboxOOMError(SandboxNotRunningError):
    """A sandbox ended because it had no memory left."""


class SandboxTimeoutError(SandboxNotRunningError):
    """A sandbox ended because its time was over."""


class SandboxFileNotFoundError(APIError):
    """There is no such file in the sandbox."""


class APIClient:
    """What clients of sandboxes are made with. Its settings have no effect; requests to the service are refused."""

    def __init__(self, api_key: str | None = None, **settings: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"APIClient.{name} is of the hosted service, and sandboxes are this machine's here; "
            "install prime-sandboxes, or leave that out."
        )


class AsyncSandboxClient(SandboxClient):
    """whet's sandboxes by the methods of the service's client; its settings for connections have no effect."""

    def __init__(self, api_key: str | None = None, output_bytes: int = MIB, **settings: Any) -> None:
        super().__init__(output_bytes=output_bytes)

    async def get(self, sandbox_id: str) -> HostedSandbox:
        """Wait until the sandbox is there. Raises `SandboxError` where it could not be made, or is gone."""
        await self.wait_for_creation(sandbox_id)
        return HostedSandbox(sandbox_id, sandbox_id)

    async def aclose(self) -> None:
        await self.close()


class ThreadedAsyncSandboxClient(AsyncSandboxClient):
    """The same; whet's client needs no threads."""

    def __init__(self, max_workers: int = 50, output_bytes: int = MIB, **settings: Any) -> None:
        super().__init__(output_bytes=output_bytes)

    def teardown(self, wait: bool = True) -> None:
        """Nothing to do: there are no threads. Sandboxes end with `close`, and with this process."""


class BlockingSandboxClient:
    """`SandboxClient` of the service: the methods of `AsyncSandboxClient`, each returning when it is done.

    They run in an event loop on a thread of its own, so the client may be used from any thread.
    """

    def __init__(self, api_client: APIClient | None = None, **settings: Any) -> None:
        self._client = AsyncSandboxClient()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="whet-sandboxes", daemon=True).start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if not inspect.iscoroutinefunction(method):
            raise AttributeError(f"SandboxClient has no '{name}' here")

        def call(*args: Any, **kwargs: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop).result()

        return call
