"""The runs that a dashboard shows, wherever they are listed.

A `RunLibrary` says which runs there are, where their files are and what a viewer may see. All else is read from the
files by `data/`. A viewer is any value that the library's own `viewer_of(request)` returned: only the library looks
into it. Methods are called in threads, several at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

Viewer: TypeAlias = Any
RunKind = Literal["training", "sft", "evaluation", "search"]
RunState = Literal["queued", "starting", "running", "finished", "failed", "stopped", "unknown"]
What = Literal["adapter", "model", "checkpoint"]
"""What can be downloaded of a step."""
SHOWN: tuple[str, ...] = (
    *("id", "name", "kind", "state", "reason", "owner", "user", "model", "environments", "step", "max_steps"),
    *("reward", "submitted_at", "started_at", "ended_at", "updated_at"),
)
"""What an answer has of a run as it is."""
ENDED: frozenset[RunState] = frozenset({"finished", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class LibraryRun:
    """One run, as its library knows it now. Times are seconds since 1970; None and "" are unknown."""

    id: str
    """Part of URLs: letters, digits, `.`, `_` and `-`."""
    name: str
    kind: RunKind
    state: RunState
    directory: Path | None
    """Where its files are. None before there is a directory; then there is no data yet."""
    config_file: Path | None = None
    """The TOML that it was started with."""
    output_file: Path | None = None
    """What its process printed; shown as its log as long as it has none of its own."""
    process: tuple[int, str] | None = None
    """Id of its process on this machine, and when that began (`whet.system.children.began`)."""
    devices: tuple[str, ...] = ()
    """Indexes of the GPUs of this machine that it alone was given."""
    trusted: bool = False
    """Whether its config may name files of this machine that are read for it, such as the model's tokenizer."""
    by_client: bool = False
    """Whether its loop is the program of a client of the training API, so that it has no checkpoints here."""
    owner: str = ""
    user: str = ""
    model: str = ""
    base: str = ""
    """The name of the model that it began with on any machine; empty where others do not have it."""
    makes: tuple[What, ...] = ()
    """What `RunLibrary.make` makes of each whole checkpoint, where the run has not written it."""
    environments: tuple[str, ...] = ()
    reason: str = ""  # why it is in its state, in words
    step: int = 0
    max_steps: int | None = None
    reward: float | None = None  # the newest
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    updated_at: float | None = None  # when it last wrote
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the run in JSON: cost, attempts, what the viewer may do."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def view(self) -> dict[str, Any]:
        """As `GET /runs/{run}` answers it."""
        said = {name: getattr(self, name) for name in SHOWN}
        return {
            **said,
            "environments": list(self.environments),
            "has_files": self.directory is not None,
            **self.details,
        }


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are listed; the newest first."""

    kind: RunKind | None = None
    state: RunState | None = None
    owner: str | None = None
    search: str = ""  # in name, model, environments and owner, in any case
    limit: int = 50
    cursor: str | None = None  # what the list before ended with


@dataclass(frozen=True, slots=True)
class RunList:
    """A page of runs."""

    items: Sequence[LibraryRun]
    next: str | None = None


class RunLibrary(Protocol):
    """Where runs are listed."""

    def runs(self, viewer: Viewer, query: RunQuery) -> RunList:
        """Those that the viewer may see. Raises `DashboardError` for a cursor that is none."""

    def run(self, viewer: Viewer, id: str) -> LibraryRun:
        """One run. Raises `DashboardError` (`no_such`) where it does not exist, or may not be seen.

        A stream of events calls this from time to time, and ends when it raises.
        """

    def current(self) -> Sequence[LibraryRun]:
        """Every run that has not ended, and the few that ended a moment ago; of all owners.

        Called about once a second while any list of runs is watched. What is sent to a viewer goes through `sees`.
        """

    def look(self, id: str) -> LibraryRun | None:
        """A run as it is now, without regard to viewers; None where it is gone. Called once a second while watched."""

    def sees(self, viewer: Viewer, run: LibraryRun) -> bool:
        """Whether the viewer may see this run. Quick: called for each viewer and each run that is new to it."""

    def make(self, run: LibraryRun, step: int, what: What) -> AbstractContextManager[Path]:
        """A directory with one of `run.makes`, made of a checkpoint, for the length of the block.

        Raises `DashboardError` where there is no such checkpoint, or it cannot be made now.
        """
