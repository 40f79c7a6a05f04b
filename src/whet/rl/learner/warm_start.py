"""A LoRA adapter that begins as another one ended: a PEFT directory read into the layers that are to be trained.

The adapter has to be what `[lora]` describes; nothing of it is left out and nothing is filled in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peft import get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file

from whet.errors import ConfigError, ModelLoadError
from whet.rl.learner.config import LoraConfig

BEYOND_LORA = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters")
"""Settings of a PEFT adapter that `[lora]` has no words for."""


def begin_with(model: Any, directory: Path, config: LoraConfig) -> None:
    """Fill the adapter of a PEFT `model` from `directory`.

    Raises `ModelLoadError` where the files cannot be read, and `ConfigError` where the adapter is of another kind or
    shape than `config` says.
    """
    described = _read_config(directory)
    beyond = [name for name in BEYOND_LORA if described.get(name)]
    if described.get("peft_type") != "LORA" or described.get("bias", "none") != "none" or beyond:
        what = ", ".join(beyond) or f"peft_type {described.get('peft_type')!r}, bias {described.get('bias')!r}"
        raise ConfigError(
            f"[lora] path: {directory} is not a plain LoRA adapter ({what}), and only those are trained on."
        )
    theirs = {"rank": described.get("r"), "alpha": described.get("lora_alpha")}
    wrong = [f"{name} = {value}" for name, value in theirs.items() if value != getattr(config, name)]
    targets = described.get("target_modules")
    if not isinstance(targets, list) or set(targets) != set(config.target_modules):
        wrong.append(f"target_modules = {json.dumps(sorted(targets) if isinstance(targets, list) else targets)}")
    if wrong:
        raise ConfigError(f"[lora] path: {directory} is an adapter of another shape. Set {', '.join(wrong)}.")
    try:
        tensors = load_file(directory / SAFETENSORS_WEIGHTS_NAME)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{directory / SAFETENSORS_WEIGHTS_NAME}: cannot read the adapter: {error}") from None
    expected = {name: tuple(tensor.shape) for name, tensor in get_peft_model_state_dict(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        first = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ConfigError(
            f"[lora] path: {directory} was trained on another model: {first} is {found.get(first, 'absent')} there and "
            f"{expected.get(first, 'absent')} here."
        )
    set_peft_model_state_dict(model, tensors)


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "adapter_config.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"[lora] path: {directory} is not an adapter: it has no adapter_config.json.") from None
    except ValueError as error:
        raise ModelLoadError(f"{path} is torn ({error}); export the adapter again") from None
    if not isinstance(described, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object; export the adapter again")
    return described
