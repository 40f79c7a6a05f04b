"""What is wrong with an archive, and the limits that every archive has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whet.errors import WhetError

MIB = 1 << 20
MAX_ENTRIES = 10_000
MAX_UNPACKED = 200 * MIB
MAX_RATIO = 200
RATIO_FROM = MIB  # smaller content may be as repetitive as it likes
MAX_METADATA = MIB
MAX_RECORD = 4 * MIB
SHOWN = 20  # problems that are reported, the first ones


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason to refuse an archive."""

    file: str  # the entry, or the archive itself
    code: str
    reason: str


class ArchiveRefusedError(WhetError):
    """An archive may not be stored; `problems` says why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first.file}: {first.reason}{more}")
        self.problems = tuple(problems)


def refused(file: str, code: str, reason: str) -> ArchiveRefusedError:
    """The error for a problem that ends the check."""
    return ArchiveRefusedError([Problem(shown(file), code, reason)])


def shown(name: str) -> str:
    """A name of an entry, harmless and short enough for a message."""
    text = name.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= 120 else text[:100] + "..."
