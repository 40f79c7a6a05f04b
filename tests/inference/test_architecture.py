"""Reading config.json: what is understood, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from whet.errors import ModelLoadError
from whet.inference.architecture import parse_architecture, read_architecture

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def test_both_spellings_of_rotary_settings_mean_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = {**QWEN3, "rope_theta": 5e5, "rope_scaling": {**scaling, "original_max_position_embeddings": 64}}
    new = {**QWEN3, "rope_parameters": {**scaling, "rope_theta": 5e5, "original_max_position_embeddings": 64}}
    assert parse_architecture(old, where="old") == parse_architecture(new, where="new")


def test_llama3_frequencies_are_those_of_transformers() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=rope, max_position_embeddings=512)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    got = parse_architecture(config.to_dict(), where="config").inverse_frequencies()
    torch.testing.assert_close(torch.tensor(got), expected)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"model_type": "gemma3_text"}, "gemma3_text"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding-window"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ModelLoadError, match=name):
        parse_architecture({**QWEN3, **change}, where="config.json")


def test_a_missing_key_is_named() -> None:
    incomplete = {key: value for key, value in QWEN3.items() if key != "hidden_size"}
    with pytest.raises(ModelLoadError, match="hidden_size"):
        parse_architecture(incomplete, where="config.json")


def test_a_directory_without_a_config_and_a_torn_config_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3)[:40])
    with pytest.raises(ModelLoadError, match="not readable JSON"):
        read_architecture(tmp_path)
