"""What is in an archive that passed the checks: its list of files, and one file of it."""

from __future__ import annotations

from typing import BinaryIO

from whet.hub.archive.problems import MAX_METADATA
from whet.hub.archive.sdists import walk
from whet.hub.archive.zips import StrictZip


def list_contents(stream: BinaryIO, filename: str) -> list[tuple[str, int]]:
    """Paths and sizes of the files."""
    if filename.endswith(".whl"):
        return [(entry.name, entry.size) for entry in StrictZip(stream, filename).entries if entry.name[-1:] != "/"]
    return [(member.name, member.size) for member, _ in walk(stream, filename, set()) if member.name[-1:] != "/"]


def read_content(stream: BinaryIO, filename: str, path: str) -> bytes | None:
    """The content of one file of at most 1 MiB; None where there is none, or it is longer."""
    if filename.endswith(".whl"):
        archive = StrictZip(stream, filename)
        entry = archive.by_name.get(path)
        return archive.read(entry, MAX_METADATA) if entry is not None and entry.size <= MAX_METADATA else None
    for member, content in walk(stream, filename, {path}):
        if member.name == path:
            return content if member.size <= MAX_METADATA and path[-1:] != "/" else None
    return None
