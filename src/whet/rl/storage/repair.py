"""Records that were damaged by something other than a kill: what can be read is kept, and the repair is reported.

A kill tears the last line of a file, and every file is opened without it. Damage elsewhere (a disk, an editor) must not
cost a run whose checkpoint is whole: the lines go to `<file>.damaged`, and the ledger's are made again from the
rollouts of their steps.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.rl.storage.ledger import Ledger
from whet.rl.storage.rollout_log import step_path
from whet.system.files import read_lines, write_whole


def repair_lines(path: Path, keys: Mapping[str, type]) -> list[str]:
    """Take every whole line out of `path` that is no JSON object with these keys; messages for the user about them."""
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    damaged = [number for number, line in enumerate(lines) if line.endswith(b"\n") and not _holds(line, keys)]
    if not damaged:
        return []
    damaged_file = path.with_name(f"{path.name}.damaged")
    with damaged_file.open("ab") as file:
        file.writelines(lines[number] for number in damaged)
    write_whole(path, b"".join(line for number, line in enumerate(lines) if number not in set(damaged)))
    return [f"{path}: {_numbered('line', [number + 1 for number in damaged])} damaged; moved to {damaged_file.name}"]


def _holds(line: bytes, keys: Mapping[str, type]) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in keys.items())


def complete_ledger(ledger: Ledger, rollouts: Path, step: int) -> list[str]:
    """Put back the steps up to `step` that the ledger lost, out of their rollouts; messages for the user."""
    notes = []
    for missing in sorted(set(range(1, step + 1)) - ledger.steps.keys()):
        path = step_path(rollouts, missing)
        groups = _groups_of(path)
        if groups is None:
            notes.append(f"{ledger.path}: step {missing} is missing, and {path} cannot say which groups it trained")
            continue
        ledger.restore(missing, groups)
        notes.append(f"{ledger.path}: step {missing} was missing; taken from {path}")
    return notes


def _groups_of(path: Path) -> list[str] | None:
    try:
        return list(dict.fromkeys(str(row["group"]) for row in read_lines(path))) or None
    except (OSError, RunError, KeyError):
        return None


def missing_steps(path: Path, step: int) -> list[str]:
    """A message for the user about the steps up to `step` that a file of metrics lacks."""
    there: Collection[Any] = {row["step"] for row in read_lines(path)} if path.exists() else set()
    missing = [number for number in range(1, step + 1) if number not in there]
    return [f"{path}: {_numbered('step', missing)} missing; the curves have a gap there"] if missing else []


def sweep_torn(directory: Path) -> None:
    """Remove temporary files of a process that was killed. The directory is this process's own."""
    for path in directory.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        elif f".{os.getpid()}." not in path.name:
            path.unlink(missing_ok=True)


def _numbered(word: str, numbers: list[int]) -> str:
    """`line 3 is`, `lines 3, 5 and 40 more are`"""
    if len(numbers) == 1:
        return f"{word} {numbers[0]} is"
    shown = ", ".join(map(str, numbers[:5]))
    return f"{word}s {shown}{f' and {len(numbers) - 5} more' if len(numbers) > 5 else ''} are"
