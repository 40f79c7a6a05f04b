"""Checkpoints that are either whole or not there.

    checkpoints/.step_20.tmp/     being written; whatever a crash leaves of it is swept away by the next save
    checkpoints/step_20/          renamed once every byte, and the manifest with its hashes, is on disk
        manifest.json             {"step": 20, "files": {"weights.safetensors": {"size": ..., "sha256": ...}, ...}}

A reader trusts a directory only if its manifest verifies. The contents are decided by the `write` that is passed in;
there is no torch here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunError, TrainingError
from whet.system.files import sync

MANIFEST = "manifest.json"
WEIGHTS, ADAPTER = "weights.safetensors", "adapter.safetensors"
"""What a learner trained: all weights, or an adapter. A checkpoint has one of them."""
_NAME = re.compile(r"step_(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose manifest verified."""

    step: int
    path: Path


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], *, keep: int) -> Path:
    """Let `write` fill a directory, make it durable as `root/step_N`, and then delete all but the newest `keep`.

    Raises `TrainingError` when the disk is full or fails; older checkpoints are untouched then.
    """
    assert keep >= 1, "the checkpoint just written is kept"
    final = root / f"step_{step}"
    temporary = root / f".step_{step}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for torn in root.glob(".step_*.tmp"):
            shutil.rmtree(torn)
        temporary.mkdir()
        write(temporary)
        seal(temporary, step)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync(root)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrainingError(
            f"{final}: cannot write the checkpoint: {reason}. Earlier checkpoints are untouched; "
            "make room (or lower checkpointing.keep_n_checkpoints) and continue with --resume."
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in checkpoints_in(root)[keep:]:
        shutil.rmtree(old.path)
    return final


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that does not."""
    passed_over: list[str] = []
    for candidate in checkpoints_in(root):
        fault = fault_of(candidate.path)
        if fault is None:
            return candidate, passed_over
        passed_over.append(f"{candidate.path}: {fault}")
    return None, passed_over


def load_checkpoint(root: Path, step: int) -> Checkpoint:
    """The checkpoint of one step. Raises `RunError` when it is not there or does not verify."""
    path = root / f"step_{step}"
    if not path.is_dir():
        steps = ", ".join(str(checkpoint.step) for checkpoint in reversed(checkpoints_in(root))) or "none"
        raise RunError(f"{root}: there is no checkpoint of step {step}; there are: {steps}.")
    if fault := fault_of(path):
        raise RunError(f"{path}: {fault}. Choose another step.")
    return Checkpoint(step, path)


def fault_of(directory: Path, *, hashes: bool = True) -> str | None:
    """Why a checkpoint cannot be trusted, or None: every file of the manifest is there, with its size and hash.

    Without `hashes` no file of weights is read.
    """
    files = _listed(directory)
    if isinstance(files, str):
        return files
    for name, (size, digest) in files.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if hashes and _hash(path) != digest:
            return f"{name} is damaged (its hash differs)"
    return None


def copy_verified(checkpoint: Path, name: str, target: Path) -> None:
    """Copy one file of a checkpoint. Raises `RunError` where the copy is not what the manifest lists."""
    files = _listed(checkpoint)
    if isinstance(files, str):
        raise RunError(f"the checkpoint cannot be used: {files}.")
    if name not in files:
        raise RunError(f"the checkpoint cannot be used: its manifest has no {name}.")
    try:
        shutil.copyfile(checkpoint / name, target, follow_symlinks=False)
    except FileNotFoundError:
        raise RunError(f"the checkpoint cannot be used: {name} is missing.") from None
    if target.is_symlink() or files[name] != (target.stat().st_size, _hash(target)):
        raise RunError(f"the checkpoint cannot be used: {name} is damaged (its size or hash differs).")


def _listed(directory: Path) -> dict[str, tuple[int, str]] | str:
    """Size and SHA-256 of each file of the manifest, by name; or why it cannot be read."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        return {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return "it has no manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest is damaged ({error})"


def checkpoints_in(root: Path) -> list[Checkpoint]:
    """Everything that is named like a checkpoint, newest first."""
    if not root.is_dir():
        return []
    named = [(match, path) for path in root.iterdir() if path.is_dir() and (match := _NAME.fullmatch(path.name))]
    return sorted((Checkpoint(int(match[1]), path) for match, path in named), key=lambda checkpoint: -checkpoint.step)


def seal(directory: Path, step: int) -> None:
    """Write the manifest and force everything to disk, the manifest last."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in paths:
        sync(path)
    entries = {str(path.relative_to(directory)): {"size": path.stat().st_size, "sha256": _hash(path)} for path in paths}
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"step": step, "files": entries}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)
    for inner in [path for path in directory.rglob("*") if path.is_dir()]:
        sync(inner)
    sync(directory)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
