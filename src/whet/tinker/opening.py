"""Open a server: the hub of its folder, the tables, the thread that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from whet.hub.opening import UPSTREAM, open_hub
from whet.hub.storage.database import migrate
from whet.tinker.server import Bank, ServedBase, TinkerLimits, TinkerServer
from whet.tinker.storage.tables import TINKER_SCHEMA
from whet.tinker.trainer import Trainer


@contextlib.contextmanager
def open_server(
    data: Path,
    base: ServedBase,
    bank: Bank,
    database: str | None = None,
    limits: TinkerLimits | None = None,
) -> Iterator[tuple[TinkerServer, str | None]]:
    """The server of a folder, which resumes what waits in its log; at the first start also the key of its
    administrator.

    Raises `ConfigError` where another server has the folder, or where it cannot be used.
    """
    from whet.tinker.api.call import KEY

    with open_hub(data, database, None, UPSTREAM) as (hub, token):
        migrate(hub.database, TINKER_SCHEMA)
        server = TinkerServer(hub, data, base, bank, limits or TinkerLimits())
        trainer = Trainer(server)
        trainer.start()
        try:
            yield server, KEY + token if token is not None else None
        finally:
            trainer.stop()
