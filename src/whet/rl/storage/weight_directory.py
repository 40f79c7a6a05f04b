"""Where the learner leaves new weights for an engine on the same host: a private directory in shared memory.

The directory carries the process id, so that what a killed run left behind is swept up by the next run.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whet.runs.process import began

_NAME = re.compile(r"whet-weights-(\d+)-")


@contextmanager
def weights_directory() -> Iterator[Path]:
    """A private directory, in shared memory where the host has it, gone when the block ends."""
    root = shared_memory()
    sweep(root)
    path = Path(tempfile.mkdtemp(prefix=f"whet-weights-{os.getpid()}-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def shared_memory() -> Path:
    root = Path("/dev/shm")
    return root if root.is_dir() and os.access(root, os.W_OK) else Path(tempfile.gettempdir())


def sweep(root: Path) -> list[Path]:
    """Remove this user's directories whose process is gone; returns them."""
    removed = []
    for path in root.glob("whet-weights-*"):
        match = _NAME.match(path.name)
        try:
            ours = path.stat().st_uid == os.getuid()
        except FileNotFoundError:  # its run has ended in this moment
            continue
        if match and ours and began(int(match.group(1))) is None:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed
