"""Files by their SHA-256, on any file system that fsspec knows.

A file is written aside and renamed, so that under its name it is whole or absent. Whether anything names it is for the
database; `keep_only` removes the rest.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from whet.errors import ConfigError
from whet.hub.errors import file_lost
from whet.system.files import sync

ASIDE, BY_HASH = "aside", "sha256"


class FileStore:
    """A folder of files by content; `url` is a local path or any address of fsspec."""

    def __init__(self, url: str) -> None:
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
            self._root = str(root).rstrip("/")
            for folder in (ASIDE, BY_HASH):
                self._fs.makedirs(f"{self._root}/{folder}", exist_ok=True)
        except (ValueError, ImportError, OSError) as error:
            raise ConfigError(f"the storage {url} cannot be used: {error}.") from error
        self._local = isinstance(self._fs, LocalFileSystem)

    def path(self, sha256: str) -> str:
        """The path of a file in the storage, by its hash in hex digits."""
        return f"{self._root}/{BY_HASH}/{sha256[:2]}/{sha256}"

    def local_path(self, sha256: str) -> Path | None:
        """The file's path where the storage is a folder of this machine. `HubError` for one that is not stored."""
        path = Path(self.path(sha256)) if self._local else None
        if path is not None and not path.is_file():
            raise file_lost(sha256)
        return path

    def add(self, source: Path, sha256: str) -> None:
        """Copy a file whose hash was verified. It is durable and whole when this returns."""
        target = self.path(sha256)
        if self._fs.exists(target) and self._fs.size(target) == source.stat().st_size:
            return
        aside = f"{self._root}/{ASIDE}/{uuid.uuid4().hex}"
        try:
            self._fs.put_file(str(source), aside)
            if self._local:
                sync(Path(aside))
                Path(target).parent.mkdir(exist_ok=True)
                os.replace(aside, target)
                sync(Path(target).parent)
                sync(Path(target).parent.parent)
            else:
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._fs.mv(aside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm_file(aside)
            raise

    @contextlib.contextmanager
    def open(self, sha256: str) -> Iterator[BinaryIO]:
        """Read a file. Raises `HubError` (`file_lost`) for one that is not stored."""
        try:
            file = self._fs.open(self.path(sha256), "rb")
        except FileNotFoundError:
            raise file_lost(sha256) from None
        with file:
            yield cast("BinaryIO", file)

    def remove(self, sha256: str) -> None:
        """Remove a file, if it is stored."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self.path(sha256))

    def names(self) -> set[str]:
        """The hashes of all files."""
        return {str(path).rpartition("/")[2] for path in self._fs.find(f"{self._root}/{BY_HASH}")}

    def keep_only(self, named: set[str]) -> int:
        """Remove what is not `named`, and what was left aside; returns how many."""
        self._fs.invalidate_cache()
        left = [str(path) for path in self._fs.find(f"{self._root}/{ASIDE}")]
        left += [self.path(sha256) for sha256 in self.names() - named]
        for path in left:
            self._fs.rm_file(path)
        return len(left)
