"""What the embedded engine needs to know of a checkpoint: a small frozen description, read from its `config.json`.

Supported are decoders of the Llama family (`llama`, `qwen2`, `qwen3`, its mixture of experts `qwen3_moe`, and `mistral`
without a sliding window). Anything this engine would compute wrongly (sliding windows, quantised weights, other rotary
scalings, other mixtures of experts) is refused by name here, before a weight is read. Nothing here imports torch or
transformers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import ModelLoadError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides all of them, `llama3` only the slow ones, smoothly."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


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
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    experts: Experts | None = None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers one token occupies in the KV cache, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def inverse_frequencies(self) -> list[float]:
        """Rotary frequencies, `head_dim / 2` of them, fastest first.

        Source of the `llama3` smoothing: the Llama 3.1 release, as `transformers` computes it.
        """
        plain = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        scaling = self.rope_scaling
        if scaling is None:
            return plain
        if scaling.kind == "linear":
            return [frequency / scaling.factor for frequency in plain]
        longest_kept = scaling.original_max_position / scaling.high_freq_factor
        shortest_stretched = scaling.original_max_position / scaling.low_freq_factor
        stretched = []
        for frequency in plain:
            wavelength = 2 * math.pi / frequency
            if wavelength < longest_kept:
                stretched.append(frequency)
            elif wavelength > shortest_stretched:
                stretched.append(frequency / scaling.factor)
            else:
                smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
                    scaling.high_freq_factor - scaling.low_freq_factor
                )
                stretched.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
        return stretched


def read_architecture(directory: Path) -> Architecture:
    """Read `config.json` of a `transformers` checkpoint. Raises `ModelLoadError` for what this engine does not run."""
    path = directory / "config.json"
    return parse_architecture(read_json(path, "a model"), where=str(path))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file that every directory with `what` has. Raises `ModelLoadError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelLoadError(f"{path.parent} is not {what} directory: it has no {path.name}") from None
    except ValueError as error:
        raise ModelLoadError(f"{path} is not readable JSON ({error}); fetch or export {what} again") from None
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object; fetch or export {what} again")
    return found


def parse_architecture(config: dict[str, Any], *, where: str) -> Architecture:
    """The same from a config already parsed; `where` names its source in error messages."""
    _refuse_unsupported(config, where)
    model_type = config["model_type"]
    theta, scaling = _rope(config, where)
    try:
        num_heads = int(config["num_attention_heads"])
        hidden_size = int(config["hidden_size"])
        return Architecture(
            model_type=model_type,
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or hidden_size // num_heads),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_context=int(config["max_position_embeddings"]),
            qk_norm=model_type in ("qwen3", "qwen3_moe"),
            qkv_bias=model_type == "qwen2" or bool(config.get("attention_bias", False)),
            output_bias=model_type != "qwen2" and bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            experts=_experts(config) if model_type == "qwen3_moe" else None,
        )
    except KeyError as missing:
        raise ModelLoadError(f"{where} lacks the key {missing}; fetch or export the model again") from None
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"{where} has a value that is not a number where one is needed ({error})") from None


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


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    model_type = config.get("model_type")
    if model_type not in SUPPORTED:
        raise ModelLoadError(
            f"{where}: the embedded engine does not run models of type {model_type!r}. It runs "
            f"{', '.join(SUPPORTED)} checkpoints; for others use a vLLM server."
        )
    reasons = []
    if config.get("quantization_config"):
        reasons.append("quantised weights")
    windowed = config.get("use_sliding_window", model_type == "mistral") and config.get("sliding_window")
    if windowed or any(kind != "full_attention" for kind in config.get("layer_types") or []):
        reasons.append("sliding-window attention")
    if config.get("hidden_act", "silu") != "silu":
        reasons.append(f"the activation {config['hidden_act']!r}")
    if reasons:
        raise ModelLoadError(
            f"{where}: this {model_type} model has {' and '.join(reasons)}, which the embedded engine does not run. "
            "It runs unquantised models with full attention and SiLU; for others use a vLLM server."
        )


def _rope(config: dict[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """Rotary settings, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES or float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        what = f"the rotary scaling {kind!r}" if kind not in _ROPE_TYPES else "partial rotary embeddings"
        raise ModelLoadError(
            f"{where}: the embedded engine does not run {what}. It runs {', '.join(_ROPE_TYPES)}; "
            "for others use a vLLM server."
        )
    if kind == "default":
        return theta, None
    return theta, RopeScaling(
        kind=kind,
        factor=float(rope.get("factor", 1.0)),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_max_position=int(
            rope.get("original_max_position_embeddings", config.get("max_position_embeddings", 8192))
        ),
    )
