"""Reading files of a run's directory, whose content and names a hostile program may have made.

Each read is bounded, and so is what an answer has of it: a text that was cut says by how much, the raw line has it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.parsing import parse_json
from whet.records.files import read_at
from whet.records.log import CursorError, LogQuery
from whet.records.log import log_lines as lines_of_log
from whet.system.untrusted import NOT_INSIDE
from whet.system.untrusted import open_inside as open_without_links

SMALL_BYTES = 1 << 20
"""Configs, statuses and metadata are smaller."""
LONGEST_TEXT = 64 << 10
"""Characters of one text."""
LONGEST_ANSWER = 1 << 20
"""Characters of all texts together."""
LEFT_OF_EACH = 200
"""Characters that stay of each text once there are too many."""
LONGEST_LIST = 10_000


def directory_of(run: LibraryRun) -> Path:
    """Raises `DashboardError` for a run that has written nothing yet."""
    if run.directory is None:
        raise DashboardError("not_found", f"{run.name} has no files yet: it is {run.state}.")
    return run.directory


def log_lines(run: LibraryRun, query: LogQuery) -> dict[str, Any]:
    """Lines of its log, the cursor `next` to continue with, and whether there are more now."""
    try:
        return lines_of_log(run.directory, query, run.output_file, open_inside)
    except CursorError as error:
        raise DashboardError("invalid", str(error)) from None


@contextmanager
def open_inside(directory: Path, name: str) -> Iterator[int]:
    """A descriptor of the regular file `name`, a path below `directory`, for reading.

    Raises `DashboardError` where a link or another thing than a file is at that path, `FileNotFoundError` where nothing
    is.
    """
    try:
        with open_without_links(directory, name) as descriptor:
            yield descriptor
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == NOT_INSIDE:
            said = "not a regular file of this directory; links are not followed."
            raise DashboardError("forbidden", f"{directory.name}/{name}: {said}") from None
        raise DashboardError("unreadable", f"{directory.name}/{name}: {error.strerror or error}.") from None


def read_text(directory: Path, name: str, limit: int = SMALL_BYTES) -> str:
    """The whole text of a file. Raises as `open_inside`, and `DashboardError` above `limit` bytes."""
    with open_inside(directory, name) as file:
        data = read_at(file, 0, limit + 1)
    if len(data) > limit:
        raise DashboardError("too_large", f"{directory.name}/{name}: larger than {limit:,} bytes, so it is not read.")
    return data.decode("utf-8", "replace")


def read_object(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in a small file; empty where there is no file, or no object in it."""
    try:
        value = parse_json(read_text(directory, name))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DashboardError("unreadable", f"{directory.name}/{name}: not JSON ({error}).") from None
    return value if isinstance(value, dict) else {}


class Cutter:
    """Cuts the values of one answer. `cut` says whether anything was."""

    def __init__(self, total: int = LONGEST_ANSWER, longest: int = LONGEST_TEXT) -> None:
        self._left = total
        self._longest = longest
        self.cut = False

    def value(self, value: Any) -> Any:
        """`value` with its texts and lists cut. Raises `DashboardError` for one that is nested too deeply."""
        try:
            return self._value(value)
        except RecursionError:
            raise DashboardError("unreadable", "this rollout is nested too deeply to be shown.") from None

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(key)[:1000]: self._value(value[key]) for key in self._some(list(value))}
        if isinstance(value, list | tuple):
            return [self._value(item) for item in self._some(value)]
        self._left -= 10
        return value

    def _some(self, items: Any) -> Any:
        most = LONGEST_LIST if self._left > 0 else 100
        self.cut = self.cut or len(items) > most
        self._left -= 10 * min(len(items), most)
        return items[:most]

    def text(self, text: str) -> str:
        limit = min(self._longest, max(self._left, LEFT_OF_EACH))
        self._left -= min(len(text), limit)
        if len(text) <= limit:
            return text
        self.cut = True
        return f"{text[:limit]}… [{len(text) - limit:,} characters more]"
