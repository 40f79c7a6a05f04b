"""Positions and windows of a model in a GGUF file, as far as `transformers` (5.23) overlooks them.

It reads neither `rope.scaling` (but for gpt-oss) nor the tensors that divide frequencies, so a Llama 3.1 or a Phi with
a long context would turn positions by other angles than it was trained with, and nothing would say so. What the file
says is given to the config; what no config can say is refused. Sources: `gguf-py/gguf/constants.py` and
`convert_hf_to_gguf.py` of llama.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Rope
from whet.inference.decoding.functions import frequencies

_OVERLOOKED = ("llama", "mistral", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma3")
_SCALING = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "finetuned": None,
}
"""Keys below `rope.scaling`, and what configs call them."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of all releases of Llama from 3.1 on; files hold only what comes of it."""


def amend(config: Any, file: Path, fields: dict[str, Any]) -> None:
    """Give the `transformers` config of a GGUF file what it overlooked. Raises `ModelLoadError`."""
    architecture = str(fields.get("general.architecture"))
    if architecture not in _OVERLOOKED:
        return
    scaling = _scaling(file, fields, f"{architecture}.rope.scaling.")
    divisors = _divisors(file)
    if "rope_freqs.weight" in divisors:
        theta = float(config.rope_parameters["rope_theta"])
        scaling = _llama3(file, divisors["rope_freqs.weight"], theta)
    if architecture == "phi3":
        scaling |= _phi3(config, fields, divisors)
    if scaling:
        rope = config.rope_parameters
        (rope.get("full_attention") or rope).update(scaling)  # sliding layers of Gemma 3 are not stretched


def _scaling(file: Path, fields: dict[str, Any], at: str) -> dict[str, Any]:
    scaling = {name.removeprefix(at): value for name, value in fields.items() if name.startswith(at)}
    if scaling.get("type", "none") == "none":
        return {}
    if scaling["type"] not in ("linear", "yarn", "longrope") or (unknown := sorted(scaling.keys() - _SCALING.keys())):
        what = scaling["type"] if scaling["type"] not in ("linear", "yarn", "longrope") else ", ".join(unknown)
        raise ModelLoadError(f"{file}: rotary positions are scaled by {what}, which whet does not read from GGUF files")
    return {ours: scaling[theirs] for theirs, ours in _SCALING.items() if ours is not None and theirs in scaling}


def _divisors(file: Path) -> dict[str, Tensor]:
    """The tensors that divide frequencies, by name."""
    from gguf import GGUFReader

    return {
        one.name: torch.from_numpy(one.data.copy()).float()
        for one in GGUFReader(file).tensors
        if one.name.startswith(("rope_freqs", "rope_factors_"))
    }


def _llama3(file: Path, divisors_F: Tensor, theta: float) -> dict[str, Any]:
    """The settings that these divisors were computed from."""
    if bool((divisors_F == 1).all()):
        return {}
    dim, factor = 2 * len(divisors_F), float(divisors_F.max())
    plain = frequencies(Rope(theta, dim))
    llama3 = Rope(theta, dim, "llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
    if not torch.allclose(plain / frequencies(llama3), divisors_F, rtol=1e-4):
        raise ModelLoadError(
            f"{file}: its rope_freqs are not those of Llama 3.1, and no other scaling is read from them"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _phi3(config: Any, fields: dict[str, Any], divisors: dict[str, Tensor]) -> dict[str, Any]:
    """Fills in what is not below `rope` in a config of Phi-3."""
    settings: dict[str, Any] = {}
    if window := fields.get("phi3.attention.sliding_window"):
        config.sliding_window = int(window)
    if rotated := fields.get("phi3.rope.dimension_count"):
        settings["partial_rotary_factor"] = int(rotated) / (config.hidden_size // config.num_attention_heads)
    if original := fields.get("phi3.rope.scaling.original_context_length"):
        config.original_max_position_embeddings = int(original)
    if "rope_factors_short.weight" in divisors:  # the file names no type then
        settings["rope_type"] = "longrope"
        if attention_factor := fields.get("phi3.rope.scaling.attn_factor"):
            settings["attention_factor"] = float(attention_factor)
        for kind in ("short", "long"):
            settings[f"{kind}_factor"] = divisors[f"rope_factors_{kind}.weight"].tolist()
    return settings
