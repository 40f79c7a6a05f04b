"""Searches on disk: finding and reading them, also one that is still running or was killed.

Files are named in `docs/design/gepa.md`; candidates and the frontier are read by `candidates.py`.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from whet.display.text import number
from whet.errors import RunError
from whet.gepa.records.candidates import by_id, read_candidates
from whet.gepa.types import CandidateRecord, Confirmation, SearchPlan, best_of, seed_of
from whet.records.directory import CANDIDATES, METADATA, SEARCH_CONFIG, load_metadata
from whet.records.lock import DIED, ENDED, state_of
from whet.records.stored import RUNS, StoredRun, as_far_as_possible, check_folder, resolve

BEST_PROMPT = "best_prompt.txt"
T = TypeVar("T")
Sureness = Literal["good", "unsure", "bad"]


@dataclass(frozen=True, slots=True)
class StoredSearch(StoredRun):
    """A directory of `whet gepa run`. Its status is `metadata.json`."""

    candidates: Sequence[CandidateRecord] = field(repr=False)
    plan: SearchPlan | None = None
    confirmation: Confirmation | None = None

    @property
    def environments(self) -> list[str]:
        """Their names, as examples have them."""
        sections = [one for one in self.config.get("env") or () if isinstance(one, Mapping)]
        return [str(one.get("name") or Path(str(one.get("id", "?")).partition("@")[0]).stem) for one in sections]

    @property
    def reflection_model(self) -> str:
        return str(self.config.get("reflection_model") or self.model)

    @property
    def title(self) -> str:
        return f"Prompts for {', '.join(self.environments) or '?'} with {self.model}"

    @property
    def date(self) -> str:
        """When it ended or last wrote, in local time."""
        return str(self.status.get("date") or "")

    @property
    def reason(self) -> str:
        """Why it ended, in words; empty for a search that runs or died, whose saved reason is out of date."""
        return str(self.status.get("reason") or "") if self.state in ENDED and self.state != DIED else ""

    @property
    def evaluate(self) -> list[str]:
        """The commands that evaluate the best prompt, one for each environment."""
        commands = self.status.get("evaluate")
        return [str(command) for command in commands] if isinstance(commands, list) else []

    @property
    def spent(self) -> int:
        """Calls that count against the budget."""
        saved = self.status.get("spent")
        known = int(saved) if isinstance(saved, int | float) else 0
        return max([known, *(record.calls_after for record in self.candidates)])

    @property
    def max_calls(self) -> int | None:
        limit = self.plan.max_calls if self.plan else self.config.get("max_calls")
        return int(limit) if isinstance(limit, int | float) else None

    @property
    def cost(self) -> float | None:
        """Dollars, rollouts and reflection together; None where no price is known."""
        dollars = self.status.get("cost")
        return float(dollars) if isinstance(dollars, int | float) else None

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
        """The command that continues it, where there is something to continue."""
        words = ["whet", "gepa", "run", "--resume", str(self.directory)]
        return shlex.join(words) if self.resumable else None


def open_search(run: str | Path) -> StoredSearch:
    """The search in a directory, or of that name below runs/.

    Raises `RunError` where there is none, and for a file of it that is damaged.
    """
    return _read(resolve(run, is_search, noun="search", made="that `whet gepa run` has made", commands="whet gepa"))


def find_searches(folder: Path = RUNS) -> list[StoredSearch]:
    """The searches directly below a folder, the newest first; one that is damaged has a `fault`.

    Raises `RunError` where there is no such folder.
    """
    check_folder(folder, "whet gepa")
    searches = [_read_as_far_as_possible(path) for path in folder.iterdir() if is_search(path)]
    return sorted(searches, key=lambda one: one.date, reverse=True)


def is_search(directory: Path) -> bool:
    """Whether `whet gepa run` has made this directory."""
    return any((directory / name).is_file() for name in (SEARCH_CONFIG, CANDIDATES))


def _read(directory: Path) -> StoredSearch:
    metadata = load_metadata(directory) or {}
    config = metadata.get("config")
    return StoredSearch(
        directory=directory,
        config=config if isinstance(config, Mapping) else {},
        status=metadata,
        state=state_of(directory, metadata),
        candidates=read_candidates(directory),
        plan=_part(SearchPlan, metadata, "plan", directory),
        confirmation=_part(Confirmation, metadata, "confirmation", directory),
    )


def _read_as_far_as_possible(directory: Path) -> StoredSearch:
    def read() -> StoredSearch:
        search = _read(directory)
        _ = search.environments, search.spent, search.max_calls, search.cost  # what the list says of it
        return search

    return as_far_as_possible(directory, read, lambda why: StoredSearch(directory, {}, {}, "unknown", (), fault=why))


def _part(kind: type[T], metadata: Mapping[str, Any], name: str, directory: Path) -> T | None:
    """A dataclass in `metadata.json`; None where it is not there. Raises `RunError` where it is something else."""
    value = metadata.get(name)
    if value is None:
        return None
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise RunError(
            f"{directory / METADATA}: {where}: {first['msg']}. `whet gepa run --resume {directory}` writes it again."
        ) from None


def headline(search: StoredSearch) -> tuple[str, str, Sureness]:
    """A verdict, what it means, and how good it is."""
    best, seed, confirmation = search.best, search.seed, search.confirmation
    if best is None or seed is None:
        return "Nothing is known yet:", "the seed prompt has not been validated.", "unsure"
    if best is seed and search.state != "finished":
        return "Not ended:", "so far no proposal was shown to be better than the seed prompt.", "unsure"
    if best is seed:
        return "The seed prompt stays:", "no proposal was shown to be better.", "unsure"
    if confirmation is None:
        return "Not confirmed:", f"candidate {best.number} was better on the examples it was chosen by.", "unsure"
    if confirmation.real:
        return f"Candidate {best.number} is better than the seed", "on examples that the search has never seen.", "good"
    if confirmation.high < 0:
        return f"Candidate {best.number} is worse than the seed", "on examples that the search has never seen.", "bad"
    return "This is not a difference:", "on examples that the search has never seen, it could be chance.", "unsure"


def confirmation_words(search: StoredSearch) -> Iterator[str]:
    """What was measured, a sentence each."""
    best, seed, confirmation = search.best, search.seed, search.confirmation
    if best is None or seed is None:
        return
    if best is not seed:
        yield (
            f"Validation: candidate {best.number} {number(best.val_mean)}, the seed {number(seed.val_mean)}. "
            "The winner owes part of this to having been chosen by it."
        )
    if confirmation is not None:
        yield held_out(confirmation)


def held_out(result: Confirmation) -> str:
    """The confirmation as a sentence."""
    what = (
        f"Held-out: over {result.pairs:,} examples the best prompt earned {number(result.best_mean)} and the seed "
        f"{number(result.seed_mean)}: a difference of {result.difference:+.3f}, "
        f"95 % interval {result.low:+.3f} to {result.high:+.3f}"
    )
    if result.real:
        return f"{what}, which is above 0."
    if result.high < 0:
        return f"{what}, which is below 0."
    return f"{what}, which includes 0: this is not a difference."


def tested(one: CandidateRecord) -> Iterator[str]:
    """How a candidate was tested, a fact each."""
    first = one.calls_before + 1
    yield f"Calls {first:,} to {one.calls_after:,}" if first <= one.calls_after else f"After {one.calls_after:,} calls"
    parent, own = one.minibatch.get("parent"), one.minibatch.get("candidate")
    if parent and own:
        yield f"on its minibatch {number(statistics.fmean(own))}, its parent {number(statistics.fmean(parent))}"
    if one.val_rewards:
        mean = number(statistics.fmean(one.val_rewards.values()))
        yield f"on {len(one.val_rewards):,} validation examples {mean}"
    if one.p_value is not None:
        yield f"p = {one.p_value:.3g} against its parent"
