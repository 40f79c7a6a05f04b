"""Export a checkpoint in the formats that other programs load: a PEFT adapter, a whole model, or a GGUF file of either.

No optimiser and no gradients: the model is loaded once, the saved weights are put in, and written out again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from whet.config import validate
from whet.errors import ConfigError, RunError
from whet.inference.model_names import gguf_file, resolve_model
from whet.inference.weights.gguf_cache import source_of
from whet.records.directory import RUN_CONFIG
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import load_model
from whet.rl.storage.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import StoredTraining
from whet.system.files import replace_directory

if TYPE_CHECKING:
    from whet.rl.learner.weights import Weights

Format = Literal["peft", "model", "merged", "gguf"]


def export_checkpoint(
    model: Path,
    lora: LoraConfig | None,
    checkpoint: Path,
    target: Path,
    format: Format,
    metadata_from: Path | None = None,
    dtype: str = "float32",
) -> Path:
    """Write the weights of `checkpoint`, trained from `model`, to `target`; returns it.

    `peft`: the adapter, for `peft`. `model` (all weights were trained) and `merged` (an adapter added in): a whole
    model, for `transformers`, these three in `dtype`. `gguf`: the adapter, or the whole model where all weights were
    trained, for llama.cpp; a whole model's tokenizer comes from the GGUF file `metadata_from`, or from the one that
    `model` was read from. Raises `ConfigError` for a format that the run's weights do not have.
    """
    if format == "gguf":
        return _export_gguf(model, lora, checkpoint, target, metadata_from)
    if lora is None and format != "model":
        raise ConfigError(f"--format {format} is for runs with [lora]; this one trained all weights: --format model")
    if lora is not None and format == "model":
        raise ConfigError("--format model is for runs that trained all weights; with [lora]: peft, or merged")
    import torch

    loaded = load_model(model)
    weights: Weights
    if lora is None:
        from whet.rl.learner.weights import FullWeights

        weights = FullWeights(loaded, model, torch.float32)
    else:
        from whet.rl.learner.lora import LoraWeights

        # What it began with is in the checkpoint, and need not be there any more.
        weights = LoraWeights(loaded, model, lora.model_copy(update={"path": None}))
    weights.load(checkpoint)
    write = weights.export_merged if format == "merged" else weights.export
    return replace_directory(target, lambda directory: write(directory, getattr(torch, dtype)))


def _export_gguf(
    model: Path, lora: LoraConfig | None, checkpoint: Path, target: Path, metadata_from: Path | None
) -> Path:
    from whet.inference.weights.gguf_export import check_writable, find_metadata, write_gguf, write_gguf_adapter

    if lora is not None and metadata_from is not None:
        raise ConfigError("--metadata-from is for whole models: the GGUF file of an adapter has no tokenizer.")
    check_writable(model)
    if lora is None:
        metadata_from = find_metadata(model, metadata_from)
    with tempfile.TemporaryDirectory(prefix="whet-export-") as folder:
        weights = Path(folder) / "weights"
        if lora is None:
            export_checkpoint(model, None, checkpoint, weights, "model")
            write_gguf(weights, target, metadata_from)
        else:
            export_checkpoint(model, lora, checkpoint, weights, "peft")
            write_gguf_adapter(weights, model, target)
    return target


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """What was written, and how to try it."""

    saved: Path
    step: int
    format: str
    next_command: str | None


def export_run(
    run: StoredTraining,
    *,
    step: int | None,
    format: str | None,
    to: Path | None,
    overwrite: bool = False,
    metadata_from: Path | None = None,
) -> ExportedCheckpoint:
    """Write a checkpoint (the newest that is whole if `step` is None) as `format`.

    If that is None, it is `gguf` where `to` ends in .gguf, and else the run's own kind.

    Raises `RunError` where there is no such checkpoint or the target exists, `ConfigError` for a format that does not
    fit, `ModelLoadError` where the model that the run began with is gone.
    """
    section: Mapping[str, Any] | None = run.config.get("lora")
    lora = None if section is None else validate(LoraConfig, section, f"{run.directory / RUN_CONFIG}, [lora]")
    is_file = to is not None and to.suffix == ".gguf"
    chosen = format or ("gguf" if is_file else "model" if lora is None else "peft")
    if chosen not in get_args(Format):
        raise ConfigError(f"--format {chosen!r}: it is one of {', '.join(get_args(Format))}.")
    if to is not None and is_file != (chosen == "gguf"):
        raise ConfigError(
            f"--to {to}: --format gguf writes a file whose name ends in .gguf, every other format a directory."
        )
    if metadata_from is not None and chosen != "gguf":
        raise ConfigError(f"--metadata-from is for --format gguf, this is {chosen}.")
    checkpoint = _checkpoint(run, step)
    target = to or run.directory / "exports" / f"step_{checkpoint.step}{_ending(chosen, lora)}"
    if target.exists() and not overwrite:
        raise RunError(f"{target} is there already. Replace it with --overwrite, or name another with --to.")
    if target.exists() and target.is_dir() != (chosen != "gguf"):
        kind = "directory" if target.is_dir() else "file"
        raise RunError(f"{target} is a {kind}, which this export does not replace. Name another with --to.")
    base = resolve_model(run.model)
    if chosen == "gguf" and lora is None:
        metadata_from = metadata_from or gguf_file(run.model)
    dtype = run.config.get("checkpointing", {}).get("export_dtype", "float32")
    try:
        export_checkpoint(base, lora, checkpoint.path, target, cast(Format, chosen), metadata_from, dtype)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None
    return ExportedCheckpoint(target, checkpoint.step, chosen, _next_command(run, base, target, chosen, lora))


def _ending(format: str, lora: LoraConfig | None) -> str:
    if format != "gguf":
        return f"-{format}"
    return ".gguf" if lora is None else "-adapter.gguf"


def _next_command(run: StoredTraining, base: Path, target: Path, format: str, lora: LoraConfig | None) -> str | None:
    """How to try what was written: whet reads all of it but the GGUF file of an adapter."""
    if format == "gguf" and lora is not None:
        whole = gguf_file(run.model) or source_of(base)
        return None if whole is None else f"llama-cli -m {whole} --lora {target}"
    environment = next(iter(run.environments), None)
    return None if environment is None else f"whet eval run {environment} -m {target}"


def _checkpoint(run: StoredTraining, step: int | None) -> Checkpoint:
    root = RunDirectory(run.directory).checkpoints
    if step is not None:
        return load_checkpoint(root, step)
    checkpoint, passed_over = newest_checkpoint(root)
    if checkpoint is None:
        why = "\n".join(passed_over) if passed_over else f"{root} has none yet."
        raise RunError(f"{run.directory}: there is no checkpoint to export. {why}")
    return checkpoint
