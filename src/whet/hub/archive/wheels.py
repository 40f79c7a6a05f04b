"""The checks of a wheel: that it is one environment, says the truth about itself, and can do nothing when installed."""

from __future__ import annotations

import base64
import csv
import email
import email.policy
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from whet.authoring.wheels import AT_START
from whet.hub.archive.names import MODULES_RESERVED, entry_problems, module_of
from whet.hub.archive.problems import (
    MAX_METADATA,
    MAX_RECORD,
    SHOWN,
    ArchiveRefusedError,
    Problem,
    refused,
    shown,
)
from whet.hub.archive.zips import StrictZip, ZipEntry

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMPILED = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyo")
INSTALLERS = ("direct_url.json", "installer", "requested", "origin.json", "record.jws", "record.p7s")
"""What an installer writes, not a package: a file of these names could lie about where the package comes from. In
lower case, as some file systems and installers do not tell cases apart."""

MAX_HEADERS = 64 << 10
_BLANK_LINE = re.compile(rb"(?:\r\n|\r|\n|\A)(?:\r\n|\r|\n)")
_MIME = re.compile(rb"(?:\A|[\r\n])content-type[ \t]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WheelFacts:
    """What a wheel that passed says about itself."""

    module: str
    summary: str
    readme: str
    readme_type: str
    requires_python: str
    requires_dist: tuple[str, ...]
    metadata: bytes


def check_wheel(file: BinaryIO, filename: str, name: str, version: str) -> WheelFacts:
    """The facts of a wheel for the environment `name` at `version`. Raises `ArchiveRefusedError`."""
    check_filename(filename, name, version)
    archive = StrictZip(file, filename)
    problems = list(entry_problems([entry.name for entry in archive.entries]))
    _raise(problems)
    info = _info_folder(archive, filename, name, version)
    problems += _content_problems(archive, info, module_of(name), filename)
    metadata_bytes = _read(archive, f"{info}/METADATA", MAX_METADATA)
    metadata = parse_metadata(metadata_bytes, f"{info}/METADATA")
    problems += metadata_problems(metadata, f"{info}/METADATA", name, version)
    problems += _wheel_file_problems(archive, info, filename)
    _raise(problems)
    _raise(list(_record_problems(archive, info)))
    return WheelFacts(
        module_of(name),
        (metadata.summary or "").strip()[:300],
        metadata.description or "",
        (metadata.description_content_type or "text/plain").partition(";")[0].strip().lower(),
        str(metadata.requires_python or ""),
        tuple(str(requirement) for requirement in metadata.requires_dist or ()),
        metadata_bytes,
    )


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise ArchiveRefusedError(problems[:SHOWN])


def check_filename(filename: str, name: str, version: str) -> None:
    """Raises `ArchiveRefusedError` unless it is the file name of a pure wheel of this environment for Python 3."""
    try:
        project, parsed, build, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, ValueError):
        raise refused(filename, "filename", "it is no file name of a wheel") from None
    expected = f"{module_of(name)}-{version}"
    if project != name or str(parsed) != version or not filename.startswith(expected + "-") or build:
        raise refused(filename, "filename", f"a wheel of {name} {version} is called {expected}-py3-none-any.whl")
    for tag in sorted(tags, key=str):
        if tag.abi != "none" or tag.platform != "any":
            raise refused(filename, "platform", f"it is for {tag} only; an environment is plain Python (py3-none-any)")
    if not any(tag.interpreter == "py3" for tag in tags) or not {tag.interpreter for tag in tags} <= {"py2", "py3"}:
        raise refused(filename, "python", "it is for another Python; an environment is for py3-none-any")


def _info_folder(archive: StrictZip, filename: str, name: str, version: str) -> str:
    expected = f"{module_of(name)}-{version}.dist-info"
    folders = {entry.name.partition("/")[0] for entry in archive.entries}
    info_folders = sorted(folder for folder in folders if folder.lower().endswith(".dist-info"))
    if info_folders != [expected]:
        named = ", ".join(map(shown, info_folders)) or "none"
        raise refused(filename, "dist-info", f"it needs exactly one folder {expected}; it has {named}")
    return expected


def _content_problems(archive: StrictZip, info: str, module: str, filename: str) -> Iterator[Problem]:
    """Files that an environment may not bring, and modules that are not its own."""
    tops = set()
    for entry in archive.entries:
        top, _, rest = entry.name.partition("/")
        lower = entry.name.rstrip("/").lower()
        if lower.endswith(".pth"):
            yield Problem(entry.name, "pth", "every Python that starts where it is installed would run it")
        if lower.endswith(COMPILED):
            yield Problem(entry.name, "compiled", "it is compiled code, which cannot be reviewed; ship the source")
        if top == info:
            yield from _info_problems(archive, entry, rest)
            continue
        if top.lower().endswith(".data"):
            yield Problem(entry.name, "data-folder", "it would be installed outside of the package; move it there")
            continue
        if top.lower().endswith((".dist-info", ".egg-info")):
            yield Problem(entry.name, "dist-info", "it is metadata of another package")
            continue
        tops.add(top if rest or entry.name.endswith("/") else entry.name)
    for top in sorted(tops - {module, f"{module}.py"}):
        yield _foreign(top, module)
    if module in tops and f"{module}.py" in tops:
        yield Problem(f"{module}.py", "top-level", f"there is a package {module} too, which hides it")
    names = archive.by_name.keys()
    if f"{module}.py" not in names and f"{module}/__init__.py" not in names:
        yield Problem(
            filename,
            "no-module",
            f"it has neither {module}.py nor {module}/__init__.py for load_environment to import",
        )


def _foreign(top: str, module: str) -> Problem:
    """A top-level name that is not the environment's module."""
    stem = top.partition(".")[0]
    if stem.lower() in AT_START:
        return Problem(top, "start-up", "every Python that starts where it is installed would run it")
    if stem.lower() in MODULES_RESERVED:
        return Problem(top, "shadows", f"it would hide the module {stem} of another package or of Python")
    return Problem(
        top, "top-level", f"it would be installed next to {module}, for all packages; an environment has only {module}"
    )


def _info_problems(archive: StrictZip, entry: ZipEntry, rest: str) -> Iterator[Problem]:
    lower = rest.lower()
    if lower in INSTALLERS:
        yield Problem(entry.name, "installer-file", "only an installer writes this file")
    if lower == "entry_points.txt" and _read(archive, entry.name, MAX_METADATA).strip():
        yield Problem(entry.name, "entry-points", "an environment adds no commands and no plug-ins to other programs")
    if lower.endswith((".py", ".pyw")):
        yield Problem(entry.name, "dist-info", "there is code among the metadata")


def _read(archive: StrictZip, name: str, most: int) -> bytes:
    entry = archive.by_name.get(name)
    if entry is None:
        raise refused(name, "missing", "it is missing")
    return archive.read(entry, most)


def parse_metadata(data: bytes, file: str) -> Metadata:
    """The core metadata. Raises `ArchiveRefusedError` where it is not valid."""
    _check_headers(data, file)
    try:
        return Metadata.from_email(data, validate=True)
    except (ExceptionGroup, ValueError, RecursionError) as error:  # brackets of a marker, within each other
        causes = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        text = "; ".join(str(cause) for cause in causes[:3])
        raise refused(file, "metadata", f"the metadata is not valid: {shown(text)}") from None


def _check_headers(data: bytes, file: str) -> None:
    """Raises `ArchiveRefusedError` for headers that Python's reader of mail would need minutes for, or a deep stack."""
    head = _BLANK_LINE.split(data, maxsplit=1)[0]
    if len(head) > MAX_HEADERS:
        raise refused(file, "metadata", f"its fields have more than {MAX_HEADERS >> 10} KiB")
    if _MIME.search(head):
        raise refused(file, "metadata", "it has a Content-Type, as if it were mail of several parts")


def metadata_problems(metadata: Metadata, file: str, name: str, version: str) -> Iterator[Problem]:
    """Where core metadata contradicts the name and version, or requires what no installation should fetch."""
    if canonicalize_name(metadata.name) != name:
        yield Problem(file, "name", f"the metadata is of {shown(metadata.name)}, not of {name}")
    if str(metadata.version) != version:
        yield Problem(file, "version", f"the metadata is of version {metadata.version}, not of {version}")
    for requirement in metadata.requires_dist or ():
        if requirement.url:
            yield Problem(file, "direct-url", f"it requires {shown(requirement.name)} from a URL; name a version")
        if canonicalize_name(requirement.name) == name and not requirement.extras:
            yield Problem(file, "requires-itself", "it requires itself")
    wanted = metadata.requires_python or SpecifierSet()
    if not any(wanted.contains(f"{python}.99") or wanted.contains(f"{python}.0") for python in PYTHONS):
        yield Problem(file, "python", f"it is for Python {wanted}; whet runs on {PYTHONS[0]} to {PYTHONS[-1]}")


def _wheel_file_problems(archive: StrictZip, info: str, filename: str) -> Iterator[Problem]:
    file = f"{info}/WHEEL"
    data = _read(archive, file, MAX_METADATA)
    _check_headers(data, file)
    text = email.message_from_bytes(data, policy=email.policy.compat32)
    if not str(text.get("Wheel-Version", "")).startswith("1."):
        yield Problem(file, "wheel-file", "it has no Wheel-Version 1.x")
    if str(text.get("Root-Is-Purelib", "")).strip().lower() != "true":
        yield Problem(file, "wheel-file", "Root-Is-Purelib is not true; an environment is plain Python")
    _, _, _, tags = parse_wheel_filename(filename)
    written = {str(tag).strip() for tag in text.get_all("Tag", [])}
    if written != {str(tag) for tag in tags}:
        yield Problem(file, "wheel-file", f"its tags ({shown(', '.join(sorted(written)))}) are not the file name's")


def _record_problems(archive: StrictZip, info: str) -> Iterator[Problem]:
    """Where RECORD and the bytes differ; each byte is read once, and none beyond what is declared."""
    file = f"{info}/RECORD"
    try:
        rows = list(csv.reader(io.StringIO(_read(archive, file, MAX_RECORD).decode("utf-8"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise refused(file, "record", f"it is damaged ({error})") from None
    listed: dict[str, tuple[str, str]] = {}
    for row in rows:
        if not row:
            continue
        if len(row) != 3 or row[0] in listed:
            yield Problem(file, "record", f"{shown(row[0])} is listed twice, or not with a hash and a size")
            return
        listed[row[0]] = (row[1], row[2])
    for entry in archive.entries:
        if entry.name.endswith("/"):
            continue
        if entry.name not in listed:
            yield Problem(entry.name, "record", "RECORD does not list it")
            continue
        digest, size = listed.pop(entry.name)
        if entry.name == file:
            continue
        if digest != _digest(archive, entry) or size != str(entry.size):
            yield Problem(entry.name, "record", "RECORD has another hash or size of it")
    for name in sorted(listed):
        yield Problem(shown(name), "record", "RECORD lists it and it is not there")


def _digest(archive: StrictZip, entry: ZipEntry) -> str:
    sha = hashlib.sha256()
    for piece in archive.pieces(entry):
        sha.update(piece)
    return "sha256=" + base64.urlsafe_b64encode(sha.digest()).rstrip(b"=").decode()
