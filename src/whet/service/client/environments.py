"""Where each environment of a submission comes from: the service's own Python, or the hub, packaged and pushed first.

owner/name, owner/name@version     on the hub: pinned to a version
name                               stays, if the service has the same files, or if there is none of the name here;
                                   installed here from the hub: that version; from a folder: packaged and pushed
a folder                           packaged and pushed
a file, a URL                      refused: say what to do
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.envs.identity.ids import parse_id
from whet.envs.identity.record import identify
from whet.envs.loading import locate
from whet.errors import ConfigError, EnvironmentLoadError
from whet.hub.answers import VersionAnswer
from whet.hub.client.connection import HubClient
from whet.hub.client.fetch import HubId, find_version
from whet.hub.client.package import PackageSource, read_source
from whet.service.answers import InstalledAnswer
from whet.system.terminal import safe_text


@dataclass(frozen=True, slots=True)
class OnService:
    """The service's own Python has it; `id` stays."""

    id: str


@dataclass(frozen=True, slots=True)
class OnHub:
    """An id with an owner; without a version the newest is meant."""

    id: HubId
    wheel: str | None = None  # SHA-256 of what is installed here, which has to be the hub's


@dataclass(frozen=True, slots=True)
class ToPush:
    """A package in a folder of this machine."""

    source: PackageSource


Origin = OnService | OnHub | ToPush
Push = Callable[[PackageSource], VersionAnswer]


def origin_of(env_id: str, there: Mapping[str, InstalledAnswer]) -> Origin:
    """Where an environment comes from; `there` is what the service has, by name.

    Raises `ConfigError` and `EnvironmentLoadError` for one that cannot be submitted.
    """
    wanted = parse_id(env_id)
    if wanted.owner is not None:
        return OnHub(HubId.parse(env_id))
    if wanted.contract is not None:
        raise ConfigError(
            f"environment '{safe_text(env_id)}': the service runs environments of whet; this one is for runs on this "
            "machine."
        )
    if wanted.url is not None:
        raise ConfigError(
            f"environment '{safe_text(env_id)}': the service installs from its hub, not from a URL. Push its package "
            "(whet env push DIR), and name it as OWNER/NAME@VERSION."
        )
    if wanted.path is not None:
        if wanted.path.is_file():
            raise ConfigError(
                f"environment '{env_id}' is one file; the service installs packages. Make one with: whet env init "
                f"{wanted.name.replace('_', '-')}"
            )
        return ToPush(_source(env_id, wanted.path.resolve()))
    known = there.get(wanted.name.replace("_", "-").lower())
    if known is not None and wanted.version not in (None, known.version):
        known = None
    try:
        here = identify(env_id) if locate(env_id) else None
    except EnvironmentLoadError:
        if known is None:
            raise
        return OnService(env_id)
    assert here is not None
    if known is not None and known.content == here.content:
        return OnService(env_id)
    if here.owner is not None and here.version is not None:
        return OnHub(HubId.parse(f"{here.owner}/{wanted.name}@{here.version}"), here.wheel)
    location = locate(env_id).path
    return ToPush(_source(env_id, location if location.is_dir() else location.parent))


def _source(env_id: str, folder: Path) -> PackageSource:
    """The package that a module's folder belongs to."""
    for candidate in (folder, folder.parent, folder.parent.parent):
        if (candidate / "pyproject.toml").is_file():
            return read_source(candidate)
    raise ConfigError(
        f"environment '{env_id}' is in {folder}, which has no pyproject.toml, so it cannot be packaged. "
        "Make a package of it (whet env init NAME), or push it and name it as OWNER/NAME."
    )


def pinned(origin: Origin, hub: HubClient, push: Push, *, skip_action_check: bool) -> str:
    """The id that the submission has. Raises `ConfigError`, and `HubRequestError` for a version that is not there.

    A version whose action failed is refused, unless `skip_action_check`.
    """
    if isinstance(origin, OnService):
        return origin.id
    if isinstance(origin, ToPush):
        version = push(origin.source)
    else:
        version = find_version(hub, origin.id)
        if origin.wheel is not None and origin.wheel != version.sha256:
            raise ConfigError(
                f"environment {version.id}: what is installed here is another wheel than the hub has. Install that of "
                f"the hub (whet env install {version.id}), or name the environment by its folder."
            )
    if not skip_action_check and version.action is not None and version.action.state == "failed":
        raise ConfigError(
            f"environment {version.id}: the hub tried it out, and that failed. See why: whet env action logs "
            f"{version.id}. To train on it nevertheless: --skip-action-check"
        )
    return version.id


def nested_ids(value: Any, key: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The tables in an environment's arguments that name environments (`envs = [{id = "..."}]`), and by which key."""
    if isinstance(value, list):
        for item in value:
            yield from nested_ids(item, key)
    elif isinstance(value, dict):
        for name in ("env_id", *(("id",) if key in ("env", "envs", "environments") else ())):
            if isinstance(value.get(name), str):
                yield value, name
        for name, item in value.items():
            yield from nested_ids(item, name)
