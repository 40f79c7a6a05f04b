"""A run that begins from another one: a checkpoint directory given as `model`, or as `[lora] path`.

    model = "runs/other/checkpoints/step_20"          what was trained, an adapter added in, is the model to begin with
    [lora] path = "runs/other/checkpoints/step_20"    the adapter is trained further, with a new optimiser

A checkpoint holds what resuming needs, not what other programs load. So it is exported first, as `whet train export`
does it, to `runs/other/exports/`, where it stays: a resumed run finds it there when the checkpoint is long gone.
"""

from __future__ import annotations

from pathlib import Path

from whet.errors import ConfigError, ModelLoadError
from whet.inference.loading import check_model
from whet.inference.model_names import find_local
from whet.records.directory import RUN_CONFIG
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import check_trainable
from whet.rl.sections.algorithm import INITIAL
from whet.rl.stored.export import export_run
from whet.rl.stored.stored_run import open_run


def check_starting_point(model: str, lora: LoraConfig | None, reference: str | None = None) -> None:
    """See that the models of a run are there, as far as this is known without a download; imports no torch.

    Args:
        model: what is trained; a checkpoint is checked when it is exported.
        lora: `[lora]`, whose `path` is an adapter to begin with.
        reference: the model that `kl_coef` holds to, "initial", or None.

    Raises `ModelLoadError` or `ConfigError`.
    """
    if _checkpoint(model) is None and (directory := find_local(model)) is not None:
        check_trainable(directory)
    if reference is not None and reference != INITIAL:
        try:
            check_model(reference)
        except ModelLoadError as error:
            raise ModelLoadError(f"[algorithm] reference: {error}") from None
    if lora is not None and lora.path is not None and _checkpoint(lora.path) is None:
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
    checkpoint = _checkpoint(model)
    if checkpoint is None:
        return model
    run, step = checkpoint
    return str(_exported(run, step, "merged" if open_run(run).config.get("lora") else "model"))


def starting_adapter(lora: LoraConfig | None) -> LoraConfig | None:
    """The same section, its `path` an adapter where it was a checkpoint. Raises what `starting_model` raises."""
    checkpoint = None if lora is None or lora.path is None else _checkpoint(lora.path)
    if lora is None or checkpoint is None:
        return lora
    run, step = checkpoint
    if not open_run(run).config.get("lora"):
        raise ConfigError(f"[lora] path: {lora.path} holds all weights and no adapter; give it as model instead")
    return lora.model_copy(update={"path": str(_exported(run, step, "peft"))})


def _checkpoint(name: str) -> tuple[Path, int] | None:
    """Run and step where `name` is (or was) a checkpoint directory of a run."""
    path = Path(name).expanduser().absolute()
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
