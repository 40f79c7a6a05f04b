"""`report.html` of a training run, an evaluation or a search: where it is, and what its pages share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from whet.errors import WhetError
from whet.system.files import write_whole

REPORT = "report.html"
MOST_ROWS = 1000
"""Rows of a table of tasks or examples."""


def write_page(directory: Path, page: str) -> Path:
    """Write `report.html` into a run's directory and return its path."""
    path = directory / REPORT
    write_whole(path, page, durable=False)
    return path


def report_or_note(write: Callable[[Path], Path], directory: Path, note: Callable[[str], None]) -> Path | None:
    """The report that a run ends with. One that cannot be written is noted; the results matter more than the page."""
    try:
        return write(directory)
    except (OSError, WhetError) as error:
        note(f"no report was written: {error}")
        return None
