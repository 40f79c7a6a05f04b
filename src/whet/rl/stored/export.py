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
from whet.errors import ConfigError, ModelLoadError, RunError
from whet.inference.loading import check_model
from whet.inference.model_names import find_local, gguf_file, resolve_model
from whet.inference.weights.gguf_cache import source_of
from whet.records.directory import RUN_CONFIG
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import check_trainable, load_model, load_packed
from whet.rl.sections.algorithm import INITIAL
from whet.rl.storage.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import StoredTraining, open_run
from whet.system.files import expanded, replace_directory

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

    held = lora.base if lora is not None and format == "merged" else "dense"  # an adapter needs no values of its base
    loaded = load_model(model) if held == "dense" else load_packed(model, held, "cpu")
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


# A run that begins from another one: a checkpoint directory given as `model`, or as `[lora] path`.
#
#     model = "runs/other/checkpoints/step_20"         what was trained, an adapter added in, is the model to begin with
#     [lora] path = "runs/other/checkpoints/step_20"   the adapter is trained further, with a new optimiser
#
# A checkpoint holds what resuming needs, not what other programs load. So it is exported first, as `whet train export`
# does it, to `runs/other/exports/`, where it stays: a resumed run finds it there when the checkpoint is long gone.


def check_starting_point(model: str, lora: LoraConfig | None, reference: str | None = None) -> None:
    """See that the models of a run are there, as far as this is known without a download; imports no torch.

    Args:
        model: what is trained; a checkpoint is checked when it is exported.
        lora: `[lora]`, whose `path` is an adapter to begin with.
        reference: the model that `kl_coef` holds to, "initial", or None.

    Raises `ModelLoadError` or `ConfigError`.
    """
    if _checkpoint_named(model) is None and (directory := find_local(model)) is not None:
        check_trainable(directory)
    if reference is not None and reference != INITIAL:
        try:
            check_model(reference)
        except ModelLoadError as error:
            raise ModelLoadError(f"reference: {error}") from None
    if lora is not None and lora.path is not None and _checkpoint_named(lora.path) is None:
        try:
            adapter = find_local(lora.path)
        except ModelLoadError:
            raise ConfigError(
                f"[lora] path: there is no adapter directory {lora.path!r}. Give a directory with an "
                "adapter_config.json, or a checkpoint of a run with [lora]."
            ) from None
        if adapter is not None and not (adapter / "adapter_config.json").is_file():
            raise ConfigError(f"[lora] path: {adapter} is not an adapter: it has no adapter_config.json.")


def starting_model(model: str) -> str:
    """`model`, or where the checkpoint that it names has been exported to.

    Raises `RunError` for a checkpoint that cannot be trusted, and `ModelLoadError` where its base model is gone.
    """
    checkpoint = _checkpoint_named(model)
    if checkpoint is None:
        return model
    run, step = checkpoint
    return str(_exported(run, step, "merged" if open_run(run).config.get("lora") else "model"))


def starting_adapter(lora: LoraConfig | None) -> LoraConfig | None:
    """The same section, its `path` an adapter where it was a checkpoint. Raises what `starting_model` raises."""
    checkpoint = None if lora is None or lora.path is None else _checkpoint_named(lora.path)
    if lora is None or checkpoint is None:
        return lora
    run, step = checkpoint
    if not open_run(run).config.get("lora"):
        raise ConfigError(f"[lora] path: {lora.path} holds all weights and no adapter; give it as model instead")
    return lora.model_copy(update={"path": str(_exported(run, step, "peft"))})


def _checkpoint_named(name: str) -> tuple[Path, int] | None:
    """Run and step where `name` is (or was) a checkpoint directory of a run."""
    path = expanded(name).absolute()
    step = path.name.removeprefix("step_")
    run = path.parent.parent
    if path.parent.name != "checkpoints" or not step.isdigit() or not (run / RUN_CONFIG).is_file():
        return None
    return run, int(step)


def _exported(run: Path, step: int, kind: str) -> Path:
    target = run / "exports" / f"step_{step}-{kind}"
    if not target.is_dir():
        export_run(open_run(run), step=step, format=kind, to=target)
    return target
