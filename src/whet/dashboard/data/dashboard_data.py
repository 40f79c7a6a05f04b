"""The data of a library's runs, with what is kept between requests."""

from __future__ import annotations

from pathlib import Path

from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun, RunLibrary


class DashboardData:
    """One for each library and process; used by all threads."""

    def __init__(self, library: RunLibrary) -> None:
        self.library = library

    def close(self) -> None:
        """Stop what runs in the background."""


def directory_of(run: LibraryRun) -> Path:
    """Raises `DashboardError` for a run that has written nothing yet."""
    if run.directory is None:
        raise DashboardError("not_found", f"{run.name} has no files yet: it is {run.state}.")
    return run.directory
