"""The runs below a folder: evaluations, training runs and searches for prompts, listed without reading a rollout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from whet.errors import RunError, WhetError
from whet.records.directory import (
    CANDIDATES,
    METADATA,
    RESULTS,
    ROLLOUTS,
    RUN_CONFIG,
    SEARCH_CONFIG,
    STATUS,
    load_metadata,
)
from whet.records.files import SUFFIX
from whet.records.lock import evaluation_state, is_locked
from whet.records.stored import environment_names, read_status
from whet.system.files import read_lines

NOT_ENTERED = frozenset({"node_modules", "__pycache__", "checkpoints", "adapters", "model", "site-packages"})
DEEPEST = 6
PASSED = 0.5
"""Reward from which a rollout counts as passed where the evaluation does not say."""
SourceKind = Literal["evaluation", "training", "search"]


@dataclass(frozen=True, slots=True)
class RunSource:
    """An evaluation, a training run, or a search for better prompts."""

    path: Path  # its directory, or the file that was named
    kind: SourceKind
    rollouts: Path  # the file or directory of its rollouts
    environment: str = ""  # several are joined by ", "; "" where unknown
    model: str = ""
    date: str = ""  # when it ended or last wrote, as "2026-11-21T14:04:00" in local time
    state: str = ""  # of an evaluation finished, running or unfinished; of a run what its status.json says
    count: int | None = None  # rollouts, where that is known
    reward: float | None = None  # mean
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)  # metadata.json, or config.toml
    note: str | None = None  # what could not be read, in a line

    @property
    def passed(self) -> float:
        """Reward from which a rollout counts as passed."""
        threshold = self.metadata.get("pass_threshold")
        return float(threshold) if isinstance(threshold, int | float) else PASSED


def source_at(path: Path) -> RunSource:
    """The run at a path. Raises `RunError` where there is none, with the paths that can be named."""
    directory = path
    if path.is_file():
        if path.name == METADATA:
            return source_at(path.parent)
        if path.suffix != SUFFIX:
            raise RunError(f"{path}: not a file of rollouts; name a {RESULTS}, or a file in a run's {ROLLOUTS}/.")
        directory = path.parent
    elif not path.exists():
        raise RunError(f"{path}: there is no such file or directory. `whet view` without a path shows what there is.")
    within = directory.name == ROLLOUTS
    run = directory.parent if within else directory
    if (run / SEARCH_CONFIG).is_file() and (within or path.is_dir()):
        return _search(run, path, path if path.is_file() else run / ROLLOUTS / RESULTS)
    if (run / RUN_CONFIG).is_file() and (within or (path.is_dir() and not (path / RESULTS).exists())):
        return _run(run, path, path if within else run / ROLLOUTS)
    if path.is_file() or (path / RESULTS).exists() or (path / METADATA).exists():
        return _evaluation(directory, path, path if path.is_file() else path / RESULTS)
    raise RunError(
        f"{path}: neither an evaluation ({RESULTS}), nor a training run ({RUN_CONFIG}), nor a search "
        f"({SEARCH_CONFIG}) is in this directory. "
        "Name one that is, or start `whet view` without a path to choose."
    )


FOLDERS = (Path("outputs/evals"), Path("runs"))
"""Where `whet eval run`, `whet train run` and `whet gepa run` write, by default."""


def run_folders(path: Path | None) -> list[Path] | None:
    """The folders to look below for runs where a path names several; None where it names one run.

    Without a path: the usual folders here. Raises `RunError` where there is nothing to show.
    """
    if path is None:
        folders = [folder for folder in FOLDERS if folder.is_dir()]
        if not folders:
            here = " nor ".join(map(str, FOLDERS))
            raise RunError(
                f"there is neither {here} here. `whet eval run` and `whet train run` make them; or name yours: "
                "whet view PATH"
            )
        return folders
    if not path.is_dir():
        return None
    try:
        source_at(path)
    except RunError:
        if find_sources(path):
            return [path]
        raise RunError(
            f"{path}: no evaluation and no run in it, nor below it. Name the directory of one, its {RESULTS}, or a "
            "folder with some."
        ) from None
    return None


def find_sources(folder: Path) -> list[RunSource]:
    """The evaluations, training runs and searches below a folder, newest first.

    Raises `RunError` where there is no such folder. Hidden directories, and those that never hold any, are left out.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder.")
    made = {"search": _search, "evaluation": _evaluation, "training": _run}
    rollouts = {"search": Path(ROLLOUTS, RESULTS), "evaluation": Path(RESULTS), "training": Path(ROLLOUTS)}
    sources = [
        made[kind](path, path, path / rollouts[kind])
        for path, kind in run_directories(folder)
        if kind != "training" or (path / ROLLOUTS).is_dir()
    ]
    return sorted(sources, key=lambda source: source.date, reverse=True)


def runs_below(folders: Iterable[Path]) -> list[RunSource]:
    """What `find_sources` finds in several folders, newest first; a folder that was removed meanwhile has nothing."""
    sources = [source for folder in folders if folder.is_dir() for source in find_sources(folder)]
    return sorted(sources, key=lambda source: source.date, reverse=True)


def run_directories(folder: Path) -> Iterator[tuple[Path, SourceKind]]:
    """The directories of evaluations, training runs and searches below a folder; nothing in them is read.

    Training without rollouts is one too: of `whet train sft`, or before the first step. Links are not followed.
    """
    top = len(folder.parts)
    for directory, folders, files in os.walk(folder):
        here = Path(directory)
        if SEARCH_CONFIG in files:
            yield here, "search"
            folders.clear()
        elif RESULTS in files:
            yield here, "evaluation"
        elif RUN_CONFIG in files and (ROLLOUTS in folders or STATUS in files):
            yield here, "training"
            folders.clear()
        if len(here.parts) - top >= DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in NOT_ENTERED)


def _evaluation(directory: Path, path: Path, rollouts: Path) -> RunSource:
    metadata, note = _metadata(directory) if path == directory or path.name == RESULTS else (None, None)
    known = metadata or {}
    count = _integer(known.get("num_examples")) * _integer(known.get("rollouts_per_example"))
    return RunSource(
        path=path,
        kind="evaluation",
        rollouts=rollouts,
        environment=_text(known.get("env_id")),
        model=_text(known.get("model")),
        date=_text(known.get("date")) or _modified(rollouts),
        state="" if metadata is None else evaluation_state(directory, metadata),
        count=count or None,
        reward=_number(known.get("avg_reward")),
        metadata=known,
        note=note,
    )


def _run(directory: Path, path: Path, rollouts: Path) -> RunSource:
    from whet.config import read_toml  # brings pydantic, which an evaluation does not need

    config: dict[str, Any] = {}
    known: dict[str, Any] = {}
    note = None
    try:
        config = read_toml(directory / RUN_CONFIG)
        known = read_status(directory)
    except (WhetError, OSError, ValueError) as error:
        note = str(error)
    return RunSource(
        path=path,
        kind="training",
        rollouts=rollouts,
        environment=", ".join(environment_names(config)),
        model=_text(config.get("model")),
        date=_local(_text(known.get("ended")) or _text(known.get("heartbeat"))) or _modified(rollouts),
        state=_text(known.get("state")),
        metadata=config,
        note=note,
    )


def _search(directory: Path, path: Path, rollouts: Path) -> RunSource:
    metadata, note = _metadata(directory)
    known = metadata or {}
    config: Mapping[str, Any] = section if isinstance(section := known.get("config"), Mapping) else {}
    best = known.get("best")
    state = _text(known.get("state"))
    return RunSource(
        path=path,
        kind="search",
        rollouts=rollouts,
        environment=", ".join(environment_names(config)),
        model=_text(config.get("model")),
        date=_text(known.get("date")) or _modified(rollouts),
        state="unfinished" if state == "running" and not is_locked(directory) else state,
        count=_integer(known.get("spent")) or None,
        reward=_number(best.get("val_mean")) if isinstance(best, Mapping) else None,
        metadata=known,
        note=note,
    )


def _metadata(directory: Path) -> tuple[dict[str, Any] | None, str | None]:
    """What metadata.json says, None where there is none; and why it cannot be read."""
    try:
        return load_metadata(directory), None
    except (WhetError, OSError) as error:
        return None, str(error)


def candidate_names(source: RunSource) -> dict[str, str]:
    """The names of a search's candidates, by id: `3 accepted`. Other lines are skipped."""
    if source.kind != "search":
        return {}
    directory = source.rollouts.parent.parent
    accepted: dict[str, str] = {}
    others: dict[str, str] = {}  # texts may be proposed again: the last of them
    with contextlib.suppress(OSError, WhetError):
        for row in read_lines(directory / CANDIDATES):
            id, verdict = _text(row.get("id")), _text(row.get("verdict"))
            (others if verdict == "rejected" else accepted)[id] = f"{_integer(row.get('number'))} {verdict}"
    return {**others, **accepted}


def _local(date: str) -> str:
    try:
        return datetime.fromisoformat(date).astimezone().replace(tzinfo=None).isoformat(timespec="seconds")
    except ValueError:
        return ""


def _modified(path: Path) -> str:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime).isoformat(timespec="seconds")
    except OSError:
        return ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
