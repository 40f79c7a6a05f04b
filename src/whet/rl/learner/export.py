"""A checkpoint's weights in the formats that other programs load: a PEFT adapter, or a whole model.

No optimiser and no gradients: the model is loaded once, the saved weights are put in, and written out again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whet.errors import ConfigError
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.make import load_model
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
