"""Tiny random checkpoints and the reference they are compared with: a plain `transformers` forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def build(kind: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    if kind == "qwen3":
        model: Any = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))
    elif kind == "llama3-rope":
        model = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE))
    elif kind == "qwen3-moe":
        experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, head_dim=32, mlp_only_layers=[1]))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None))
    else:
        raise ValueError(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases start at constants, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * (0.3 if "norm" in name else 0.1))
    return model.eval()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """(directory, model) of a kind, each built once a session."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            directory = tmp_path_factory.mktemp(kind)
            model = build(kind)
            model.save_pretrained(directory)
            made[kind] = (directory, model)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def reference() -> Callable[..., torch.Tensor]:
    """log softmax(logits / temperature) of `ids` after `prompt`, from one forward pass without a cache."""

    def logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)

    return logprobs


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Any]:
    return build
