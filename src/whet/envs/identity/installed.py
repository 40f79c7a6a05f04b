"""What is installed under the name of an environment, and whether it is what an id names.

pip records where a package came from in `direct_url.json` (PEP 610), unless it found it by name in an index; uv writes
no hash of a wheel there, so that its installations have no owner.
The last five parts of the URL of a wheel on a hub are `files/OWNER/NAME/VERSION/FILE`; see docs/design/hub.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from whet.envs.identity.ids import EnvironmentId
from whet.errors import EnvironmentLoadError

_HUB = re.compile(r"/files/(?P<owner>[^/]+)/(?P<name>[^/]+)/(?P<version>[^/]+)/(?P<file>[^/]+\.whl)$")


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A distribution, and where it came from as far as that is recorded."""

    name: str
    version: str
    distribution: metadata.Distribution
    url: str | None = None
    wheel: str | None = None  # SHA-256
    commit: str | None = None
    subdirectory: str | None = None
    editable: bool = False
    owner: str | None = None  # of a wheel of a hub

    @property
    def source(self) -> str:
        """Name, version and origin, in words."""
        if self.owner is not None:
            return f"{self.owner}/{self.name}@{self.version} (wheel {str(self.wheel)[:12]}, from {self.url})"
        commit = f" at {self.commit}" if self.commit else ""
        if self.url is None:
            return f"{self.name} {self.version}, with no record of where it came from"
        return f"{self.name} {self.version} from {self.url}{commit}{' (editable)' if self.editable else ''}"

    def holds(self, file: Path) -> bool:
        """Whether a module's file is one that this package installed."""
        try:
            recorded = self.distribution.files or []
            return any(Path(str(one.locate())).resolve() == file.resolve() for one in recorded if one.name == file.name)
        except OSError:
            return False

    def changed_file(self) -> str | None:
        """The first file that is not as it was installed; None where all are."""
        for file in self.distribution.files or []:
            if file.hash is None or file.suffix == ".pyc":
                continue
            try:
                digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
            except (OSError, ValueError):
                return str(file)
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                return str(file)
        return None


def installed_package(name: str) -> InstalledPackage | None:
    """The distribution of that name; None where there is none."""
    try:
        distribution = metadata.distribution(name)
        version = distribution.version
    except (metadata.PackageNotFoundError, ValueError):
        return None
    if not version:
        return None
    plain = re.sub(r"[-_.]+", "-", distribution.name).lower()
    return InstalledPackage(plain, version, distribution, **_origin(distribution, plain, version))


def _origin(distribution: metadata.Distribution, name: str, version: str) -> dict[str, Any]:
    """The fields that `direct_url.json` has; none where it is missing or not readable."""
    try:
        record = json.loads(distribution.read_text("direct_url.json") or "")
        url = str(record["url"])
        archive, repository = record.get("archive_info") or {}, record.get("vcs_info") or {}
        hashes = archive.get("hashes") or dict([str(archive.get("hash", "")).partition("=")[::2]])
        fields: dict[str, Any] = {
            "url": url,
            "wheel": hashes.get("sha256"),
            "commit": repository.get("commit_id"),
            "subdirectory": record.get("subdirectory"),
            "editable": bool((record.get("dir_info") or {}).get("editable")),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    split = urlsplit(url)
    hub = _HUB.search(unquote(split.path)) if split.scheme in ("http", "https") and fields["wheel"] else None
    if hub is not None and (re.sub(r"[-_.]+", "-", hub["name"]).lower(), hub["version"]) == (name, version):
        fields["owner"] = hub["owner"]
    return fields


def verify(wanted: EnvironmentId, module_file: Path | None) -> InstalledPackage:
    """What is installed, where it is what `wanted` names and `module_file` is its module.

    Raises `EnvironmentLoadError` with what is installed instead, and the command that installs the one that is named.
    """
    installed = installed_package(wanted.name)
    problem = _problem(wanted, installed, module_file)
    if installed is None or problem is not None:
        raise EnvironmentLoadError(
            f"environment '{wanted.text}': {problem}. Install it with: whet env install '{wanted.text}'."
        )
    return installed


def _problem(wanted: EnvironmentId, installed: InstalledPackage | None, module_file: Path | None) -> str | None:
    if installed is None:
        there = f"; {module_file}, a module of that name, is of no package" if module_file is not None else ""
        return f"no package {wanted.name} is installed{there}"
    if not _fits(wanted, installed):
        return f"installed is {installed.source}"
    if module_file is None:
        return f"installed is {installed.source}, and it has no module {wanted.module}"
    if installed.editable:
        return None
    if not installed.holds(module_file):
        return f"{module_file} would be imported, which is no file of the installed {installed.source}"
    if (wanted.owner or wanted.url) and (changed := installed.changed_file()) is not None:
        return f"{changed} was changed since {installed.source} was installed"
    return None


def _fits(wanted: EnvironmentId, installed: InstalledPackage) -> bool:
    from packaging.version import Version

    if wanted.git:
        return (installed.commit, installed.subdirectory) == (wanted.hash, wanted.subdirectory) and _same(
            wanted, installed
        )
    if wanted.url is not None:
        return installed.wheel == wanted.hash
    if wanted.owner is not None and installed.owner != wanted.owner:
        return False
    return wanted.version is None or Version(wanted.version) == Version(installed.version)


def _same(wanted: EnvironmentId, installed: InstalledPackage) -> bool:
    """Whether both are of one repository; a user's name in the URL and a final `.git` do not count."""
    one, other = (
        re.sub(r"://[^/@]*@", "://", str(url)).rstrip("/").removesuffix(".git") for url in (wanted.url, installed.url)
    )
    return one == other
