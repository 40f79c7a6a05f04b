"""Models in memory: loaded when they are needed, shared by their adapters, unloaded when no request uses them."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.client import AnyClient
from whet.errors import ModelLoadError, WhetError
from whet.gateway.adapters import load_adapter

if TYPE_CHECKING:
    from whet.inference.loading import Policy

_log = logging.getLogger(__name__)
_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Served:
    """What answers for one deployment: a model's directory, and the adapter on it where there is one."""

    id: str
    model: Path
    adapter: Path | None = None


@dataclass(slots=True, eq=False)
class LoadedModel:
    policy: Policy
    used_at: float
    adapters: dict[str, AnyClient] = field(default_factory=dict)  # by the id of the deployment
    users: int = 0  # requests, and loads of adapters


@dataclass(slots=True)
class ModelHost:
    """The models of this process, loaded one at a time."""

    load: Callable[[Path], Policy]
    needed: Callable[[Path], int] = lambda model: 2 * sum(file.stat().st_size for file in model.glob("*.safetensors"))
    """Bytes that loading takes: the files, and what they are turned into."""
    available: Callable[[], int | None] = lambda: available_memory()
    clock: Callable[[], float] = time.monotonic
    _models: dict[Path, LoadedModel] = field(default_factory=dict)
    _one_load: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loads: dict[Path, asyncio.Task[None]] = field(default_factory=dict)
    _adapter_locks: defaultdict[Path, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    @asynccontextmanager
    async def using(self, served: Served) -> AsyncIterator[AnyClient]:
        """The client that answers for `served`, loaded first if need be; it stays as long as the block lasts.

        Raises `WhetError` with the reason where it cannot be loaded.
        """
        model = await self._model(served.model)
        try:
            if served.adapter is None:
                yield model.policy.client
                return
            async with self._adapter_locks[served.adapter]:
                if served.id not in model.adapters:
                    await self._make_room(served.adapter)
                    model.adapters[served.id] = await _loading(load_adapter(model.policy, served.id, served.adapter))
            yield model.adapters[served.id]
        finally:
            model.users -= 1
            model.used_at = self.clock()

    def loaded(self, served: Served) -> bool:
        model = self._models.get(served.model)
        return model is not None and (served.adapter is None or served.id in model.adapters)

    async def forget(self, served: Served) -> None:
        """Free what only `served` needs. No request may use it any more."""
        if served.adapter is None:
            await self._unload(served.model)
        elif (model := self._models.get(served.model)) is not None:
            if model.adapters.pop(served.id, None) is not None:
                await model.policy.engine.unload_adapter(served.id)
            self._adapter_locks.pop(served.adapter, None)

    async def unload_idle(self, seconds: float) -> None:
        """Unload the models that no request has used for so long."""
        for path, model in list(self._models.items()):
            if not model.users and self.clock() - model.used_at >= seconds:
                await self._unload(path)

    async def close(self) -> None:
        for load in list(self._loads.values()):
            load.cancel()
        for path in list(self._models):
            model = self._models.pop(path)
            await model.policy.engine.close()

    async def _model(self, path: Path) -> LoadedModel:
        """The model, which the caller uses from then on. A load continues where the request that began it ends."""
        while (model := self._models.get(path)) is None:
            load = self._loads.get(path)
            if load is None:
                load = self._loads[path] = asyncio.create_task(self._load(path))
                load.add_done_callback(partial(self._load_ended, path))
            await asyncio.shield(load)
        model.users += 1  # before anything is awaited, so that it is not unloaded
        return model

    async def _load(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"the model's directory {path} is gone or has no config.json")
        async with self._one_load:  # so that what is free is counted once
            await self._make_room(path)
            try:
                policy = await _loading(asyncio.to_thread(self.load, path))
            except OutOfMemory:
                if not await self._unload_least_used(all_idle=True):
                    raise
                policy = await _loading(asyncio.to_thread(self.load, path))
            self._models[path] = LoadedModel(policy, self.clock())

    def _load_ended(self, path: Path, load: asyncio.Task[None]) -> None:
        del self._loads[path]
        if not load.cancelled():
            load.exception()  # retrieved, also where no request waits for it any more

    async def _make_room(self, path: Path) -> None:
        needed = self.needed(path)
        while (free := self.available()) is not None and free < needed:
            if not await self._unload_least_used():
                raise OutOfMemory(
                    f"out of memory: loading {path.name} needs about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are "
                    "free. Delete other deployments, or serve from a larger machine"
                )

    async def _unload_least_used(self, *, all_idle: bool = False) -> bool:
        """Whether there was a model that no request uses."""
        idle = sorted((model.used_at, path) for path, model in self._models.items() if not model.users)
        for _, path in idle if all_idle else idle[:1]:
            await self._unload(path)
        return bool(idle)

    async def _unload(self, path: Path) -> None:
        model = self._models.get(path)
        if model is None or model.users:
            return
        del self._models[path]
        await model.policy.engine.close()
        _log.info("unloaded %s", path)
        del model
        gc.collect()  # an engine and its parts refer to each other


class OutOfMemory(ModelLoadError):
    """There is no memory for a model now; there may be later."""


async def _loading(work: Any) -> Any:
    """What `work` gives; every failure as a `ModelLoadError` in one line."""
    try:
        return await work
    except WhetError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        # Torch's own class cannot be named here; its CPU allocator raises a RuntimeError.
        memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if memory or "not enough memory" in said or "can't allocate memory" in said:
            raise OutOfMemory(f"out of memory while it was loaded ({said or type(error).__name__})") from error
        _log.exception("a model could not be loaded")
        raise ModelLoadError(f"it cannot be loaded: {type(error).__name__}: {said}") from error


def available_memory() -> int | None:
    """Bytes that can be taken before something has to be swapped out; None where the system does not say."""
    try:
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
