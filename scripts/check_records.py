"""Fail where a file outside `records` names a run's files, or has its own lock, tail or opening without links.

What a run is on disk is known in `src/whet/records` alone: other rooms read and write by its names and functions. Files
of other things (weights, archives) are listed here with what they need.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from whet.records import directory, log

PACKAGE = Path(__file__).parents[1] / "src" / "whet"
NAMES = {value for module in (directory, log) for value in vars(module).values() if isinstance(value, str)}
FILES = {name for name in NAMES if name.endswith((".json", ".jsonl", ".toml", ".log"))}
ONCE = {
    "flock": "records/lock.py has the lock",
    "O_NOFOLLOW": "system/untrusted.py opens without following links",
    "st_ino": "records/tail.py reads a file that grows",
}
"""Names of attributes that only the code named may use."""
ALLOWED = {
    "flock": {
        "inference/weights/packed_file.py",  # shared by readers, while the file is mapped
        "inference/weights/gguf_cache.py",  # waits for the process that fills the cache
        "rl/cluster/weight_store.py",  # whether packed_file's is held
    },
    "O_NOFOLLOW": {
        "system/untrusted.py",
        "system/env_files.py",  # checks owner and rights of what it opened
        "sandboxes/transfer.py",  # these write: a new file, never through a link
        "service/runner/gate.py",
        "service/deployments/folder.py",  # within a folder that is open already
    },
    "st_ino": {
        "inference/weights/packed_file.py",  # a file of weights, whole or absent
        "service/runner/progress.py",  # which version of a status there is
    },
}


def problems(path: Path) -> Iterator[str]:
    """A line for each thing in a file of the package that belongs into records."""
    name = path.relative_to(PACKAGE).as_posix()
    if name.startswith("records/"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in FILES:
            yield f"{path}:{node.lineno}: {node.value!r}: use its name in whet.records (directory.py, log.py)."
        if isinstance(node, ast.Attribute) and node.attr in ONCE and name not in ALLOWED[node.attr]:
            yield f"{path}:{node.lineno}: {node.attr}: {ONCE[node.attr]}; use that."


def main() -> int:
    found = [line for path in sorted(PACKAGE.rglob("*.py")) for line in problems(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
