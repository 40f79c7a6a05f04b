"""Random models of families that whet's own forward pass does not know, small and far from equally likely tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},  # learned positions, transposed weights
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},  # ALiBi, which has positions from the mask alone
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48}
    | {"word_embed_proj_dim": 32, "max_position_embeddings": 256},
    "granite": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, **HEADS}  # logits are divided
    | {"logits_scaling": 3.0, "max_position_embeddings": 256},
    "gemma2": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 8, **HEADS}  # soft caps
    | {"sliding_window": 7, "final_logit_softcapping": 5.0, "max_position_embeddings": 256},
    "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 7}  # masks local layers itself
    | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256},
    "mixtral": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, **HEADS}
    | {"num_local_experts": 4, "max_position_embeddings": 256},
    "deepseek_v3": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    | {"intermediate_size": 48, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
    | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "max_position_embeddings": 256},
}
"""DeepSeek's keys and values differ in width and are compressed."""


def build(kind: str) -> Any:
    torch.manual_seed(0)
    tokens = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES[kind], **tokens))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:  # norms and biases start at constants, which would hide mistakes
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def write(kind: str, directory: Path) -> Any:
    """A checkpoint with a tokenizer; returns the model."""
    model = build(kind)
    model.save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)
    return model


def built_once(folders: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """(directory, model) of a family, each built when it is first needed."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            directory = folders.mktemp(kind)
            made[kind] = directory, write(kind, directory)
        return made[kind]

    return get
