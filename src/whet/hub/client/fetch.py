"""What is taken from a hub: the version that an id means, its requirement for pip, its source."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError
from whet.hub.answers import EnvironmentAnswer, FileAnswer, VersionAnswer
from whet.hub.archive.names import check_environment_name, check_owner_name, check_version
from whet.hub.archive.sdists import check_sdist
from whet.hub.client.connection import HubClient, HubRequestError, path_of
from whet.hub.client.package import unpack
from whet.hub.client.settings import TOKEN_VARIABLE
from whet.system.terminal import safe_text


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name`, or `owner/name@version`."""

    owner: str
    name: str
    version: str | None = None

    @classmethod
    def parse(cls, text: str, default_owner: str | None = None) -> HubId:
        """Raises `ConfigError` and `EnvironmentLoadError` for what is no id. A name alone is one of `default_owner`."""
        wanted = parse_id(text, of_hub=True)
        owner = wanted.owner or default_owner
        if wanted.path is not None or wanted.url is not None or owner is None:
            raise ConfigError(f"'{safe_text(text)}' is no id of a hub. Write OWNER/NAME or OWNER/NAME@VERSION.")
        version = None if wanted.version is None else check_version(wanted.version)
        return cls(check_owner_name(owner), check_environment_name(wanted.name), version)

    @property
    def path(self) -> str:
        """Of the environment, in the hub's API."""
        return f"/environments{path_of(self.owner, self.name)}"

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")


def find_version(hub: HubClient, wanted: HubId) -> VersionAnswer:
    """The version of an id; without one in the id the newest that is neither yanked nor a pre-release.

    Raises `HubRequestError`.
    """
    version = wanted.version
    if version is None:
        version = hub.ask(EnvironmentAnswer, "GET", wanted.path).latest
    if version is None:
        raise HubRequestError(
            f"{wanted} has no version that is not yanked or a pre-release. Name one: {wanted}@VERSION"
        )
    return hub.ask(VersionAnswer, "GET", version_path(dataclasses.replace(wanted, version=version)))


def version_path(version: HubId | VersionAnswer) -> str:
    """Of a version, in the hub's API."""
    return f"/environments{path_of(version.owner, version.name)}/versions{path_of(version.version or '')}"


def url_of(hub: HubClient, version: VersionAnswer, file: FileAnswer) -> str:
    """Where a file is, as seen from here; behind a proxy the hub knows itself by another address."""
    return hub.url + path_of("files", version.owner, version.name, version.version, file.filename)


def requirement_of(hub: HubClient, version: VersionAnswer) -> str:
    """The requirement for pip that brings exactly this wheel."""
    return f"{version.name} @ {url_of(hub, version, _file(version, 'wheel'))}#sha256={_file(version, 'wheel').sha256}"


@contextlib.contextmanager
def credentials_for_pip(hub: HubClient) -> Iterator[dict[str, str]]:
    """Environment variables for pip: it reads the token from a file, so that no command line and no URL has it."""
    own = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    with tempfile.TemporaryDirectory(prefix="whet-pip-") as folder:
        file = Path(folder, "netrc")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            if hub.token:
                out.write(f"machine {urlsplit(hub.url).hostname} login __token__ password {hub.token}\n")
            with contextlib.suppress(OSError, UnicodeDecodeError):  # the user's other hosts
                out.write(own.read_text(encoding="utf-8"))
        yield {**{name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}, "NETRC": str(file)}


def pull(hub: HubClient, version: VersionAnswer, target: Path) -> Path:
    """The source of a version as the new folder `target`. Raises `HubRequestError`, and `ConfigError` if it exists."""
    if target.exists():
        raise ConfigError(f"{target} exists already. Name another folder with --path, or remove it.")
    file = _file(version, "sdist")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".whet-pull-", dir=target.parent) as folder:
        archive = Path(folder, "sdist.tar.gz")
        _fetch(hub, version, file, archive)
        with archive.open("rb") as content:
            check_sdist(content, file.filename, version.name, version.version)
        unpacked = Path(folder, "unpacked")
        unpacked.mkdir()
        unpack(archive, unpacked)
        unpacked.rename(target)
    return target


def _fetch(hub: HubClient, version: VersionAnswer, file: FileAnswer, into: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as out:
        for piece in hub.download(path_of("files", version.owner, version.name, version.version, file.filename)):
            size += len(piece)
            if size > file.size:
                break
            digest.update(piece)
            out.write(piece)
    if size != file.size or digest.hexdigest() != file.sha256:
        raise HubRequestError(f"{file.filename}: what the hub sent is not the file that it names (SHA-256). Try again.")


def _file(version: VersionAnswer, kind: str) -> FileAnswer:
    match = next((file for file in version.files if file.kind == kind), None)
    if match is None:
        raise HubRequestError(f"{version.id} has no {kind} on the hub.")
    return match
