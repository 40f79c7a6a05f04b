"""`whet service deployments`: the process that answers for deployments, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from whet.config import Option, StrictModel
from whet.errors import ConfigError
from whet.gateway.serve import answer, event_loop_factory
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, DTYPE_HELP, EngineDtype, check_device
from whet.service.serve import given_or_listen
from whet.system.files import expanded

if TYPE_CHECKING:
    from whet.hub.storage.database import Database
    from whet.inference.loading import Policy
    from whet.service.deployments.access import UsageMeter
    from whet.service.deployments.folder import DeploymentFolder
    from whet.service.deployments.reconciler import Deployments

ANY_ADDRESS = ("0.0.0.0", "::")
WRITE_S = 1.0
"""Seconds between two writes of what was used, and of the status."""
_log = logging.getLogger(__name__)


class DeploymentsConfig(StrictModel):
    """`whet service deployments`. Each description is the option's `--help`."""

    data: Annotated[Path, Option(metavar="DIR")] = Field(Path("service"), description="Folder of the service.")
    database: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="As for `whet service api`; if absent, hub.sqlite in DIR."
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; every request needs a token.")
    port: Annotated[int, Option("-p")] = Field(8092, ge=0, le=65535, description="Port; 0 takes a free one.")
    url: Annotated[str | None, Option(metavar="URL")] = Field(
        None, pattern=r"^https?://[^\s/]+[^\s]*$", description="Address that clients use, where a proxy is in front."
    )
    allow_host: Annotated[tuple[str, ...], Option(metavar="NAME")] = Field(
        (), description="A further host name that requests may be for, or pages may come from; '*' allows any."
    )
    idle: Annotated[float, Option(metavar="SECONDS")] = Field(
        900.0, gt=0, description="A model that was not used for so long is unloaded; the next request loads it again."
    )
    max_concurrent: Annotated[int, Option("-c")] = Field(
        64, ge=1, description="Answers in the making at once, of each model; more wait in line."
    )
    dtype: EngineDtype = Field("float32", description=DTYPE_HELP)
    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where models compute: {DEVICE_HELP}")
    threads: int | None = Field(None, ge=1, description="CPU threads; torch's own choice if absent.")


def serve(config: DeploymentsConfig, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` is called with the address once requests are answered.

    Raises `ConfigError` where the port is taken, where there is no service in the folder, or where another process
    serves its deployments.
    """
    from whet.inference.loading import import_parts
    from whet.records.lock import DirectoryLock
    from whet.service.storage.tables import joined_database

    check_device(config.device, "device")
    if config.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)  # before torch is imported: counts for all of its threads
    data = expanded(config.data).absolute()
    import_parts()
    with (
        joined_database(data, config.database) as database,
        given_or_listen(config.host, config.port) as listening,
        asyncio.Runner(loop_factory=event_loop_factory()) as runner,
    ):
        folder = data / "deployments"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(folder, "serving the deployments of")
        try:
            runner.run(_serve(config, data, database, listening, on_ready))
        finally:
            lock.release()


async def _serve(
    config: DeploymentsConfig, data: Path, database: Database, listening: socket.socket, on_ready: Callable[[str], None]
) -> None:
    from whet.gateway.app import Gateway
    from whet.gateway.connections import limited_connections
    from whet.gateway.guard import Hosts
    from whet.service.deployments.access import TokenAccess, UsageMeter
    from whet.service.deployments.models import ModelHost
    from whet.service.deployments.reconciler import Deployments

    host, port = listening.getsockname()[:2]
    shown = socket.gethostname() if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
    url = (config.url or f"http://{shown}:{port}").rstrip("/")
    name = urlsplit(url).hostname
    hosts = Hosts.of(config.host, (*config.allow_host, *([name] if config.url and name else [])))
    deployments = Deployments(database, data, ModelHost(_loader(config)), export_apart, idle_s=config.idle)
    meter = UsageMeter(database)
    gateway = Gateway(access=TokenAccess(database, deployments, meter), hosts=hosts)
    async with _written(data, url, deployments, meter):
        reconciling = asyncio.create_task(deployments.run())
        try:
            await answer(gateway.app, listening, limited_connections(), lambda: on_ready(url), 2)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
            await deployments.close()


def _loader(config: DeploymentsConfig) -> Callable[[Path], Policy]:
    from whet.inference.loading import load_policy

    def load(path: Path) -> Policy:
        rows = config.max_concurrent
        return load_policy(str(path), dtype=config.dtype, device=config.device, max_rows=rows, repeatable=False)

    return load


@contextlib.asynccontextmanager
async def _written(data: Path, url: str, deployments: Deployments, meter: UsageMeter) -> AsyncIterator[None]:
    """While the block lasts, what was used and the status are written every second, and once more after it."""
    from whet.service.domain.deployments import ServerStatus, status_file, write_status
    from whet.system.children import this_process

    process, started_at = this_process(), time.time()

    def write() -> None:
        health = {one.id: one.current_health() for one in deployments.known}
        status = ServerStatus(url=url, started_at=started_at, at=time.time(), deployments=health, **process)
        write_status(data, status)

    async def keep() -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            with _logged("the status"):
                write()
            with _logged("what was used"):
                await asyncio.to_thread(meter.write)

    write()
    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with _logged("what was used"):
            meter.write()
        status_file(data).unlink(missing_ok=True)


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """A failure is logged, and does not end the process."""
    try:
        yield
    except Exception as error:
        _log.warning("%s could not be written: %s", what, error)


async def export_apart(folder: DeploymentFolder) -> None:
    """`prepare` in a process of its own, which ends with this one. Raises `ConfigError` with its reason."""
    command = [sys.executable, "-m", "whet.service.deployments.prepare", str(folder.path)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = (await process.stdout.read()).decode("utf-8", "replace").strip()
        code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    finally:
        process.stdin.close()
    if code == -signal.SIGKILL:
        raise ConfigError("out of memory: the process that exported the weights was killed by the system")
    if code != 0:
        raise ConfigError(said.splitlines()[-1] if said else f"exporting the weights failed with exit code {code}")
