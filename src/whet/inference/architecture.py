"""What the embedded engine and the learner need to know of a checkpoint: a small frozen description of its decoder.

It is read from `config.json`, by the row of its family in `families.py`. What whet's own forward would compute wrongly
(quantised weights, soft-capping, other families) is refused by name here, before a weight is read. Nothing here imports
torch or transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whet.errors import ModelLoadError
from whet.inference.families import BEFORE, FAMILIES, Family, Norms

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
COPIED = 1 << 24
"""Parameters up to which an engine merges an adapter in training into a copy of its base: 64 MiB in float32."""
_ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the frequencies that `decoding/rotary.py` makes of it, and what stretches them."""

    theta: float
    dim: int  # so many dimensions of a head are rotated, the first
    kind: str = "default"
    factor: float = 1.0
    attention_factor: float = 1.0  # cosines and sines are multiplied with it
    original_max_position: int = 8192
    low_freq_factor: float = 1.0  # of llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # of yarn
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()  # of longrope


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts instead of the feed-forward part of some layers."""

    count: int
    per_token: int
    intermediate_size: int  # of one expert
    normalised: bool  # the weights of the chosen experts add up to 1
    layers: frozenset[int]  # which layers have experts; the others are dense


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of one decoder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    ropes: tuple[Rope | None, ...]  # of each layer; None: without positions
    windows: tuple[int | None, ...]  # of each layer: tokens that attention sees, its own among them; None: all
    max_context: int
    attention_scale: float
    qk_norm: Literal["head", "width"] | None  # over each head, or over all heads together
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    norms: Norms = BEFORE
    gain_offset: float = 0.0  # norms multiply with this + their weight
    embedding_scale: float = 1.0
    activation: str = "silu"
    interleaved: bool = False  # a rotated pair are neighbours in a head, not half of the rotated part apart
    fused_qkv: bool = False  # checkpoints hold one matrix of queries, keys and values
    fused_gate_up: bool = False
    experts: Experts | None = None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers one token occupies in the KV cache, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


class UnknownFamilyError(ModelLoadError):
    """whet's own forward pass does not compute `what` this model has; `plain/family.py` decides what runs it then."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


def read_architecture(directory: Path) -> Architecture:
    """Read `config.json` of a `transformers` checkpoint. Raises `ModelLoadError` for what this engine does not run."""
    path = directory / "config.json"
    return parse_architecture(read_json(path, "a model"), where=str(path))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file that every directory with `what` has. Raises `ModelLoadError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelLoadError(f"{path.parent} is not {what} directory: it has no {path.name}") from None
    except ValueError as error:
        raise ModelLoadError(f"{path} is not readable JSON ({error}); fetch or export {what} again") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object; fetch or export {what} again")
    return content


def parse_architecture(config: dict[str, Any], *, where: str) -> Architecture:
    """The same from a config already parsed; `where` names its source in error messages."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise UnknownFamilyError(
            f"{where}: the embedded engine does not run models of type {config.get('model_type')!r}. It runs "
            f"{', '.join(FAMILIES)} checkpoints.",
            f"{config.get('model_type')} models",
        )
    config = {**family.defaults, **config}
    try:
        architecture = _parse(config, family)
        reasons = _unsupported(config, family, architecture)
    except KeyError as missing:
        raise ModelLoadError(f"{where} lacks the key {missing}; fetch or export the model again") from None
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelLoadError(f"{where} has a value that cannot be used ({error})") from None
    if reasons:
        raise UnknownFamilyError(
            f"{where}: this {config['model_type']} model has {' and '.join(reasons)}, which the embedded engine does "
            "not run; use a vLLM server for it.",
            f"{' and '.join(reasons)} of this {config['model_type']} model",
        )
    return architecture


def _parse(config: dict[str, Any], family: Family) -> Architecture:
    num_heads, hidden_size = int(config["num_attention_heads"]), int(config["hidden_size"])
    num_layers, max_context = int(config["num_hidden_layers"]), int(config["max_position_embeddings"])
    head_dim = int(config.get("head_dim") or hidden_size // num_heads)
    biased = bool(config.get("attention_bias", False))
    kinds = _kinds(config, family)
    ropes = {kind: _rope(config, family, kind, head_dim) for kind in dict.fromkeys(kinds)}
    for rope in ropes.values():
        if rope.kind == "longrope":  # beyond it all positions turn by other frequencies, those of earlier tokens too
            max_context = min(max_context, rope.original_max_position)
    window = int(config["sliding_window"]) if _SLIDING in kinds else max_context
    return Architecture(
        model_type=config["model_type"],
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        ropes=tuple(
            None if family.unrotated is not None and family.unrotated(config, layer) else ropes[kind]
            for layer, kind in enumerate(kinds)
        ),
        windows=tuple(window if kind == _SLIDING and window < max_context else None for kind in kinds),
        max_context=max_context,
        attention_scale=float(config["query_pre_attn_scalar"] if family.query_scalar else head_dim) ** -0.5,
        qk_norm=family.qk_norm,
        qkv_bias=biased if family.qkv_bias is None else family.qkv_bias,
        output_bias=biased if family.output_bias is None else family.output_bias,
        mlp_bias=family.mlp_bias and bool(config.get("mlp_bias", False)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        norms=family.norms,
        gain_offset=family.gain_offset,
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else 1.0,
        activation=str(config.get(family.activation_key, "silu")),
        interleaved=family.interleaved,
        fused_qkv=family.fused_qkv,
        fused_gate_up=family.fused_gate_up,
        experts=_experts(config) if family.experts else None,
    )


def _kinds(config: dict[str, Any], family: Family) -> list[str]:
    """Of the attention of each layer, as `layer_types` names them."""
    layers = range(int(config["num_hidden_layers"]))
    windowed = config.get("sliding_window") is not None and (
        not family.window_switch or bool(config.get("use_sliding_window", False))
    )
    if family.windows != "by layer":
        return [_SLIDING if windowed and family.windows == "every layer" else _FULL for _ in layers]
    if config.get("layer_types"):
        return [config["layer_types"][layer] for layer in layers]
    slides = family.slides
    return [_SLIDING if windowed and slides is not None and slides(config, layer) else _FULL for layer in layers]


def _experts(config: dict[str, Any]) -> Experts | None:
    """Older configs use `num_experts`, those of transformers 5 `num_local_experts`."""
    count = int(config["num_experts"] if "num_experts" in config else config["num_local_experts"])
    step, dense = int(config.get("decoder_sparse_step", 1)), set(config.get("mlp_only_layers") or [])
    layers = frozenset(i for i in range(int(config["num_hidden_layers"])) if i not in dense and (i + 1) % step == 0)
    if not count or not layers:
        return None
    return Experts(
        count=count,
        per_token=int(config["num_experts_per_tok"]),
        intermediate_size=int(config["moe_intermediate_size"]),
        normalised=bool(config.get("norm_topk_prob", False)),
        layers=layers,
    )


def _unsupported(config: dict[str, Any], family: Family, arch: Architecture) -> list[str]:
    reasons = []
    if config.get("quantization_config"):
        reasons.append("quantised weights")
    kinds = {kind for kind in config.get("layer_types") or [] if kind != _FULL}
    if kinds and (family.windows == "none" or kinds != {_SLIDING}):
        reasons.append(f"layers with {' and '.join(sorted(kinds))}")
    if arch.activation not in ACTIVATIONS or (arch.experts is not None and arch.activation != "silu"):
        reasons.append(f"the activation {arch.activation!r}")
    if arch.experts is not None and (arch.hidden_size % 8 or arch.experts.intermediate_size % 8):
        reasons.append(f"experts of width {arch.experts.intermediate_size} and {arch.hidden_size}, not multiples of 8")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if config.get(key):
            reasons.append(key)
    for rope in dict.fromkeys(rope for rope in arch.ropes if rope is not None):
        if rope.kind not in _ROPE_KINDS:
            reasons.append(f"the rotary scaling {rope.kind!r}")
        elif rope.kind == "longrope" and 2 * len(rope.short_factors) != rope.dim:
            reasons.append(f"{len(rope.short_factors)} short factors for {rope.dim // 2} pairs of dimensions")
        elif rope.dim % 2 or arch.head_dim % 2 or (rope.dim != arch.head_dim and not family.partial_rotary):
            reasons.append(f"rotary positions of {rope.dim} of {arch.head_dim} dimensions")
    return reasons


def _rope(config: dict[str, Any], family: Family, kind: str, head_dim: int) -> Rope:
    """Rotary settings of layers of one kind.

    From `rope_parameters` (transformers 5, which may hold those of each kind), or `rope_theta` and `rope_scaling`.
    """
    whole = config.get("rope_parameters") or config.get("rope_scaling") or {}
    own = whole.get(kind) if family.rope_by_kind and (_FULL in whole or _SLIDING in whole) else whole
    if family.rope_by_kind and own is whole and kind == _SLIDING:
        own = {}
    rope = own or {}
    default_theta = config.get("rope_local_base_freq" if family.rope_by_kind and kind == _SLIDING else "rope_theta")
    theta = float(rope.get("rope_theta") or default_theta or 10000.0)
    name = str(rope.get("rope_type", rope.get("type", "default")))
    name = family.rope_aliases.get(name, name)
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    dim = int(head_dim * float(part))
    if name == "default":
        return Rope(theta, dim)
    longest = int(config["max_position_embeddings"])
    original = int(
        config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or longest
    )
    factor = float(rope.get("factor") or longest / original)
    return Rope(
        theta=theta,
        dim=dim,
        kind=name,
        factor=factor,
        attention_factor=_attention_factor(rope, name, factor, original),
        original_max_position=original,
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        truncate=bool(whole.get("truncate", True)),
        short_factors=tuple(float(each) for each in rope["short_factor"]) if name == "longrope" else (),
    )


def _attention_factor(rope: Mapping[str, Any], name: str, factor: float, original: int) -> float:
    if name not in ("yarn", "longrope"):
        return 1.0
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    if factor <= 1:
        return 1.0
    if name == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0

    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    return grown(float(scale)) / grown(float(of_all)) if scale and of_all else grown(1.0)
