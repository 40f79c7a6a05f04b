"""Reading config.json; families, and what is refused of them, are in test_families.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
