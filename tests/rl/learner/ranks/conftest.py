"""Ranks to compute with, and models of several kinds."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config, Qwen3MoeConfig

sys.path.insert(0, str(Path(__file__).parent))  # rank processes import it by name

from rank_workers import Ranks

from whet.rl.learner.config import LearnerConfig, OptimizerConfig

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONFIGS = {
    "qwen3": Qwen3Config(**SIZES, intermediate_size=48, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, intermediate_size=48, tie_word_embeddings=False, attention_bias=True),
    "experts": Qwen3MoeConfig(
        **SIZES, intermediate_size=48, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2
    ),
    "gpt2": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Checkpoints with weights large enough for their tokens to be far from equally likely."""
    root = tmp_path_factory.mktemp("models")
    for kind, config in CONFIGS.items():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                around = 0.5 if "norm" in name or ".ln_" in name else 0.0
                parameter.copy_(torch.rand_like(parameter) + 0.5 if around else 0.3 * torch.randn_like(parameter))
        model.save_pretrained(root / kind)
        (root / kind / "tokenizer_config.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    started = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()


@pytest.fixture
def options(tmp_path):
    """What learners are made with; fields of `[learner]` may be among the changes."""

    def options(**changes):
        torch.set_num_threads(1)
        chosen = {key: changes.pop(key) for key in LearnerConfig.model_fields if key in changes}
        return {
            "optimizer": OptimizerConfig(),
            "lora": None,
            "computation": LearnerConfig(**{"device": "cpu", "dtype": "float32"} | chosen),
            "max_steps": 10,
            "seed": 0,
            "publish_directory": tmp_path / "published",
            "threads": 1,
            **changes,
        }

    return options
