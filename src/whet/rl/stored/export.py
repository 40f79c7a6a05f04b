"""Export a checkpoint in the formats that other programs load: a PEFT adapter, or a whole model.

No optimiser and no gradients: the model is loaded once, the saved weights are put in, and written out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from whet.config import validate
from whet.errors import ConfigError, RunError
from whet.inference.model_names import resolve_model
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import load_model
from whet.rl.storage.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import StoredTraining
from whet.system.files import replace_directory

if TYPE_CHECKING:
    from whet.rl.learner.weights import Weights

Format = Literal["peft", "model", "merged"]


def export_checkpoint(model: Path, lora: LoraConfig | None, checkpoint: Path, target: Path, format: Format) -> Path:
    """Write the weights of `checkpoint`, trained from `model`, to the directory `target`; returns it.

    `peft`: the adapter, for `peft`. `model` (all weights were trained) and `merged` (an adapter added in): a whole
    model, for `transformers`. Raises `ConfigError` for a format that the run's weights do not have.
    """
    if lora is None and format != "model":
        raise ConfigError(f"--format {format} is for runs with [lora]; this one trained all weights: --format model")
    if lora is not None and format == "model":
        raise ConfigError("--format model is for runs that trained all weights; with [lora]: peft, or merged")
    loaded = load_model(model)
    weights: Weights
    if lora is None:
        import torch

        from whet.rl.learner.weights import FullWeights

        weights = FullWeights(loaded, model, torch.float32)
    else:
        from whet.rl.learner.lora import LoraWeights

        # What it began with is in the checkpoint, and need not be there any more.
        weights = LoraWeights(loaded, model, lora.model_copy(update={"path": None}))
    weights.load(checkpoint)
    write = weights.export_merged if format == "merged" else weights.export
    return replace_directory(target, lambda directory: write(directory, None))


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """What was written, and how to try it."""

    saved: Path
    step: int
    format: str
    next_command: str | None


def export_run(
    run: StoredTraining, *, step: int | None, format: str | None, to: Path | None, overwrite: bool = False
) -> ExportedCheckpoint:
    """Write a checkpoint (the newest that is whole if `step` is None) as `format` (the run's own kind if None).

    Raises `RunError` where there is no such checkpoint or the target exists, `ConfigError` for a format that does not
    fit, `ModelLoadError` where the model that the run began with is gone.
    """
    section: Mapping[str, Any] | None = run.config.get("lora")
    lora = None if section is None else validate(LoraConfig, section, f"{run.directory / 'config.toml'}, [lora]")
    chosen = format or ("model" if lora is None else "peft")
    if chosen not in get_args(Format):
        raise ConfigError(f"--format {chosen!r}: it is one of {', '.join(get_args(Format))}.")
    checkpoint = _checkpoint(run, step)
    target = to or run.directory / "exports" / f"step_{checkpoint.step}-{chosen}"
    if target.exists() and not overwrite:
        raise RunError(f"{target} is there already. Replace it with --overwrite, or name another with --to.")
    export_checkpoint(resolve_model(run.model), lora, checkpoint.path, target, cast(Format, chosen))
    environment = next(iter(run.environments), None)
    next_command = None if environment is None else f"whet eval run {environment} -m {target}"
    return ExportedCheckpoint(target, checkpoint.step, chosen, next_command)


def _checkpoint(run: StoredTraining, step: int | None) -> Checkpoint:
    root = RunDirectory(run.directory).checkpoints
    if step is not None:
        return load_checkpoint(root, step)
    checkpoint, passed_over = newest_checkpoint(root)
    if checkpoint is None:
        why = "\n".join(passed_over) if passed_over else f"{root} has none yet."
        raise RunError(f"{run.directory}: there is no checkpoint to export. {why}")
    return checkpoint
