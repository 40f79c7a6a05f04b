"""A mixture of experts in the engine: which experts a sample says its tokens went to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whet.inference.architecture import parse_architecture
from whet.inference.decoding.functions import mix_experts, route
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import Sample, SampleRequest, SamplingParams

Checkpoints = Callable[[str], tuple[Path, Any]]
PROMPT = list(range(100, 140))


def sampled(engine: EmbeddedEngine, *requests: SampleRequest) -> list[Sample]:
    async def run() -> list[Sample]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(run())


def chosen_by_transformers(model: Any, ids: list[int]) -> list[np.ndarray[Any, Any]]:
    """Of the two layers with experts, for every token but the last: the experts, sorted."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]]), output_router_logits=True).router_logits
    return [layer.topk(2, dim=-1).indices.sort(-1).values.numpy() for layer in logits]


def test_samples_say_which_experts_their_tokens_went_to(checkpoints: Checkpoints) -> None:
    """Of a group that shares its prefill, and of a later turn that continues what was computed."""
    directory, model = checkpoints("qwen3-moe")
    engine = EmbeddedEngine.from_directory(directory, record_experts=True)
    group = [
        SampleRequest(PROMPT, SamplingParams(max_tokens=8, seed=i), group_key="g", rollout_key=str(i)) for i in range(3)
    ]
    first = sampled(engine, *group)
    later = SampleRequest(PROMPT + first[0].ids + [7, 8], SamplingParams(max_tokens=5, seed=9), rollout_key="0")
    for request, sample in [*zip(group, first, strict=True), (later, sampled(engine, later)[0])]:
        ids = request.prompt_ids + sample.ids
        first_layer, last_layer = chosen_by_transformers(model, ids)
        assert sample.experts is not None
        assert sample.experts.shape == (len(ids) - 1, 3, 2)
        np.testing.assert_array_equal(np.sort(sample.experts[:, 0]), first_layer)
        assert (sample.experts[:, 1] == -1).all()  # a dense layer
        # The last layer's output for a prompt is not used, so there it is not computed.
        drawn = len(ids) - 1 - len(sample.ids)
        np.testing.assert_array_equal(np.sort(sample.experts[drawn:, 2]), last_layer[drawn:])
        assert (sample.experts[: len(PROMPT) - 1, 2] == -1).all()


@pytest.mark.parametrize("kind", ["qwen3-moe", "qwen3"])
def test_experts_are_only_recorded_where_that_is_asked_for_and_there_are_any(
    checkpoints: Checkpoints, kind: str
) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints(kind)[0], record_experts=kind == "qwen3")
    (sample,) = sampled(engine, SampleRequest(PROMPT, SamplingParams(max_tokens=2, seed=0)))
    assert sample.experts is None


def test_experts_are_weighed_by_their_probabilities_which_may_be_normalised() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    chosen, weights = route(logits, 2, normalise=False)
    assert chosen.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.3]]))
    torch.testing.assert_close(route(logits, 2, normalise=True)[1], torch.tensor([[0.625, 0.375]]))


def test_replayed_experts_keep_router_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]] * 2).log()
    chosen, weights = route(logits, 2, normalise=False, replayed_NK=torch.tensor([[2, 0], [-1, -1]]))
    assert chosen.tolist() == [[2, 0], [0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[0.2, 0.5], [0.5, 0.3]]))


def test_tokens_come_back_in_their_order_whoever_computed_them() -> None:
    """Expert e multiplies by e + 1: gate and up of one unit of eight, silu(30) = 30 to rounding."""
    gate_up, down = torch.zeros(3, 8, 16), torch.zeros(3, 8, 8)
    gate_up[:, 0, 0], gate_up[:, 0, 8] = 30.0, 1.0
    down[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0]) / 30
    chosen, weights = torch.tensor([[2, 0], [0, 2], [2, 2]]), torch.tensor([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])
    mixed = mix_experts(torch.ones(3, 8), chosen, weights, gate_up, down)
    torch.testing.assert_close(mixed[:, 0], torch.tensor([2.0, 0.1 + 2.7, 3.0]))


class Called(TorchDispatchMode):
    """Names of the operations inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [4, 128])
def test_experts_are_as_many_operations_whatever_their_number_and_none_reads_a_result(count: int) -> None:
    """So a GPU never waits for this process: numbers of tokens stay on the device."""
    draw = torch.Generator().manual_seed(0)
    x, gate_up, down = (
        torch.randn(*shape, generator=draw).requires_grad_() for shape in ((64, 16), (count, 16, 32), (count, 16, 16))
    )
    with Called() as called:
        chosen, weights = route(torch.randn(64, count, generator=draw), 2, normalise=True)
        mix_experts(x, chosen, weights, gate_up, down).sum().backward()
    assert not called.names.keys() & {"_local_scalar_dense", "nonzero", "item", "bincount", "unique", "masked_select"}
    assert called.names["_grouped_mm"] == 2 * 3  # forward, and one for each factor backward
    assert sum(called.names.values()) < 80


def test_which_layers_have_experts_is_read_from_the_config_in_both_spellings() -> None:
    config = {
        "model_type": "qwen3_moe",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    old, new = (parse_architecture({**config, key: 8}, where="x") for key in ("num_experts", "num_local_experts"))
    assert old == new
    assert old.experts is not None
    assert (old.experts.layers, old.experts.count, old.experts.normalised) == ({1, 5}, 8, True)
