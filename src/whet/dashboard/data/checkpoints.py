"""Checkpoints of a run, whether they are whole, and archives of what can be downloaded."""

from __future__ import annotations

import json
import math
import os
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.dashboard.data.files import directory_of, open_inside
from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import LibraryRun, What
from whet.inference.model_names import ADAPTER_CONFIG
from whet.parsing import parse_json
from whet.records.files import read_at
from whet.records.tail import file_stamp
from whet.rl.storage.checkpoints import checkpoints_in, fault_of

CHECKED_SECONDS = 0.5
"""How long an answer waits for the hashes of checkpoints; what is not hashed by then is said to be unverified."""
WHATS: tuple[What, ...] = ("adapter", "model", "checkpoint")
MOST_CHECKED = 1_000
MOST_FILES = 2_000
CHUNK = 1 << 20
Stamps = tuple[tuple[str, int, int, int], ...]


class CheckpointChecks:
    """Faults of checkpoints. Hashing one takes as long as reading it, so it is done once for one state of its files."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="whet-checkpoints")
        self._lock = threading.Lock()
        self._checks: OrderedDict[tuple[Path, Stamps], Future[str | None]] = OrderedDict()

    def fault(self, path: Path, stamps: Stamps, wait: float) -> tuple[str | None, bool]:
        """The fault of a checkpoint, and whether its files were hashed: after `wait` seconds they may not be."""
        key = (path, stamps)
        with self._lock:
            checked = self._checks.get(key)
            if checked is None:
                checked = self._checks[key] = self._pool.submit(fault_of, path)
                while len(self._checks) > MOST_CHECKED:
                    self._checks.popitem(last=False)[1].cancel()
            self._checks.move_to_end(key)
        try:
            return checked.result(wait), True
        except NotYet:
            return fault_of(path, hashes=False), False
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})", True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def checkpoints(checks: CheckpointChecks, run: LibraryRun) -> list[dict[str, Any]]:
    """The checkpoints and exports of each step, the oldest first."""
    directory = directory_of(run)
    root = directory / "checkpoints"
    steps: dict[int, dict[str, Any]] = {}
    wait = CHECKED_SECONDS
    for one in reversed(checkpoints_in(root)) if file_stamp(root) is not None else ():
        if file_stamp(one.path) is None:
            continue
        try:
            files = _files(one.path)
        except DashboardError as error:
            item = {"step": one.step, "bytes": None, "fault": str(error), "verified": True, "deployable": False}
            steps[one.step] = {**item, "archives": []}
            continue
        stamps = tuple((name, *_stamp(one.path / name)) for name in files)
        fault, verified = checks.fault(one.path, stamps, wait)
        wait = wait if verified else 0.0
        steps[one.step] = {
            "step": one.step,
            "bytes": sum(stamp[2] for stamp in stamps),
            "modified": max((stamp[3] for stamp in stamps), default=0) / 1e9,
            "fault": fault,
            "verified": verified,
            "deployable": fault is None,
            "archives": [
                what for what in WHATS if _folder(directory, one.step, what) or (what in run.makes and not fault)
            ],
        }
    for step in _steps_of(directory / "adapters"):
        if step not in steps:
            item = {"step": step, "bytes": None, "modified": None, "fault": None, "verified": False, "deployable": True}
            steps[step] = {**item, "archives": ["adapter"]}
    return [steps[step] for step in sorted(steps)]


def _steps_of(folder: Path) -> list[int]:
    return [one.step for one in checkpoints_in(folder)] if file_stamp(folder) is not None else []


def _stamp(path: Path) -> tuple[int, int, int]:
    stamp = file_stamp(path)
    return (0, 0, 0) if stamp is None else (stamp.inode, stamp.size, stamp.modified)


def _folder(directory: Path, step: int, what: str) -> str | None:
    """The directory or file of an archive, below the run's; None where there is none."""
    names = {
        "checkpoint": [f"checkpoints/step_{step}"],
        "adapter": [f"adapters/step_{step}", f"exports/step_{step}-peft", f"exports/step_{step}-adapter.gguf"],
        "model": [f"exports/step_{step}-merged", f"exports/step_{step}-model", f"exports/step_{step}.gguf"],
    }[what]
    if what == "model" and step == max(_steps_of(directory / "checkpoints"), default=None):
        names.insert(0, "model")  # written when a run ends
    return next((name for name in names if file_stamp(directory / name) is not None), None)


@dataclass(frozen=True, slots=True)
class TarStream:
    """A tar archive that is made while it is sent."""

    name: str
    size: int
    chunks: Iterator[bytes]


def is_written(run: LibraryRun, step: int, what: What) -> bool:
    """Whether the run has written it."""
    return _folder(directory_of(run), step, what) is not None


def archive(run: LibraryRun, step: int, what: What, made: Path | None = None) -> TarStream:
    """Of what the run has written, or of the directory `made`. Raises `DashboardError` where there is none, with what
    to do."""
    directory = directory_of(run) if made is None else made.parent
    relative = _folder(directory, step, what) if made is None else made.name
    if relative is None:
        if what == "checkpoint" or step not in _steps_of(directory / "checkpoints"):
            raise no_such(f"{what} of step {step}")
        format = "peft" if what == "adapter" else "merged"
        raise DashboardError(
            "not_found",
            f"step {step} has a checkpoint, and no {what} was made of it. On the machine of the run: "
            f"whet train export {run.directory} --step {step} --format {format}",
        )
    path = directory / relative
    names = _files(path) if path.is_dir() else [""]
    prefix = f"{run.name}-step_{step}-{what}"
    members = []
    for name in names:
        source: str | bytes = str(Path(relative) / name)
        if run.base and name == ADAPTER_CONFIG and what == "adapter":
            source = _with_base(directory, str(source), run.base)
        info = tarfile.TarInfo(f"{prefix}/{name or path.name}")
        info.size = len(source) if isinstance(source, bytes) else _stamp(path / name)[1]
        info.mtime = math.floor(_stamp(path / name)[2] / 1e9)
        members.append((info.tobuf(tarfile.PAX_FORMAT), source, info.size))
    size = sum(len(head) + _padded(bytes) for head, _, bytes in members) + 2 * tarfile.BLOCKSIZE
    return TarStream(f"{prefix}.tar", size, _chunks(directory, members))


def _with_base(directory: Path, name: str, base: str) -> bytes:
    """An adapter's config with the base model's name in place of its path on the run's machine."""
    try:
        with open_inside(directory, name) as file:
            described = parse_json(read_at(file, 0, CHUNK))
        return json.dumps({**described, "base_model_name_or_path": base}, indent=2).encode()
    except (ValueError, TypeError):
        raise DashboardError("unreadable", f"{name}: it is no adapter's config.") from None


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _chunks(directory: Path, members: list[tuple[bytes, str | bytes, int]]) -> Iterator[bytes]:
    """Raises where a file was changed meanwhile: the answer then ends before its length."""
    for head, name, size in members:
        yield head
        if isinstance(name, bytes):
            yield name + b"\0" * (_padded(size) - size)
            continue
        with open_inside(directory, name) as file:
            for offset in range(0, size, CHUNK):
                data = read_at(file, offset, min(CHUNK, size - offset))
                if len(data) < min(CHUNK, size - offset):
                    raise DashboardError("conflict", f"{name}: the file was changed while it was sent.")
                yield data
        yield b"\0" * (_padded(size) - size)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _files(path: Path) -> list[str]:
    """The files below a directory, as paths from there. Raises `DashboardError` for links, and for too many."""
    paths: list[str] = []
    for folder, folders, names in os.walk(path):
        for name in [*folders, *names]:
            if os.path.islink(os.path.join(folder, name)):
                raise DashboardError("forbidden", f"{path.name}/{name}: links are not followed.")
        paths += [str(Path(folder, name).relative_to(path)) for name in names]
        if len(paths) > MOST_FILES:
            raise DashboardError("too_large", f"{path.name}: more than {MOST_FILES:,} files.")
    return sorted(paths)
