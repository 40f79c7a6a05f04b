"""Adapters of a served model: `base:adapter` is a model of its own, loaded and unloaded while others answer.

One engine answers for the base and all of them, so an adapter takes the memory of its own matrices.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.clients.client import Client
from whet.errors import ConfigError, Error, WhetError
from whet.gateway.wire import Body, RequestError, read_body
from whet.inference.protocol import WeightUpdate

if TYPE_CHECKING:
    from whet.inference.loading import Policy
    from whet.inference.policy_client import PolicyClient


class LoadBody(Body):
    lora_name: str
    lora_path: str


class UnloadBody(Body):
    lora_name: str


class Adapters:
    """The adapters of one served model. `folder` holds those that a request may have loaded; None allows none."""

    def __init__(
        self, models: dict[str, Client[Any, Any, Any, Any]], base: str, policy: Policy, folder: Path | None = None
    ) -> None:
        """`models` are those that the gateway serves; `policy` is the one that requests name `base`."""
        self._models, self._base, self._policy, self._folder = models, base, policy, folder
        self._names: list[str] = []

    def full_name(self, name: str) -> str:
        """The name of an adapter as requests have it: `base:name`."""
        return f"{self._base}:{name}"

    async def load(self, name: str, path: Path) -> None:
        """Serve the adapter in `path` as `base:name`. Raises `ConfigError` or `ModelLoadError` where it cannot be."""
        if not name or ":" in name:
            raise ConfigError(f"an adapter cannot be called {name!r}; give it a name without a colon.")
        full = self.full_name(name)
        if name in self._names or full in self._models:
            raise ConfigError(f"{full} is served already; unload it first, or choose another name.")
        self._names.append(name)  # before the first await, so that no concurrent request takes the name
        try:
            self._models[full] = await load_adapter(self._policy, name, path)
        except BaseException:
            self._names.remove(name)
            raise

    async def unload(self, name: str) -> None:
        """Take no more requests for `base:name`; it is removed once its running requests are answered."""
        served = [known for known in self._names if self.full_name(known) in self._models]
        if name not in served:
            raise ConfigError(f"there is no adapter {name!r} here; there are: {', '.join(served) or 'none'}.")
        del self._models[self.full_name(name)]
        self._names.remove(name)
        await self._policy.engine.unload_adapter(name)

    async def load_by_request(self, body: Any) -> str:
        """`load` for a body `{"lora_name", "lora_path"}`, with a path below the folder; returns the full name. Raises
        `RequestError`."""
        request, folder = read_body(LoadBody, body), self._allowed("loaded")
        try:
            path = (folder / request.lora_path).resolve()
        except (OSError, ValueError) as error:  # too long, or with characters that no path has
            raise RequestError(f"lora_path is no path: {error}", param="lora_path") from None
        if not path.is_relative_to(folder.resolve()):
            raise RequestError("lora_path leads out of the folder of adapters", status=403, param="lora_path")
        await self._as_request(self.load(request.lora_name, path))
        return self.full_name(request.lora_name)

    async def unload_by_request(self, body: Any) -> str:
        """`unload` for a body `{"lora_name"}`; returns the full name. Raises `RequestError`."""
        request = read_body(UnloadBody, body)
        self._allowed("unloaded")
        await self._as_request(self.unload(request.lora_name))
        return self.full_name(request.lora_name)

    def _allowed(self, done: str) -> Path:
        """The folder of adapters that requests may name."""
        if self._folder is None:
            raise RequestError(f"adapters are {done} by request only where --adapters-from names a folder", status=403)
        return self._folder

    async def _as_request(self, work: Any) -> None:
        try:
            await work
        except (WhetError, Error) as error:
            raise RequestError(str(error)) from error
        except OSError as error:
            raise RequestError(f"the adapter cannot be read: {error.strerror}", param="lora_path") from error


async def load_adapter(policy: Policy, name: str, path: Path) -> PolicyClient:
    """Load the adapter in `path` into the policy's engine; its client. Raises `ConfigError` or `ModelLoadError`."""
    from whet.inference.policy_client import PolicyClient

    engine = policy.engine
    await asyncio.to_thread(check_adapter, path, policy.path)
    await engine.load_weights(WeightUpdate(version=0, path=path, kind="adapter", adapter=name))
    return PolicyClient(engine, policy.renderer, max_context=policy.client.max_context, adapter=name, in_threads=True)


def check_adapter(path: Path, model: Path) -> None:
    """Raises `ConfigError` where `path` is no adapter, or one of another model than the one in `model`."""
    from whet.inference.loading import base_of_adapter

    base = base_of_adapter(path)
    if base is None:
        raise ConfigError(f"{path} is not the directory of an adapter: it has no adapter_config.json of its own.")
    if base.resolve() != model.resolve():
        raise ConfigError(f"{path} is an adapter of {base}, and {model} is served.")


def read_adapters(given: list[str]) -> dict[str, Path]:
    """`["mine=runs/lora/adapters/step_80"]` as names and directories."""
    adapters: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"--adapter {text}: write it like --adapter mine=runs/lora/adapters/step_80")
        if name in adapters:
            raise ConfigError(f"--adapter {text}: there are two adapters called {name}")
        adapters[name] = Path(path)
    return adapters
