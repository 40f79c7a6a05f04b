"""How much a learner computes, against counts by hand and against torch's own counter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from whet.inference.architecture import parse_architecture
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.flops import batch_flops, known_peak, layer_parameters
from whet.rl.learner.forward.layout import micro_batches
from whet.rl.sections.algorithm import AlgorithmConfig

QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}


def sequences(lengths, prompt=4):
    rng = np.random.default_rng(0)
    return [
        TokenSequence(
            ids=rng.integers(0, 61, length).astype(np.int32),
            trained=np.arange(length) >= prompt,
            logprobs=np.full(length, -4, np.float32),
            versions=np.zeros(length, np.int32),
            rollout=str(number),
        )
        for number, length in enumerate(lengths)
    ]


def test_parameters_that_a_token_meets_are_those_of_the_layers_less_the_norms() -> None:
    arch = parse_architecture(QWEN3_06B, where="here")
    # Qwen3-0.6B as published: 0.44 B parameters without embeddings.
    assert layer_parameters(arch) == 28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) == 440_401_920


def test_of_a_mixture_only_the_experts_count_that_a_token_goes_to() -> None:
    moe = {
        **QWEN3_06B,
        "model_type": "qwen3_moe",
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 768,
    }
    arch = parse_architecture(moe, where="here")
    assert layer_parameters(arch) == 28 * (1024 * (2 * 2048 + 2 * 1024) + 2 * 3 * 1024 * 768 + 1024 * 16)


def test_a_batch_computes_what_torch_counts(make) -> None:
    """Torch counts whole squares of attention."""
    learner, rows = make(), sequences([33, 33], prompt=1)
    rows[1].ids[0] = rows[0].ids[0] + 1  # nothing is shared
    with FlopCounterMode(display=False) as counter:
        output = learner.forward_backward(pack(rows, [1.0, -1.0]), AlgorithmConfig())
    tokens, width, layers = 32, 32, 2  # no padding: they are a whole number of `layout.MULTIPLE`s
    rest_of_squares = 12 * layers * width * (tokens**2 / 2) * len(rows)
    assert output.flops == counter.get_total_flops() - rest_of_squares


def test_a_shared_prompt_counts_once(make) -> None:
    apart, alike = sequences([20, 20]), sequences([20, 20])
    alike[1].ids[:4] = alike[0].ids[:4]
    learner = make()
    first, second = (
        learner.forward_backward(pack(some, [1.0, 1.0]), AlgorithmConfig()).flops for some in (apart, alike)
    )
    before, behind = 32 * (32 + 2 * 16), 32 * 32 + 3 * 32 * 48
    # Four tokens, three of which predict nothing and so have no end of the last layer, and one whose logits count once.
    products = 4 * 2 * (before + behind) - 3 * behind + 32 * 61
    pairs = 0.5 + 1.5 + 2.5 + 3.5
    assert first - second == 6 * products + 12 * 2 * 32 * pairs


def test_a_token_pays_for_no_more_than_its_window() -> None:
    layouts = micro_batches(pack(sequences([20, 9]), [1.0, 1.0]), 1000)
    windowed = {**QWEN3_06B, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 20}
    whole, cut = (
        batch_flops(parse_architecture(config, where="here"), layouts, frozen=False) for config in (QWEN3_06B, windowed)
    )
    beyond = sum(max(0, position - 4) for length in (19, 8) for position in range(length))  # of 8 layers
    assert whole - cut == 12 * 8 * 16 * 128 * beyond


def test_with_an_adapter_no_gradient_of_the_frozen_weights_counts(make) -> None:
    batch = pack(sequences([20]), [1.0])
    whole, adapted = (
        make(lora=lora).forward_backward(batch, AlgorithmConfig()).flops for lora in (None, LoraConfig(rank=2))
    )
    attention = 12 * 2 * 32 * 19**2 / 2
    assert adapted - attention == pytest.approx((whole - attention) * 4 / 6)


def test_the_peak_is_given_or_known_by_name_and_otherwise_absent(make) -> None:
    batch = pack(sequences([20]), [1.0])
    assert make(peak_tflops=2.0).forward_backward(batch, AlgorithmConfig()).peak_flops == 2e12
    assert make().forward_backward(batch, AlgorithmConfig()).peak_flops is None or torch.cuda.is_available()
    assert known_peak("NVIDIA H100 80GB HBM3") == 989
    assert known_peak("NVIDIA GeForce GTX 1080") is None
