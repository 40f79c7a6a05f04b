"""The families that whet's own forward knows: a row for each `model_type`. No other part of whet tests for its name.

A row says where the norms of a layer are, which projections have biases, and what the configs leave unsaid.
`architecture.py` reads a config by it. Source: the configuration classes and modules of `transformers`, with which
`tests/inference/test_families.py` compares each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Norms(NamedTuple):
    """The RMS norms of a decoder layer by their names; None where the family has none there."""

    attention_in: str | None = "input_layernorm"
    attention_out: str | None = None  # of what attention gives, before it is added
    feed_in: str | None = "post_attention_layernorm"
    feed_out: str | None = None


BEFORE = Norms()
"""Before attention and before the feed-forward part, and nowhere else."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the configs of one `model_type` leave unsaid. None for a bias: what `attention_bias` says."""

    norms: Norms = BEFORE
    qk_norm: Literal["head", "width"] | None = None
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool = False  # has the key `mlp_bias`
    gain_offset: float = 0.0
    scaled_embedding: bool = False  # by the root of the hidden size
    activation_key: str = "hidden_act"
    query_scalar: bool = False  # has the key `query_pre_attn_scalar`, instead of the width of a head
    partial_rotary: bool = False  # may rotate a part of each head
    interleaved: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    experts: bool = False
    windows: Literal["none", "every layer", "by layer"] = "none"
    window_switch: bool = False  # windows only where `use_sliding_window` says so
    slides: Callable[[dict[str, Any], int], bool] | None = None  # which layers do, where there are no `layer_types`
    rope_by_kind: bool = False  # sliding layers have rotary settings of their own
    unrotated: Callable[[dict[str, Any], int], bool] | None = None  # layers without positions
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys that the config lacks


def _without_rope(config: dict[str, Any], layer: int) -> bool:
    marks = config.get("no_rope_layers")
    return not marks[layer] if marks else (layer + 1) % int(config["no_rope_layer_interval"]) == 0


def _behind_max_window_layers(config: dict[str, Any], layer: int) -> bool:
    return layer >= int(config["max_window_layers"])


_QWEN: dict[str, Any] = {"window_switch": True, "windows": "by layer", "slides": _behind_max_window_layers}
_QWEN_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}
_OLMO: dict[str, Any] = {
    "norms": Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "qk_norm": "width",
}
_GLM: dict[str, Any] = {
    "output_bias": False,
    "partial_rotary": True,
    "interleaved": True,
    "fused_gate_up": True,
    "defaults": {
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
        "num_key_value_heads": 2,
        "head_dim": 128,
    },
}
FAMILIES: dict[str, Family] = {
    "llama": Family(mlp_bias=True),
    "mistral": Family(
        qkv_bias=False,
        output_bias=False,
        windows="every layer",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    ),
    "qwen2": Family(qkv_bias=True, output_bias=False, defaults=_QWEN_DEFAULTS, **_QWEN),
    "qwen3": Family(qk_norm="head", defaults={**_QWEN_DEFAULTS, "head_dim": 128}, **_QWEN),
    "qwen3_moe": Family(
        qk_norm="head",
        experts=True,
        windows="every layer",
        window_switch=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 4},
    ),
    "smollm3": Family(
        mlp_bias=True,
        windows="by layer",
        window_switch=True,
        slides=_without_rope,
        unrotated=_without_rope,
        defaults={
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
    ),
    "gemma3_text": Family(
        norms=Norms(
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
        ),
        qk_norm="head",
        gain_offset=1.0,
        scaled_embedding=True,
        activation_key="hidden_activation",
        query_scalar=True,
        windows="by layer",
        slides=lambda config, layer: (layer + 1) % int(config["sliding_window_pattern"]) != 0,
        rope_by_kind=True,
        defaults={
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "head_dim": 256,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
    ),
    "olmo2": Family(defaults={"rms_norm_eps": 1e-5}, **_OLMO),
    "olmo3": Family(
        windows="by layer",
        slides=lambda config, layer: (layer + 1) % 4 != 0,
        rope_by_kind=True,
        defaults={
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "rope_theta": 5e5,
            "rope_local_base_freq": 5e5,
        },
        **_OLMO,
    ),
    "phi3": Family(
        qkv_bias=False,
        output_bias=False,
        partial_rotary=True,
        fused_qkv=True,
        fused_gate_up=True,
        windows="every layer",
        rope_aliases={"su": "longrope", "yarn": "longrope"},
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "glm": Family(**_GLM),
    "glm4": Family(
        norms=Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        **_GLM,
    ),
}
