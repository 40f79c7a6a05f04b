"""A tiny random model on disk, and batches for it."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONFIGS = {
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True),
}


@pytest.fixture(scope="session", params=["qwen3"])
def model_dir(request, tmp_path_factory):
    """A checkpoint with weights large enough for its tokens to be far from equally likely."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.5 if "norm" in name else 0.3 * torch.randn_like(parameter))
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    (path / "tokenizer_config.json").write_text("{}")
    return path


@pytest.fixture
def make(model_dir, tmp_path):
    def make(optimizer=None, lora=None, **changes):
        torch.set_num_threads(1)
        chosen = {key: changes.pop(key) for key in LearnerConfig.model_fields if key in changes}
        computation = LearnerConfig(**{"device": "cpu", "dtype": "float32"} | chosen)
        settings = {
            "computation": computation,
            "max_steps": 10,
            "seed": 0,
            "publish_directory": tmp_path / "published",
            **changes,
        }
        return make_learner(model_dir, optimizer=optimizer or OptimizerConfig(), lora=lora, **settings)

    return make


def rollouts(seed=0, groups=((3, 9), (2, 5), (1, 6)), temperature=1.0):
    """Groups of (rollouts, prompt length); every other rollout has a second turn after a tool's tokens."""
    rng = np.random.default_rng(seed)
    sequences = []
    for group, (size, prompt_length) in enumerate(groups):
        prompt = rng.integers(0, 61, prompt_length)
        for member in range(size):
            parts = [(prompt, False), (rng.integers(0, 61, rng.integers(1, 7)), True)]
            if member % 2:
                parts += [(rng.integers(0, 61, 3), False), (rng.integers(0, 61, 4), True)]
            trained = np.concatenate([np.full(len(ids), sampled) for ids, sampled in parts])
            ids = np.concatenate([ids for ids, _ in parts]).astype(np.int32)
            sequences.append(
                TokenSequence(
                    ids=ids,
                    trained=trained,
                    logprobs=np.where(trained, rng.uniform(-3, -1, len(ids)), 0).astype(np.float32),
                    versions=np.where(trained, 0, -1).astype(np.int32),
                    temperature=temperature,
                    rollout=f"task {group} rollout {member}",
                )
            )
    return sequences


@pytest.fixture
def make_rollouts():
    return rollouts


@pytest.fixture
def sequences():
    return rollouts()


@pytest.fixture
def batch(sequences):
    return pack(sequences, np.random.default_rng(1).normal(size=len(sequences)))
