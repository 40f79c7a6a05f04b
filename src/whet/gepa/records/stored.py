"""Searches on disk: finding and reading them, also one that is still running or was killed.

Files are named in `docs/design/gepa.md`; candidates and the frontier are read by `candidates.py`.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from whet.errors import RunError, WhetError
from whet.gepa.records.candidates import CANDIDATES, by_id, read_candidates
from whet.gepa.records.run_directory import CONFIG
from whet.gepa.types import CandidateRecord, Confirmation, SearchPlan, best_of, seed_of
from whet.rollouts.results import METADATA, load_metadata
from whet.rollouts.row_log import is_locked

RUNS = Path("runs")
BEST_PROMPT, REPORT = "best_prompt.txt", "report.html"
T = TypeVar("T")
DIED = "died"
ENDED = ("finished", "failed", "interrupted", DIED)


@dataclass(frozen=True, slots=True)
class StoredSearch:
    """One search: its directory, what `metadata.json` says, and its candidates."""

    directory: Path
    metadata: Mapping[str, Any] = field(repr=False)
    state: str  # running, finished, interrupted, failed; died: it says running and no process holds its lock
    candidates: Sequence[CandidateRecord] = field(repr=False)
    plan: SearchPlan | None = None
    confirmation: Confirmation | None = None
    fault: str | None = None  # why something of it cannot be read, where it is listed nevertheless

    @property
    def config(self) -> Mapping[str, Any]:
        found = self.metadata.get("config")
        return found if isinstance(found, Mapping) else {}

    @property
    def environments(self) -> list[str]:
        """Their names, as examples have them."""
        sections = [one for one in self.config.get("env") or () if isinstance(one, Mapping)]
        return [str(one.get("name") or Path(str(one.get("id", "?")).partition("@")[0]).stem) for one in sections]

    @property
    def model(self) -> str:
        return str(self.config.get("model") or "?")

    @property
    def reflection_model(self) -> str:
        return str(self.config.get("reflection_model") or self.model)

    @property
    def title(self) -> str:
        return f"Prompts for {', '.join(self.environments) or '?'} with {self.model}"

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.directory.name)

    @property
    def date(self) -> str:
        """When it ended or last wrote, in local time."""
        return str(self.metadata.get("date") or "")

    @property
    def reason(self) -> str:
        """Why it ended, in words; empty for a search that runs or died, whose saved reason is out of date."""
        return str(self.metadata.get("reason") or "") if self.state in ENDED and self.state != DIED else ""

    @property
    def evaluate(self) -> list[str]:
        """The commands that evaluate the best prompt, one for each environment."""
        found = self.metadata.get("evaluate")
        return [str(command) for command in found] if isinstance(found, list) else []

    @property
    def spent(self) -> int:
        """Calls that count against the budget."""
        found = self.metadata.get("spent")
        known = int(found) if isinstance(found, int | float) else 0
        return max([known, *(record.calls_after for record in self.candidates)])

    @property
    def max_calls(self) -> int | None:
        found = self.plan.max_calls if self.plan else self.config.get("max_calls")
        return int(found) if isinstance(found, int | float) else None

    @property
    def cost(self) -> float | None:
        """Dollars, rollouts and reflection together; None where no price is known."""
        found = self.metadata.get("cost")
        return float(found) if isinstance(found, int | float) else None

    @property
    def seed(self) -> CandidateRecord | None:
        return seed_of(self.candidates)

    @property
    def best(self) -> CandidateRecord | None:
        return best_of(self.candidates)

    @property
    def by_id(self) -> dict[str, CandidateRecord]:
        return by_id(self.candidates)

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.candidates)

    @property
    def resume(self) -> str | None:
        """The command that continues it; None for one that is running or finished."""
        words = ["whet", "gepa", "run", "--resume", str(self.directory)]
        return shlex.join(words) if self.state in ("failed", "interrupted", DIED) else None


def open_search(run: str | Path) -> StoredSearch:
    """The search in a directory, or of that name below runs/.

    Raises `RunError` where there is none, and for a file of it that is damaged.
    """
    for path in (Path(run), RUNS / run):
        if is_search(path):
            return _read(path)
    here = sorted(path.name for path in RUNS.glob("*") if is_search(path))
    near = difflib.get_close_matches(str(run), here, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "`whet gepa list` shows what there is."
    raise RunError(
        f"there is no search {str(run)!r}: neither a directory that `whet gepa run` has made nor one in {RUNS}/. {hint}"
    )


def find_searches(folder: Path = RUNS) -> list[StoredSearch]:
    """The searches directly below a folder, the newest first; one that is damaged has a `fault`.

    Raises `RunError` where there is no such folder.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder. `whet gepa run` makes {RUNS}/; name yours.")
    found = [_read_as_far_as_possible(path) for path in folder.iterdir() if is_search(path)]
    return sorted(found, key=lambda one: one.date, reverse=True)


def is_search(directory: Path) -> bool:
    """Whether `whet gepa run` has made this directory."""
    return any((directory / name).is_file() for name in (CONFIG, CANDIDATES))


def _read(directory: Path, candidates: Sequence[CandidateRecord] | None = None) -> StoredSearch:
    metadata = load_metadata(directory) or {}
    return StoredSearch(
        directory=directory,
        metadata=metadata,
        state=_state(directory, metadata),
        candidates=read_candidates(directory) if candidates is None else candidates,
        plan=_part(SearchPlan, metadata, "plan", directory),
        confirmation=_part(Confirmation, metadata, "confirmation", directory),
    )


def _read_as_far_as_possible(directory: Path) -> StoredSearch:
    try:
        return _read(directory)
    except (WhetError, OSError) as error:
        return StoredSearch(directory, {}, "unknown", (), fault=str(error))


def _state(directory: Path, metadata: Mapping[str, Any]) -> str:
    """Its state. A killed search is still recorded as running, so the lock on its directory is checked."""
    said = str(metadata.get("state") or "unknown")
    return DIED if said == "running" and not is_locked(directory) else said


def _part(kind: type[T], metadata: Mapping[str, Any], name: str, directory: Path) -> T | None:
    """A dataclass in `metadata.json`; None where it is not there. Raises `RunError` where it is something else."""
    found = metadata.get(name)
    if found is None:
        return None
    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise RunError(
            f"{directory / METADATA}: {where}: {first['msg']}. `whet gepa run --resume {directory}` writes it again."
        ) from None
