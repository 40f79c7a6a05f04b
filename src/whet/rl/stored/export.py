"""Which checkpoint of a run to export, and where to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from whet.config import validate
from whet.errors import ConfigError, RunError
from whet.inference.loading import resolve_model
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.export import Format, export_checkpoint
from whet.rl.storage.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import StoredRun


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and how to try it."""

    saved: Path
    step: int
    format: str
    next_command: str | None


def export_run(
    run: StoredRun, *, step: int | None, format: str | None, to: Path | None, overwrite: bool = False
) -> Exported:
    """Write a checkpoint (the newest that is whole if `step` is None) as `format` (the run's own kind if None).

    Raises `RunError` where there is no such checkpoint or the target exists, `ConfigError` for a format that does not
    fit, `ModelLoadError` where the model that the run began with is gone.
    """
    section: Mapping[str, Any] | None = run.config.get("lora")
    lora = None if section is None else validate(LoraConfig, section, f"{run.path / 'config.toml'}, [lora]")
    chosen = format or ("model" if lora is None else "peft")
    if chosen not in get_args(Format):
        raise ConfigError(f"--format {chosen!r}: it is one of {', '.join(get_args(Format))}.")
    checkpoint = _checkpoint(run, step)
    target = to or run.path / "exports" / f"step_{checkpoint.step}-{chosen}"
    if target.exists() and not overwrite:
        raise RunError(f"{target} is there already. Replace it with --overwrite, or name another with --to.")
    export_checkpoint(resolve_model(run.model), lora, checkpoint.path, target, cast(Format, chosen))
    environment = next(iter(run.environments), None)
    next_command = None if environment is None else f"whet eval run {environment} -m {target}"
    return Exported(target, checkpoint.step, chosen, next_command)


def _checkpoint(run: StoredRun, step: int | None) -> Checkpoint:
    root = RunDirectory(run.path).checkpoints
    if step is not None:
        return load_checkpoint(root, step)
    checkpoint, passed_over = newest_checkpoint(root)
    if checkpoint is None:
        why = "\n".join(passed_over) if passed_over else f"{root} has none yet."
        raise RunError(f"{run.path}: there is no checkpoint to export. {why}")
    return checkpoint
