"""`whet service runner`: a runner on this machine, until a signal ends it; its runs live on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.request import getproxies

from pydantic import Field

from whet.config import Option, Paths, StrictModel
from whet.service.runner.isolation import Choice, choose
from whet.service.runner.machine import this_machine
from whet.system.children import undumpable
from whet.system.files import expanded

NETWORK_HELP = (
    "An address in a private network that runs may reach, such as 10.0.0.5:8000 or name=10.0.0.5:8000, besides all "
    "public ones; may be repeated. 'machine' gives them the machine's own network, with its loopback."
)


class RunnerConfig(StrictModel):
    """`whet service runner`. Each description is the option's `--help`."""

    data: Annotated[Path, Option(metavar="DIR")] = Field(
        Path("service"), description="The service's folder, which its API has made."
    )
    database: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="As for the API: postgresql://USER@HOST/NAME; if absent, hub.sqlite in DIR."
    )
    storage: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="As for the API: where packages are kept; if absent, files in DIR."
    )
    name: str | None = Field(
        None, min_length=1, max_length=80, description="Name of this machine among runners; if absent, its host name."
    )
    isolation: Choice = Field(
        "auto", description="How runs are kept apart: bubblewrap, which auto insists on, or none."
    )
    network: Annotated[tuple[str, ...], Option(metavar="HOST:PORT")] = Field((), description=NETWORK_HELP)
    readable: Annotated[Paths, Option(metavar="DIR")] = Field(
        (), description="Folder that every run may read, such as one with models."
    )
    cores: float | None = Field(None, gt=0, description="Cores that runs here may need together; if absent, all.")
    memory: float | None = Field(None, gt=0, description="GiB that runs here may need together; if absent, all.")
    upstream: Annotated[str | None, Option(metavar="URL")] = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="Index of packages that are not on the hub; if absent, the one that pip has here.",
    )
    core_hour_price: float = Field(0.0, ge=0, description="What an hour of a core costs, for caps and usage.")
    device_hour_price: float = Field(0.0, ge=0, description="What an hour of a device costs.")


def serve_runner(config: RunnerConfig, on_ready: Callable[[str], None]) -> None:
    """Start runs until SIGINT or SIGTERM. `on_ready` gets a line about this runner.

    Raises `ConfigError` where there is no service, and `SandboxUnavailableError` where runs cannot be isolated.
    """
    from whet.hub.domain.cipher import Cipher, read_keys
    from whet.hub.storage.store import FileStore
    from whet.service.runner.network import allowed
    from whet.service.runner.preparing import Workshop
    from whet.service.runner.runner import RunRunner
    from whet.service.storage.tables import joined_database

    undumpable()
    data = expanded(config.data).absolute()
    reachable = allowed(config.network)
    isolation = choose(config.isolation, own_network=reachable is not None)
    with joined_database(data, config.database) as database:
        file = database.url.database if database.url.get_backend_name() == "sqlite" else None
        workshop = Workshop(
            data=data,
            blobs=FileStore(str(data / "blobs")),
            packages=FileStore(config.storage or str(data / "files")),
            isolation=isolation,
            readable=[expanded(path).absolute() for path in config.readable],
            database=Path(file).absolute() if file else None,
            network=None if reachable is None else config.network,
            upstream=config.upstream,
        )
        prices = {"core_hour_price": config.core_hour_price, "device_hour_price": config.device_hour_price}
        cipher = Cipher(*read_keys(data / "secrets.key"))
        machine = this_machine(config.name)
        machine = replace(
            machine,
            cores=config.cores or machine.cores,
            memory=machine.memory if config.memory is None else int(config.memory * (1 << 30)),
        )
        runner = RunRunner(database, cipher, workshop, machine, prices)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        runner.begin()
        has = runner.machine
        devices = f", {len(has.devices)} devices" if has.devices else ""
        apart = "isolated by bubblewrap" if isolation.bubblewrap else "not isolated"
        cores = f"{has.cores:g} {'core' if has.cores == 1 else 'cores'}"
        on_ready(f"runner {runner.id} on {has.host}: {cores}, {has.memory / 2**30:.0f} GiB{devices}; {apart}")
        if isolation.bubblewrap and reachable is not None and set(getproxies()) - {"no"}:
            on_ready("runs do not use the HTTP proxy of this machine; where nothing else leads out: --network machine")
        try:
            runner.run(stop)
        finally:
            runner.leave()
