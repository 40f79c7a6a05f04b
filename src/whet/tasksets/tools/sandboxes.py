"""Sandboxes of toolsets and users: what a function that names `sandbox` is given.

    async def run(code: str, sandbox) -> str:
        result = await sandbox.execute(f"python3 -c {shlex.quote(code)}")

They are the sandboxes of `SandboxEnv`: made on first use, closed at the end of their scope, without network access
unless hosts are named.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from whet.envs.sandboxed.client import CommandResponse, ReadFileResponse, SandboxClient
from whet.envs.sandboxed.packages import Packages
from whet.envs.sandboxed.request import WITHOUT_IMAGES, CreateSandboxRequest, spec_of
from whet.errors import ConfigError, SandboxError
from whet.sandboxes.protocol import MIB, Sandbox, can_be_writable
from whet.sandboxes.registry import default_backend
from whet.tasksets.config import SandboxConfig

COMMAND_S = 30.0
logger = logging.getLogger(__name__)


class ToolSandbox:
    """One sandbox, as a tool sees it."""

    def __init__(self, client: SandboxClient, sandbox_id: str, config: SandboxConfig) -> None:
        self.id = sandbox_id
        self.scope = config.scope
        self._client = client
        self._workdir = config.workdir

    async def execute(
        self,
        command: str,
        timeout: float | None = None,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResponse:
        """Run a command in a shell: `stdout`, `stderr` and `exit_code`. `timeout` is in seconds.

        Raises `CommandTimeoutError` where it takes longer, and `SandboxError` where the host fails.
        """
        return await self._client.execute_command(self.id, command, working_dir or self._workdir, env, timeout)

    async def upload_bytes(self, path: str, content: bytes, filename: str | None = None) -> None:
        """Write a file; `filename` is accepted for 0.1."""
        await self._client.upload_bytes(self.id, path, content)

    async def read_file(self, path: str) -> ReadFileResponse:
        """A file as text: `content` and `size`."""
        return await self._client.read_file(self.id, path)

    async def itself(self) -> Sandbox:
        """The sandbox behind it, once it is ready."""
        return await self._client.sandbox(self.id)

    async def close(self) -> None:
        await self._client.delete(self.id)


class SandboxOwner:
    """Makes the sandboxes of one toolset, user or program, on first use."""

    def __init__(self, config: SandboxConfig, whose: str, name: str = "toolset") -> None:
        """Raises `ConfigError` for settings that no sandbox of whet supports."""
        if config.network_access and "network_access" in config.model_fields_set and not config.network:
            logger.warning(
                "%s: network_access = true opens no network; name the hosts to reach: network = ['pypi.org'].", whose
            )
        self.config = config
        self.scope = config.scope
        self._name = name
        self.objects = {"sandbox": self.make}
        self._packages = Packages(" ".join(config.packages))
        self._client: SandboxClient | None = None
        spec_of(self._request(), self._timeout, MIB)

    @property
    def _timeout(self) -> float:
        return float(self.config.command_timeout or COMMAND_S)

    @property
    def _backend(self) -> str:
        return default_backend() if self._client is None else self._client.backend

    @property
    def is_boundary(self) -> bool:
        """Whether these sandboxes isolate their programs from the host."""
        return self._backend != "subprocess"

    def _request(self) -> CreateSandboxRequest:
        config = self.config
        request = CreateSandboxRequest(
            name=self._name,
            docker_image=config.image if "image" in config.model_fields_set else None,
            **config.model_dump(include=set(CreateSandboxRequest.model_fields)),
        )
        shows_image = request.docker_image is not None and self._backend not in WITHOUT_IMAGES  # it may hold workdir
        if config.workdir is not None and self.is_boundary and not shows_image and can_be_writable(config.workdir):
            request.writable = list(dict.fromkeys((config.workdir, *config.writable)))
        return request

    @property
    def client(self) -> SandboxClient:
        if self._client is None:
            self._client = SandboxClient(timeout_s=self._timeout)
        return self._client

    async def make(self, origin: str | None = None, shown: Mapping[str, str] | None = None) -> ToolSandbox:
        """A new sandbox; `origin` is an address and port that it reaches besides the hosts of its config.

        Its connections may then be idle for the lifetime of the sandbox, since a model may take long to answer.
        `shown` has, by the path inside, what of the host it shows.
        """
        client, request = self.client, self._request()
        request.read_only = dict(shown or {})
        if origin is not None:
            request.origin = origin
            request.network_idle_s = request.timeout_minutes * 60
        await self._packages.add_to(request, client)
        made = ToolSandbox(client, (await client.create(request)).id, self.config)
        try:
            for command in self.config.setup_commands:
                result = await made.execute(command, timeout=self.config.setup_timeout)
                if result.exit_code:
                    raise SandboxError(f"setup command {command!r} failed: {(result.stderr or result.stdout)[-500:]}")
        except BaseException:
            await made.close()
            raise
        return made


def read_sandbox(value: Any, whose: str) -> SandboxOwner | None:
    """The sandboxes that a toolset or a user is configured with, if any."""
    if value is None or value is False:
        return None
    if isinstance(value, str):
        raise ConfigError(
            f"{whose}: sandbox should be a table (got {value!r}): sandbox = {{}} is one of its own, "
            "since a program shares its sandbox with no tools or users."
        )
    return SandboxOwner(SandboxConfig.from_config(value), whose)
