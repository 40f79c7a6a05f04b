"""A run that begins where another one was: a checkpoint directory given as `model`, or as `[lora] path`.

    model = "runs/other/checkpoints/step_20"          what was trained, an adapter added in, is the model to begin with
    [lora] path = "runs/other/checkpoints/step_20"    the adapter goes on, with a new optimiser

A checkpoint holds what resuming needs, not what other programs load. So it is exported first, as `whet train export`
does it, to `runs/other/exports/`, where it stays: a resumed run finds it there when the checkpoint is long gone.
"""

from __future__ import annotations

from pathlib import Path

from whet.errors import ConfigError
from whet.rl.learner.config import LoraConfig
from whet.rl.stored.export import export_run
from whet.rl.stored.stored_run import open_run


def starting_model(model: str) -> str:
    """`model`, or where the checkpoint that it names has been exported to.

    Raises `RunError` for a checkpoint that cannot be trusted, and `ModelLoadError` where its base model is gone.
    """
    found = _checkpoint(model)
    if found is None:
        return model
    run, step = found
    return str(_exported(run, step, "merged" if open_run(run).config.get("lora") else "model"))


def starting_adapter(lora: LoraConfig | None) -> LoraConfig | None:
    """The same section, its `path` an adapter where it was a checkpoint. Raises what `starting_model` raises."""
    found = None if lora is None or lora.path is None else _checkpoint(lora.path)
    if lora is None or found is None:
        return lora
    run, step = found
    if not open_run(run).config.get("lora"):
        raise ConfigError(f"[lora] path: {lora.path} holds all weights and no adapter; give it as model instead")
    return lora.model_copy(update={"path": str(_exported(run, step, "peft"))})


def _checkpoint(name: str) -> tuple[Path, int] | None:
    """Run and step where `name` is (or was) a checkpoint directory of a run."""
    path = Path(name).expanduser().absolute()
    step = path.name.removeprefix("step_")
    run = path.parent.parent
    if path.parent.name != "checkpoints" or not step.isdigit() or not (run / "config.toml").is_file():
        return None
    return run, int(step)


def _exported(run: Path, step: int, kind: str) -> Path:
    target = run / "exports" / f"step_{step}-{kind}"
    if not target.is_dir():
        export_run(open_run(run), step=step, format=kind, to=target)
    return target
