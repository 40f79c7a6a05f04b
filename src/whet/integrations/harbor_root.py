"""The files of an image of FROM that the user has: a folder, or the archive that `docker export` writes.

An archive is unpacked once into whet's cache, by its content. Owners, special bits and times are not kept. Nothing is
downloaded, and layers (`docker save`) are not read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from whet.envs.sandboxed import packages
from whet.errors import ConfigError
from whet.sandboxes.bubblewrap.layout import layout_of_image
from whet.system.files import expanded


def image_roots(images: Mapping[str, str]) -> dict[str, str]:
    """The folder of each image of FROM. Raises ConfigError for what is none."""
    roots = {}
    for image, text in images.items():
        whose, path = f"images: {image!r} = {text!r}", expanded(text).resolve()
        if path.is_file():
            with ThreadPoolExecutor(1) as thread:  # this one may be running an event loop
                path = thread.submit(asyncio.run, _unpacked(path, whose)).result()
        if not path.is_dir() or path == Path("/"):
            raise ConfigError(f"{whose} is neither a folder with an image's files nor an archive of `docker export`.")
        if not layout_of_image(path).python:
            raise ConfigError(f"{whose} has no python3 in /usr/local/bin, /usr/bin or /bin, which runs a sandbox.")
        roots[image] = str(path)
    return roots


async def _unpacked(archive: Path, whose: str) -> Path:
    with archive.open("rb") as opened:
        mode: Literal["r:gz", "r:"] = "r:gz" if opened.read(2) == b"\x1f\x8b" else "r:"  # no others
        opened.seek(0)
        key = hashlib.file_digest(opened, "sha256").hexdigest()[:24]

    async def fill(folder: Path) -> None:
        try:
            with tarfile.open(archive, mode) as tar:
                _unpack(tar, folder)
        except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
            raise ConfigError(f"{whose} cannot be unpacked: {error}.") from error

    return await packages.filled(packages.cache_directory("harbor") / f"image-{key}", fill, whose)


def _unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Links come last, so that nothing is written through one. Raises ValueError for what is not unpacked."""
    links: list[tarfile.TarInfo] = []
    for member in tar:
        path = folder / _inside(member.name)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk() or member.issym():
            links.append(member)
        elif member.isfile():
            source = tar.extractfile(member)
            assert source is not None
            with source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
            path.chmod(member.mode & 0o755 | 0o444)
        else:
            raise ValueError(f"{member.name} is neither a file, a folder nor a link")
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)  # sandboxes are of another user
    for member in sorted(links, key=tarfile.TarInfo.issym):
        name = _inside(member.name)
        if member.islnk():
            os.link(folder / _inside(member.linkname), folder / name)
        else:
            _inside(posixpath.join(posixpath.dirname(name), member.linkname))
            (folder / name).symlink_to(member.linkname)


def _inside(name: str) -> str:
    """The path below the image's root; that of a link's target, too."""
    path = posixpath.normpath(name).lstrip("/")
    if path.split("/")[0] == "..":
        raise ValueError(f"{name} leads out of the image")
    return path
