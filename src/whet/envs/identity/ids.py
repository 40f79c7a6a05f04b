"""Ids of environments: what each form means. Nothing is looked up but whether a path exists.

    gsm8k                                    a package that is installed, or a folder in environments/
    gsm8k@1.2                                that version of it, installed
    alice/gsm8k, alice/gsm8k@1.2             a package of an owner on a hub, installed from there
    ./gsm8k, environments/gsm8k, game.py     a path to a folder or a file
    https://host/gsm8k-1.2-py3-none-any.whl#sha256=HASH                 a wheel with these bytes
    git+https://host/gsm8k@COMMIT, gsm8k @ git+https://host/envs@COMMIT#subdirectory=gsm8k    a commit of a repository
    openenv:http://host:8000, openenv:echo_env, nemo:./resources_servers/mcqa, v1:./glossary     of another contract
    harbor:./tasks, harbor:./tasks#hello                                        tasks of Harbor's format

Everything is ASCII, so no two ids look alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from whet.errors import EnvironmentLoadError
from whet.system.files import expanded

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
LOWER_CASE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")  # owners, and the names of environments on a hub
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-[^-/]+(?:-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl")
_BELOW = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_SCHEMES = ("https://", "http://", "file://")
MAX_NAME, MAX_OWNER, MAX_VERSION, SHOWN = 64, 39, 64, 200
FORMS = "NAME, NAME@VERSION, OWNER/NAME, OWNER/NAME@VERSION, a path, or the URL of a wheel or a git commit"
CONTRACTS = {
    "harbor": "whet.integrations.harbor_env",
    "inspect": "whet.integrations.inspect_env",
    "nemo": "whet.integrations.nemo_env",
    "openenv": "whet.integrations.openenv_env",
    "v1": "whet.integrations.v1_env",
}
"""Environments of other contracts: the prefix of their ids, and the module whose `load_environment` takes the rest."""


@dataclass(frozen=True, slots=True)
class EnvironmentId:
    """An id that is well formed. Of `path` and `url` one may be set; `owner` and `version` only without them."""

    text: str
    name: str  # of the package or, for a path, of its folder or file
    owner: str | None = None
    version: str | None = None
    path: Path | None = None
    url: str | None = None  # without the hash: what pip records of it
    hash: str | None = None  # SHA-256 of the wheel, or the commit
    git: bool = False
    subdirectory: str | None = None  # of the repository
    contract: str | None = None  # a key of `CONTRACTS`
    target: str | None = None  # what follows the contract: a URL, a package or a path

    @property
    def module(self) -> str:
        """`my-env` is imported as `my_env`."""
        if self.contract is not None:
            return CONTRACTS[self.contract]
        return re.sub(r"[-.]+", "_", self.name)

    @property
    def verified(self) -> bool:
        """Whether only one package can be meant, so that what is installed is checked."""
        return bool(self.owner or self.version or self.url)

    @property
    def requirement(self) -> str:
        """What pip installs for a URL."""
        assert self.url is not None
        if not self.git:
            return f"{self.name} @ {self.url}#sha256={self.hash}"
        below = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"{self.name} @ git+{self.url}@{self.hash}{below}"


def parse_id(text: str, *, of_hub: bool = False) -> EnvironmentId:
    """The parts of an id. Raises `EnvironmentLoadError`, one line that says what is wrong and what to write.

    With `of_hub` OWNER/NAME is never a folder here.
    """
    if not text or text != text.strip() or not text.isprintable():
        raise _malformed(text, "is empty or has spaces or control characters around it or inside")
    contract, colon, target = text.partition(":")
    if colon and contract in CONTRACTS:
        if of_hub or not target:
            raise _malformed(text, "is no package of a hub" if target else f"has nothing after '{contract}:'")
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", target.removeprefix("http://").removeprefix("https://")).strip("-.")
        return EnvironmentId(text, name[-MAX_NAME:] or contract, contract=contract, target=target)
    if "://" in text:
        return _url(text)
    path = expanded(text)
    is_path = text.startswith((".", "/", "~")) or text.endswith(".py")
    if is_path or (len(path.parts) > 1 and not of_hub and path.exists()):
        return EnvironmentId(text, path.stem if path.suffix == ".py" else path.name or path.resolve().name, path=path)
    whole, at, version = text.partition("@")
    owner, slash, name = whole.rpartition("/")
    if "/" in owner:
        raise _malformed(text, "is no path that exists, and OWNER/NAME has one '/'")
    if slash and not (LOWER_CASE.fullmatch(owner) and len(owner) <= MAX_OWNER):
        raise _malformed(
            text,
            f"has the owner '{_shown(owner)}': an owner has a-z, 0-9 and single '-' inside, at most "
            f"{MAX_OWNER} characters",
        )
    _check_name(text, name)
    if at:
        _check_version(text, version)
    return EnvironmentId(text, name, owner or None, version or None)


def label_of(text: str) -> str:
    """The id for people and folders: of a URL, and of another contract, only the name."""
    return parse_id(text).name if "://" in text or text.partition(":")[0] in CONTRACTS else text


def _url(text: str) -> EnvironmentId:
    from packaging.utils import canonicalize_name

    name, separator, url = text.rpartition(" @ ") if " @ " in text else ("", "", text)
    if separator:
        _check_name(text, name.strip())
    url, _, fragment = url.strip().partition("#")
    parts = dict(part.partition("=")[::2] for part in fragment.split("&") if part)
    location = url.removeprefix("git+")
    if re.match(r"[a-z]+://[^/@]*:[^/@]*@", location):
        raise _malformed(_without_password(text), "has a password, which would be kept in results; leave it out")
    if url.startswith("git+"):
        return _git(text, name.strip(), location, parts)
    file = url.rpartition("/")[2]
    wheel = _WHEEL.fullmatch(file)
    if not url.startswith(_SCHEMES) or wheel is None:
        raise _malformed(
            text, "is neither the URL of a wheel (https://.../NAME-VERSION-py3-none-any.whl) nor git+https://"
        )
    if not _SHA256.fullmatch(parts.get("sha256", "")):
        raise _malformed(text, "names a wheel without its hash: add #sha256= and its 64 hexadecimal digits")
    in_wheel = canonicalize_name(wheel["name"])
    if name and canonicalize_name(name.strip()) != in_wheel:
        raise _malformed(text, f"calls {_shown(name.strip())} what is a wheel of {wheel['name']}")
    return EnvironmentId(text, in_wheel, url=url, hash=parts["sha256"])


def _git(text: str, name: str, location: str, parts: dict[str, str]) -> EnvironmentId:
    url, _, commit = location.rpartition("@")
    if not url or not _COMMIT.fullmatch(commit):
        raise _malformed(text, "names no commit: add @ and its 40 hexadecimal digits (a branch or a tag may move)")
    below = parts.get("subdirectory")
    if below is not None and not _BELOW.fullmatch(below):
        raise _malformed(text, f"has the subdirectory '{_shown(below)}', which is no path inside the repository")
    name = name or (below or url).rstrip("/").rpartition("/")[2].removesuffix(".git")
    _check_name(text, name)
    return EnvironmentId(text, name, url=url, hash=commit, git=True, subdirectory=below)


def _check_name(text: str, name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise _malformed(
            text,
            f"has the name '{_shown(name)}': a name has A-Z, a-z, 0-9, and '-', '_' or '.' inside, at most "
            f"{MAX_NAME} characters",
        )


def _check_version(text: str, version: str) -> None:
    from packaging.version import InvalidVersion, Version

    try:
        if len(version) > MAX_VERSION or not version.isascii():
            raise InvalidVersion
        Version(version)
    except InvalidVersion:
        raise _malformed(
            text, f"has the version '{_shown(version)}': give one such as 1.2.0, or leave out '@' for any"
        ) from None


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@]*@", "://...@", text)


def _shown(text: str) -> str:
    cut = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return cut if cut.isprintable() and cut.isascii() else ascii(cut)[1:-1]


def _malformed(text: str, problem: str) -> EnvironmentLoadError:
    return EnvironmentLoadError(f"environment '{_shown(text)}' {problem}. Give {FORMS}.")
