"""Small random models of the families that whet's own forward pass knows, with every setting that a row speaks of."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOW = 5
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 4.0, 8.0, 16.0]}
BY_KIND = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": {**YARN}}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1000.0, **parameters}}


MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, biases, tied": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "llama, gelu, linear": {"model_type": "llama", "hidden_act": "gelu", **rope(rope_type="linear", factor=3.0)},
    "llama, dynamic": {"model_type": "llama", **rope(rope_type="dynamic", factor=4.0)},
    "llama, llama3": {"model_type": "llama", **rope(**LLAMA3)},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW, "head_dim": 12},
    "mistral, no window": {"model_type": "mistral", "sliding_window": None, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, **rope(**YARN)},
    "qwen2, window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 12,
        **rope(**YARN, beta_fast=16, beta_slow=2, truncate=False, mscale=0.7, mscale_all_dim=0.4),
    },
    "qwen3, window": {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": SLIDING,
        "tie_word_embeddings": True,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "head_dim": 8, "mlp_only_layers": [1]},
    "qwen3_moe, window": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "smollm3, window": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0, 0],
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    "phi3": {"model_type": "phi3", "sliding_window": WINDOW},
    "phi3, longrope": {
        "model_type": "phi3",
        "original_max_position_embeddings": 64,
        "tie_word_embeddings": True,
        **rope(**LONGROPE),
    },
    "phi3, partial longrope": {
        "model_type": "phi3",
        "original_max_position_embeddings": 64,
        **rope(**{**LONGROPE, "short_factor": [1.0, 2.0], "long_factor": [2.0, 4.0]}, partial_rotary_factor=0.5),
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": WINDOW, "layer_types": SLIDING, "rope_parameters": BY_KIND},
    "glm": {"model_type": "glm", "head_dim": 8},
    "glm4": {"model_type": "glm4", "head_dim": 12, "tie_word_embeddings": True, **rope(partial_rotary_factor=0.5)},
    "gemma3_text": {
        "model_type": "gemma3_text",
        "head_dim": 12,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
    },
    "gemma3_text, untied": {
        "model_type": "gemma3_text",
        "head_dim": 12,
        "sliding_window": WINDOW,
        "layer_types": SLIDING,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
        },
    },
}
ONE_OF_EACH = {str(settings["model_type"]): kind for kind, settings in MODELS.items()}.values()
"""The last model of each family."""


def write(kind: str, directory: Path, seed: int) -> Any:
    """A checkpoint of one of `MODELS`; returns the model."""
    torch.manual_seed(seed)
    settings = {**SIZES, **MODELS[kind]}
    config = CONFIG_MAPPING[settings.pop("model_type")](**json.loads(json.dumps(settings)))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 0.0 if "norm" not in name or "gemma" in kind else 1.0
            parameter.copy_(around + (0.3 if parameter.dim() == 1 else 0.2) * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model.eval()
