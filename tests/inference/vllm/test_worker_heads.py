"""What a rank holds of queries, keys and values where there are more ranks than key heads."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from whet.inference.vllm.members import EXTENSION

HEADS, SIZE = 8, 4


@pytest.fixture(scope="module")
def worker() -> Any:
    """The extension as a module; the lifeline, which ends the process with a server, is left out."""
    lifeline: Any = ModuleType("whet_vllm_lifeline")
    lifeline.follow_guard = lambda: None
    spec = importlib.util.spec_from_file_location("whet_vllm_worker", EXTENSION / "whet_vllm_worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "whet_vllm_lifeline", lifeline)
        spec.loader.exec_module(module)
    return module


def projection(kv_heads: int, ranks: int, rank: int) -> Any:
    """The sizes that vLLM's QKVParallelLinear has on a rank."""
    return SimpleNamespace(
        head_size=SIZE,
        v_head_size=SIZE,
        total_num_heads=HEADS,
        total_num_kv_heads=kv_heads,
        num_heads=HEADS // ranks,
        num_kv_heads=max(1, kv_heads // ranks),
        num_kv_head_replicas=max(1, ranks // kv_heads),
        tp_rank=rank,
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize(("kv_heads", "ranks"), [(1, 2), (2, 4), (2, 8), (4, 2), (8, 8), (2, 1)])
def test_each_rank_holds_its_own_heads(worker: Any, kv_heads: int, ranks: int, shape: Any, fused: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(count * SIZE, *shape, generator=draw) for count in (HEADS, kv_heads, kv_heads))
    for rank in range(ranks):
        module = projection(kv_heads, ranks, rank)
        if fused:
            found = worker.own_heads(module, ["layers.0.qkv_proj.bias"], [torch.cat([q, k, v])])
        else:
            names = [f"layers.0.{name}_proj.bias" for name in "kqv"]
            found = worker.own_heads(module, names, [k, q, v])
        queries = q.view(ranks, -1, *shape)[rank]
        first = rank * kv_heads // ranks  # of the key heads
        heads = slice(first * SIZE, (first + module.num_kv_heads) * SIZE)
        for one, expected in zip(found, (queries, k[heads], v[heads]), strict=True):
            assert torch.equal(one, expected)


@pytest.mark.parametrize("names", [["a.query_key_value.bias"], ["a.gate_proj.bias", "a.up_proj.bias"]])
def test_other_layouts_are_left_to_the_sums(worker: Any, names: list[str]) -> None:
    assert worker.own_heads(projection(2, 4, 0), names, [torch.zeros(4)] * len(names)) is None
    assert worker.own_heads(SimpleNamespace(), ["a.qkv_proj.bias"], [torch.zeros(4)]) is None
