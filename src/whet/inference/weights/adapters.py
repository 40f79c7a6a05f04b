"""LoRA adapters: read from the directories that PEFT writes, merged onto a model, or packed to be served with it.

Supported is what `peft` calls plain LoRA on linear layers: any rank and alpha, also by module (`rank_pattern`,
`alpha_pattern`), and rank-stabilised scaling; dropout is for training and ignored. An adapter that is more than that is
refused by name, because it would be computed wrongly. Which rows of a batch use which adapter: `adapter_rows.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture, read_json
from whet.inference.model_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from whet.inference.weights.model_weights import FusedPart, Fusion, fusions, gain
from whet.inference.weights.safetensors_files import NamedWeights, read_safetensors

UNEMBEDDING = "lm_head"
_PREFIX = "base_model.model."
_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "fan_in_fan_out",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "lora_bias",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "kasa_config",
)
_BASE_KEEPING = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""Initialisations that leave the base weights as they are; after others (PiSSA, OLoRA, CorDA, ...) the adapter belongs
to a changed base."""


class LowRank(NamedTuple):
    """What an adapter adds to one linear layer: scaling * up @ down, in float32."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r]
    scaling: float


Adapter: TypeAlias = dict[str, LowRank]
"""By the name of the layer in the base model, such as `model.layers.0.self_attn.q_proj`."""


def read_adapter(directory: Path, *, allowed: Collection[str] = ()) -> Adapter:
    """The matrices of a PEFT adapter directory. Raises `ModelLoadError` for what is missing, torn or not plain LoRA.

    `allowed` are settings beyond plain LoRA that the caller takes care of.
    """
    path = directory / ADAPTER_CONFIG
    config = read_json(path, "an adapter")
    _refuse_unsupported(config, path, allowed)
    tensors = read_safetensors([directory / ADAPTER_WEIGHTS])
    adapter: Adapter = {}
    for name, down in tensors.items():
        if name.endswith((".lora_B.weight", ".base_layer.weight")):  # peft adds the base's unembedding to its adapter
            continue
        if not name.endswith(".lora_A.weight"):
            raise ModelLoadError(f"{directory}: {name!r} is not a LoRA matrix of a linear layer; {_ONLY_PLAIN}")
        module = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        up = tensors.get(name.replace(".lora_A.", ".lora_B."))
        if up is None:
            raise ModelLoadError(f"{directory}: {module!r} has a lora_A matrix and no lora_B; export the adapter again")
        if down.dim() != 2 or up.dim() != 2 or up.shape[1] != down.shape[0]:
            raise ModelLoadError(f"{directory}: the two matrices of {module!r} do not fit together")
        down, up = down.to(torch.float32), up.to(torch.float32)
        if not (down.isfinite().all() and up.isfinite().all()):
            raise ModelLoadError(f"{directory}: the matrices of {module!r} have values that are not finite")
        adapter[module] = LowRank(down, up, _scaling(config, path, module, down.shape[0]))
    if not adapter:
        raise ModelLoadError(f"{directory} holds no LoRA matrices; export the adapter again")
    return adapter


_ONLY_PLAIN = "the embedded engine runs plain LoRA adapters"


def _refuse_unsupported(config: Mapping[str, Any], path: Path, allowed: Collection[str]) -> None:
    kind, start = config.get("peft_type", "LORA"), config.get("init_lora_weights")
    reasons = [str(kind)] if kind != "LORA" else [key for key in _UNSUPPORTED if config.get(key) and key not in allowed]
    if config.get("bias", "none") != "none":
        reasons.append("bias")
    if start not in _BASE_KEEPING:
        reasons.append(f"init_lora_weights = {start!r}, which changes the base model")
    if reasons:
        raise ModelLoadError(f"{path}: {_ONLY_PLAIN}; this one has {', '.join(reasons)}")


def _scaling(config: Mapping[str, Any], path: Path, module: str, rank: int) -> float:
    """alpha / r, or alpha / sqrt(r); an alpha of the module's own is found as `peft` does, by the first match."""
    alphas = config.get("alpha_pattern") or {}
    try:
        own = next((alphas[key] for key in alphas if re.match(rf"(.*\.)?({key})$", module)), None)
        alpha = float(config["lora_alpha"] if own is None else own)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ModelLoadError(f"{path}: the alpha of {module!r} cannot be read ({error})") from None
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def merge_adapter(named: Mapping[str, Tensor], directory: Path) -> NamedWeights:
    """The named weights with an adapter added, W + (alpha / r) B A; the given ones stay as they are."""
    merged = dict(named)
    for module, low in read_adapter(directory).items():
        base = named.get(f"{module}.weight")
        if base is None:
            tied = " (it ties the unembedding to the embedding)" if module == UNEMBEDDING else ""
            raise ModelLoadError(f"{directory}: the base model has no layer {module!r}{tied} to merge it onto")
        _check_shape(directory, module, low, tuple(base.shape))
        merged[f"{module}.weight"] = base.to(torch.float32) + low.scaling * (low.up @ low.down)
    return merged


RANKS_OF = 16
"""Ranks are filled up with zeros to a multiple of this: products with fewer columns are rounded in other ways."""


class Factors(NamedTuple):
    """An adapter at one fused matrix, both parts input-major; R adds up the ranks of the layers fused there."""

    down: Tensor  # [in, R], the norm before it folded in
    up: Tensor  # [R, out], block-diagonal over the fused layers; the scaling and the attention scale folded in


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """What `adapter_rows.py` computes with: for each decoder layer the factors at each of the four fused matrices, and
    behind the last layer those of the unembedding."""

    layers: list[tuple[Factors | None, ...]]


def pack_adapter(
    directory: Path, named: Mapping[str, Tensor], arch: Architecture, *, dtype: torch.dtype, device: torch.device
) -> PackedAdapter:
    """An adapter to be served with the packed weights of `named`. Raises `ModelLoadError` where it cannot.

    Constants are folded in as `weights.pack` folds them into the base, in float32 and rounded once.
    """
    adapter = read_adapter(directory)
    layers = []
    for i in range(arch.num_layers):
        at, factors = f"model.layers.{i}.", list[Factors | None]()
        for fusion in fusions(arch, i):
            lows = [(part, adapter.pop(at + part.name, None)) for part in fusion.parts]
            for part, low in lows:
                if low is not None:
                    _check_shape(directory, at + part.name, low, (part.size, fusion.source))
            weight = None
            if fusion.norm is not None:
                weight = gain(named[f"{at}{fusion.norm}.weight"].to("cpu", torch.float32), arch)
            factors.append(_fused(fusion, lows, weight, dtype, device))
        layers.append(tuple(factors))
    low = adapter.pop(UNEMBEDDING, None)
    if low is not None:
        _check_shape(directory, UNEMBEDDING, low, (arch.vocab_size, arch.hidden_size))
    head = Fusion(arch.hidden_size, None, (FusedPart(UNEMBEDDING, arch.vocab_size),))
    layers.append((_fused(head, [(head.parts[0], low)], None, dtype, device),))
    if adapter:
        raise ModelLoadError(
            f"{directory}: the engine has adapters at the dense projections of its {arch.num_layers} decoder "
            f"layers and at the unembedding; this one has {next(iter(adapter))!r}"
        )
    return PackedAdapter(layers)


def _fused(
    fusion: Fusion,
    lows: list[tuple[FusedPart, LowRank | None]],
    gain: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Factors | None:
    """Layers that are fused in the base, side by side; each has its own columns of `down` and rows of `up`."""
    held = [low.down for _, low in lows if low is not None]
    if not held:
        return None
    down = torch.cat(held)
    down = F.pad(down, (0, 0, 0, -len(down) % RANKS_OF))
    up = torch.zeros(sum(part.size for part, _ in lows), down.shape[0])
    row = column = 0
    for part, low in lows:
        if low is not None:
            rank = low.down.shape[0]
            up[column : column + part.size, row : row + rank] = low.up * low.scaling
            row += rank
        column += part.size
    if gain is not None:
        down = down * gain
    return Factors(down.t().contiguous().to(device, dtype), fusion.arranged(up).t().contiguous().to(device, dtype))


def _check_shape(directory: Path, module: str, low: LowRank, shape: tuple[int, ...]) -> None:
    if (low.up.shape[0], low.down.shape[1]) != shape:
        raise ModelLoadError(f"{directory}: {module!r} was trained for a layer of another shape than {shape}")
