"""A push: checked here first, then uploaded in pieces that a broken connection does not repeat."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whet.authoring.review.check import check_environment
from whet.authoring.review.findings import Report
from whet.errors import ConfigError
from whet.hub.answers import Identity, PushAnswer, PushFile, VersionAnswer
from whet.hub.client.connection import HubClient, HubRequestError, path_of
from whet.hub.client.package import Built, BuiltArchive, PackageSource, build, next_version, uncommitted, write_version
from whet.hub.client.settings import read_settings
from whet.system.terminal import safe_text

Visibility = Literal["PUBLIC", "PRIVATE"]
SHOWN_CHANGES = 5
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a push may do; each default is the careful one."""

    visibility: Visibility | None = None
    auto_bump: bool = False
    allow_dirty: bool = False
    check: bool = True


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version that is on the hub; `new` is false where it was there before with the same bytes."""

    version: VersionAnswer
    new: bool


def default_owner(hub: HubClient) -> str:
    """The owner of the settings, else the user's own namespace. Raises `HubRequestError`."""
    return read_settings().owner or hub.ask(Identity, "GET", "/whoami").user


def refuse_unready(source: PackageSource, options: Options, show: Callable[[Report], None]) -> None:
    """Raises `ConfigError` for uncommitted changes, and for a package in which `whet env check` finds errors."""
    changed = [] if options.allow_dirty else uncommitted(source.folder)
    if changed:
        named = ", ".join(safe_text(line[3:], 80) for line in changed[:SHOWN_CHANGES])
        more = f" and {len(changed) - SHOWN_CHANGES} more" if len(changed) > SHOWN_CHANGES else ""
        raise ConfigError(
            f"{source.folder} has changes that are not committed: {named}{more}. Commit them, so that the version can "
            "be found again, or push them as they are with --allow-dirty."
        )
    if options.check:
        report = check_environment(str(source.folder))
        show(report)
        if not report.ok:
            raise ConfigError(
                f"{source.name} was not pushed: `whet env check` finds errors. Mend them, or push with --no-check."
            )


def push(
    hub: HubClient,
    owner: str,
    source: PackageSource,
    options: Options,
    *,
    preview: Callable[[PackageSource, Built], None],
    say: Say,
    progress: Progress,
) -> Pushed:
    """Build and upload a version. `preview` sees what will be uploaded before it is.

    Pushing the same bytes again changes nothing. Raises `ConfigError`, `ArchiveRefusedError` and `HubRequestError`.
    """
    while True:
        with tempfile.TemporaryDirectory(prefix="whet-push-") as folder:
            built = build(source, Path(folder))
            preview(source, built)
            try:
                answer = _begin(hub, owner, source, built, options)
            except HubRequestError as error:
                if error.code not in ("version_exists", "version_deleted"):
                    raise
                if not options.auto_bump:
                    raise HubRequestError(f"{error} Raise the version, or let --auto-bump do it.", error.code) from None
            else:
                return _finish(hub, answer, built, progress)
        source = _bumped(hub, owner, source, say)


def _begin(hub: HubClient, owner: str, source: PackageSource, built: Built, options: Options) -> PushAnswer:
    body: dict[str, Any] = {"version": source.version, "visibility": options.visibility}
    for archive in (built.wheel, built.sdist):
        body[archive.kind] = {"filename": archive.path.name, "size": archive.size, "sha256": archive.sha256}
    path = f"/environments{path_of(owner, source.name)}/pushes"
    return hub.ask(PushAnswer, "POST", path, json=body, retry=True)  # the same bytes give the same push


def _bumped(hub: HubClient, owner: str, source: PackageSource, say: Say) -> PackageSource:
    """The package with the next version that is free."""
    path = f"/environments{path_of(owner, source.name)}/versions"
    taken = [version.version for version in hub.items(VersionAnswer, path)]
    bumped = write_version(source, next_version(source.version, taken))
    say(f"{source.name} {source.version} is taken on the hub: pyproject.toml has {bumped.version} now")
    return bumped


def _finish(hub: HubClient, answer: PushAnswer, built: Built, progress: Progress) -> Pushed:
    new = answer.state == "open"
    if new:
        archives: Mapping[str, BuiltArchive] = {archive.kind: archive for archive in (built.wheel, built.sdist)}
        for file in answer.files:
            _upload(hub, answer, file, archives[file.kind].path, progress)
        answer = hub.ask(PushAnswer, "POST", f"/pushes{path_of(answer.id)}/commit", retry=True)
    if answer.state != "committed" or answer.version is None:
        raise HubRequestError(f"the push is {answer.state}, and no version was made. Push again.")
    return Pushed(answer.version, new)


def _upload(hub: HubClient, push: PushAnswer, file: PushFile, path: Path, progress: Progress) -> None:
    """The bytes that the hub does not have yet."""
    where = f"/api/v1/pushes{path_of(push.id)}/files{path_of(file.kind)}"
    offset = file.offset
    with path.open("rb") as content:
        while offset < file.size:
            content.seek(offset)
            piece = content.read(push.chunk_bytes)
            try:
                hub.send("PATCH", where, headers={"Upload-Offset": str(offset)}, content=piece)
                offset += len(piece)
            except HubRequestError as error:
                arrived = _offset_of(error)
                if arrived is None or not offset < arrived <= file.size:
                    raise
                offset = arrived  # of a piece whose answer was lost
            progress(file.kind, offset, file.size)


def _offset_of(error: HubRequestError) -> int | None:
    """How far the hub is, where that is its reason to refuse a piece."""
    if error.code != "wrong_offset" or not error.details or not isinstance(error.details[0], dict):
        return None
    offset = error.details[0].get("offset")
    return offset if isinstance(offset, int) else None
