"""One run as its directory describes it: whether a process holds it, how far it came, and how to continue it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.errors import RunError, WhetError
from whet.rl.config import RunConfig
from whet.rl.monitors.jsonl import EVALS, read_evaluations
from whet.rl.monitors.protocol import EvalReport
from whet.rl.storage.checkpoints import fault_of
from whet.rl.storage.run_directory import RunDirectory
from whet.rollouts.row_log import is_locked
from whet.system.files import read_lines

RUNS: Path = RunConfig.model_fields["runs_directory"].default
DIED = "died"
ENDED = ("finished", "failed", "interrupted", DIED)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run directory; files other than its config and status are read on demand."""

    path: Path
    config: dict[str, Any]
    status: dict[str, Any]
    state: str  # that of status.json; `died` where it says running and no process holds it; `unknown` without a status
    fault: str | None = None  # why its config or status cannot be read, where it is listed nevertheless

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.name)

    @property
    def model(self) -> str:
        return str(self.config.get("model", "?"))

    @property
    def imitates(self) -> str | None:
        """Of a run of `whet train sft`: the conversations that it learns from; None for reinforcement learning."""
        data = self.config.get("data")
        return str(data.get("path") or data.get("dataset")) if isinstance(data, Mapping) else None

    @property
    def environments(self) -> list[str]:
        """Those that are trained on, by their names in metrics; none where it imitates conversations."""
        sections = [env for env in self.config.get("env", ()) if isinstance(env, Mapping)]
        return [str(env.get("name") or Path(str(env.get("id", "?"))).name) for env in sections]

    @property
    def step(self) -> int:
        return int(self.status.get("step") or 0)

    @property
    def max_steps(self) -> int | None:
        steps = self.config.get("max_steps") or self.status.get("max_steps")
        return None if steps is None else int(steps)

    @property
    def when(self) -> str:
        """When it ended, or last gave a sign, in local time."""
        try:
            last = datetime.fromisoformat(str(self.status.get("ended") or self.status["heartbeat"]))
        except (KeyError, ValueError):
            last = datetime.fromtimestamp((self.path / "config.toml").stat().st_mtime).astimezone()
        return last.astimezone().replace(tzinfo=None).isoformat(sep=" ", timespec="minutes")

    @property
    def resume(self) -> str | None:
        """The command that continues it; None for a run that is going on, or done."""
        return f"whet train resume {self.path}" if self.state in ("failed", "interrupted", DIED) else None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one a step. Raises `RunError` for a damaged one."""
        path = RunDirectory(self.path).metrics
        return list(read_lines(path)) if path.is_file() else []

    def evaluations(self) -> list[EvalReport]:
        return read_evaluations(self.path / EVALS)

    def checkpoints(self) -> list[tuple[int, str | None]]:
        """(step, why it cannot be trusted or None), oldest first. Every file is read and hashed."""
        found = [path for path in RunDirectory(self.path).checkpoints.glob("step_*") if path.name[5:].isdigit()]
        return sorted((int(path.name[5:]), fault_of(path)) for path in found)


def open_run(run: str | Path) -> StoredRun:
    """The run in a directory, or of that name below runs/. Raises `RunError` where there is none."""
    for path in (Path(run), RUNS / run):
        if (path / "config.toml").is_file():
            return _read(path)
    here = sorted(path.parent.name for path in RUNS.glob("*/config.toml"))
    near = difflib.get_close_matches(str(run), here, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "`whet train list` shows what there is."
    raise RunError(f"there is no run {str(run)!r}: neither a directory with a config.toml nor a run in {RUNS}/. {hint}")


def find_runs(folder: Path = RUNS) -> list[StoredRun]:
    """The runs directly below a folder, the latest sign of life first.

    One whose config or status cannot be read has a `fault` instead of them. Raises `RunError` where there is no such
    folder.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder. `whet train run` makes {RUNS}/; name yours.")
    found = [_read_as_far_as_possible(path.parent) for path in folder.glob("*/config.toml")]
    return sorted(found, key=lambda run: run.when, reverse=True)


def _read_as_far_as_possible(path: Path) -> StoredRun:
    try:
        return _read(path)
    except WhetError as error:
        return StoredRun(path, {}, {}, "unreadable", str(error))


def _read(path: Path) -> StoredRun:
    status: Any = {}
    try:
        status = json.loads(RunDirectory(path).status.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise RunError(
            f"{RunDirectory(path).status}: not JSON ({error}). Remove it; the run resumes without it."
        ) from None
    status = status if isinstance(status, dict) else {}
    return StoredRun(path, read_toml(path / "config.toml"), status, state_of(path, status))


def state_of(path: Path, status: Mapping[str, Any]) -> str:
    """What `status.json` says, unless it says that the run goes on and its lock is free: then its process is gone."""
    said = str(status.get("state", "unknown"))
    return DIED if said not in ("unknown", *ENDED) and not is_locked(path) else said
