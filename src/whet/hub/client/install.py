"""`whet env install owner/name[@version]`: exactly that wheel of the hub, by its URL and hash."""

from __future__ import annotations

from pathlib import Path

from whet.authoring.install import Installed, install_environment
from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError
from whet.hub.client.connection import connect
from whet.hub.client.fetch import HubId, credentials_for_pip, find_version, requirement_of


def install(target: str, *, editable: bool = False, hub: str | None = None) -> Installed:
    """Install an environment, from the hub where it is named by an owner.

    `hub` is the hub's address, by default the one of `whet login`. Raises `ConfigError` and `HubRequestError`, besides
    what `install_environment` raises.
    """
    if not _is_of_a_hub(target):
        return install_environment(target, editable=editable)
    if editable:
        raise ConfigError(
            f"{target} is not a folder, so it cannot be installed with -e. Take its source: whet env pull"
        )
    with connect(hub) as connection:
        requirement = requirement_of(connection, find_version(connection, HubId.parse(target)))
        with credentials_for_pip(connection) as variables:
            return install_environment(requirement, variables=variables)


def _is_of_a_hub(target: str) -> bool:
    if "/" not in target or "://" in target or Path(target.partition("[")[0]).expanduser().exists():
        return False
    return parse_id(target).owner is not None
