"""Makes what is in memory follow the rows: every second, and after each start from nothing.

    pending ──▶ exported, loaded ──▶ ready            a row says `ready` once its model has been loaded
       └──────────▶ failed (why) ──▶ tried again later, and at each start
    deleted ──▶ unloaded when its pending requests are answered; then its folder goes

A row is written only while it is not deleted, so whichever comes first, a deletion is what stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import select, update

from whet.clients.client import Client, OnDelta
from whet.errors import ConfigError, Error, OverlongPromptError, RequestRefusedError, WhetError
from whet.gateway.wire import RequestError
from whet.hub.errors import HubError
from whet.hub.storage.database import Database
from whet.service.answers import DeploymentHealth
from whet.service.deployments.folder import DeploymentFolder
from whet.service.deployments.models import ModelHost, OutOfMemory, Served
from whet.service.domain.deployments import model_id, model_of
from whet.service.storage.tables import DeploymentRow
from whet.types import Response

ORPHAN_S = 3600.0
"""Age at which a folder without a row is removed: its row is inserted a moment after the folder is made."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


def of_row(row: DeploymentRow) -> tuple[str, str]:
    return row.state, row.reason


class Deployments:
    """The deployments of one service in this process."""

    def __init__(
        self,
        database: Database,
        data: Path,
        host: ModelHost,
        export: Callable[[DeploymentFolder], Awaitable[None]],
        *,
        idle_s: float = 900.0,
    ) -> None:
        """`export` writes a deployment's weights from its checkpoint, and raises `WhetError` with the reason.

        A model that no request used for `idle_s` seconds is unloaded; the next request loads it again.
        """
        self._database, self._data, self._host, self._export, self._idle_s = database, data, host, export, idle_s
        self._known: dict[str, Deployed] = {}
        self._ending: list[Deployed] = []
        self._one_export = asyncio.Lock()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="whet-database")
        self._swept_at = float("-inf")

    @property
    def known(self) -> Collection[Deployed]:
        return self._known.values()

    def of_owners(self, owners: Collection[str]) -> list[Deployed]:
        return [one for one in self._known.values() if one.owner in owners]

    async def in_thread(self, work: Callable[[], T]) -> T:
        """For what waits for the database; loads of models, which take long, have other threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run(self, pause_s: float = 1.0) -> None:
        """Reconcile until cancelled. A database that cannot be reached now is tried again."""
        while True:
            try:
                await self.reconcile()
            except HubError as error:
                _log.warning("deployments could not be compared with the database: %s", error)
            except Exception:
                _log.exception("deployments could not be compared with the database")
            await asyncio.sleep(pause_s)

    async def reconcile(self) -> None:
        """One comparison; what takes long goes on after it."""
        rows = {row.id: row for row in await self.in_thread(self._read)}
        now = self._host.clock()
        for row in rows.values():
            if row.id not in self._known:
                self._known[row.id] = self._begun(row)
        for deployment in [one for one in self._known if one not in rows]:
            self._end(self._known.pop(deployment))
        for deployed in self._known.values():
            again = deployed.state == "failed" and deployed.retry_at <= now
            if deployed.work is None or (again and deployed.work.done()):
                deployed.state, deployed.reason = ("pending", "") if again else (deployed.state, deployed.reason)
                deployed.work = asyncio.create_task(self._bring_up(deployed))
            elif deployed.work.done() and (deployed.state, deployed.reason) != of_row(rows[deployed.id]):
                await self.in_thread(partial(self._write, deployed.id, deployed.state, deployed.reason))
        for deployed in [one for one in self._ending if not one.health.in_flight]:
            self._ending.remove(deployed)
            await self._remove(deployed)
        await self._host.unload_idle(self._idle_s)
        if now - self._swept_at >= ORPHAN_S:
            self._swept_at = now
            await self.in_thread(partial(self._sweep, set(rows) | {one.id for one in self._ending}))

    async def settled(self) -> None:
        """Once everything that is being brought up is ready or failed."""
        while works := [one.work for one in self._known.values() if one.work is not None and not one.work.done()]:
            await asyncio.wait(works)

    async def close(self) -> None:
        works = [one.work for one in (*self._known.values(), *self._ending) if one.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await self._host.close()
        self._threads.shutdown()

    def _read(self) -> Iterable[DeploymentRow]:
        with self._database.read() as session:
            query = select(DeploymentRow).where(DeploymentRow.deleted_at.is_(None))
            return session.scalars(query.order_by(DeploymentRow.created_at, DeploymentRow.id)).all()

    def _begun(self, row: DeploymentRow) -> Deployed:
        """As it is found. One that was ready before can be used at once: a request loads its model if need be."""
        deployed = Deployed(
            id=row.id,
            owner=row.owner,
            model=model_id(row),
            full_model=f"{model_of(row.base)}:{row.owner}/{row.name}",
            state="ready" if row.state == "ready" else "pending",
            host=self._host,
            data=str(self._data),
        )
        if row.state == "ready":
            with contextlib.suppress(
                WhetError, OSError, ValueError, KeyError
            ):  # found again, and reported, when it is brought up
                deployed.served = self._served(DeploymentFolder(self._data, row.id), search=False)
        return deployed

    async def _bring_up(self, deployed: Deployed) -> None:
        """Export and load. At its end the row is `ready` or `failed`, and a failed one will be tried again."""
        folder = DeploymentFolder(self._data, deployed.id)
        try:
            if not folder.weights.is_dir():
                async with self._one_export:
                    await self._export(folder)
            deployed.served = served = await asyncio.to_thread(self._served, folder)
            async with self._host.using(served):
                pass
        except (WhetError, OSError, ValueError, KeyError) as error:
            deployed.fail(str(error), self._host.clock())
        except Exception as error:
            _log.exception("deployment %s failed", deployed.id)
            deployed.fail(f"{type(error).__name__}: {error}", self._host.clock())
        else:
            deployed.state, deployed.reason, deployed.retry_s = "ready", "", RETRY_S
        if not deployed.ended:
            with contextlib.suppress(HubError):  # the next comparison finds it, and writes it
                await self.in_thread(partial(self._write, deployed.id, deployed.state, deployed.reason))

    def _write(self, deployment: str, state: str, reason: str) -> None:
        alive = DeploymentRow.id == deployment, DeploymentRow.deleted_at.is_(None)
        with self._database.read() as session:
            row = session.scalar(select(DeploymentRow).where(*alive))
            if row is None or of_row(row) == (state, reason):
                return
        with self._database.write() as session:
            session.execute(update(DeploymentRow).where(*alive).values(state=state, reason=reason))

    def _served(self, folder: DeploymentFolder, *, search: bool = True) -> Served:
        """What its weights are. Raises `WhetError` or `OSError` where they, or the base model, are missing."""
        base = folder.base_of_weights(search=search)
        if base is None:
            return Served(folder.path.name, folder.weights)
        return Served(folder.path.name, base, folder.weights)

    def _end(self, deployed: Deployed) -> None:
        """No request begins to use it from here on."""
        deployed.ended = True
        if deployed.work is not None:
            deployed.work.cancel()
        self._ending.append(deployed)

    async def _remove(self, deployed: Deployed) -> None:
        if deployed.work is not None:
            await asyncio.gather(deployed.work, return_exceptions=True)
        if deployed.served is not None:
            await self._host.forget(deployed.served)
        await asyncio.to_thread(DeploymentFolder(self._data, deployed.id).remove)

    def _sweep(self, known: set[str]) -> None:
        """Remove folders of deleted rows (a kill came between, or no process ran), and old ones without a row."""
        with self._database.read() as session:
            deleted = set(session.scalars(select(DeploymentRow.id).where(DeploymentRow.deleted_at.is_not(None))))
        folder = self._data / "deployments"
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                old = path.name in deleted or time.time() - path.stat().st_mtime > ORPHAN_S
                if path.is_dir() and path.name not in known and old:
                    shutil.rmtree(path)


# One deployment as the process that serves it knows it, and the client that answers for it.

NEWEST = 0.2
"""Weight of the newest request in the mean of seconds."""
RETRY_S, MOST_RETRY_S = 30.0, 3600.0
"""Pause before one that failed is tried again; it doubles up to the second number."""


@dataclass(eq=False)
class Deployed:
    """The row, how far it is loaded, and how it does."""

    id: str
    owner: str
    model: str  # base:name
    full_model: str  # base:owner/name
    state: str
    host: ModelHost
    data: str  # the folder of the service, which no reason names
    reason: str = ""
    served: Served | None = None  # once its weights are exported
    health: DeploymentHealth = field(default_factory=DeploymentHealth)
    ended: bool = False
    work: asyncio.Task[None] | None = None  # what brings it up
    retry_at: float = 0.0
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        self.client = DeploymentClient(self)

    def fail(self, reason: str, now: float) -> None:
        reason = reason.replace(self.data, "DATA").rstrip(".")
        self.state, self.reason, self.served, self.retry_at = "failed", reason, None, now + self.retry_s
        self.retry_s = min(2 * self.retry_s, MOST_RETRY_S)
        self.note_error(reason)

    def note_error(self, said: str) -> None:
        self.health.last_error, self.health.last_error_at = said[:500], time.time()

    def current_health(self) -> DeploymentHealth:
        """With whether it is in memory now."""
        loaded = self.served is not None and self.host.loaded(self.served)
        if loaded != self.health.loaded:
            self.health.loaded, self.health.loaded_at = loaded, time.time() if loaded else None
        return self.health


class DeploymentClient(Client[Any, Any, Any, Any]):
    """Answers for one deployment, whose model is loaded first where it is not in memory."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__(deployed)
        self._deployed = deployed

    async def get_response(self, *request: Any, on_delta: OnDelta | None = None, **unused: Any) -> Response:
        """As `Client.get_response`, of a prompt, a model, sampling arguments and tools."""
        deployed, model = self._deployed, request[1]
        if deployed.ended or deployed.served is None:
            raise RequestError(f"the deployment {model} was deleted", status=404, code="model_not_found")
        health, began = deployed.health, time.perf_counter()
        health.in_flight += 1
        try:
            async with AsyncExitStack() as stack:
                try:
                    client = await stack.enter_async_context(deployed.host.using(deployed.served))
                except WhetError as error:
                    self._not_loaded(error)
                    raise RequestError(f"{model} cannot be served now: {error}", status=503) from error
                listening: dict[str, Any] = {} if on_delta is None else {"on_delta": on_delta}
                response = await client.get_response(*request, **listening)
        except (RequestError, OverlongPromptError, ConfigError, RequestRefusedError):
            raise  # mistakes of the request
        except (Error, WhetError) as error:
            deployed.note_error(str(error))
            raise
        finally:
            health.in_flight -= 1
        seconds = time.perf_counter() - began
        health.seconds = seconds if health.seconds is None else (1 - NEWEST) * health.seconds + NEWEST * seconds
        return response

    def _not_loaded(self, error: WhetError) -> None:
        """What is wrong with its files is a failure of the deployment; what is short now, memory, is not."""
        if isinstance(error, OutOfMemory):
            self._deployed.note_error(str(error))
        else:
            self._deployed.fail(str(error), self._deployed.host.clock())
