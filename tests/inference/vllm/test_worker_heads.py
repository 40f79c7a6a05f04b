"""What a vLLM worker compares: heads of a rank that shares key heads, float8, and a file that is read once."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

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
            found = worker.own_heads(module, "layers.0.qkv_proj.bias", torch.cat([q, k, v]))
        else:
            sources = zip("qkv", (q, k, v), strict=True)
            found = [part for name, x in sources for part in worker.own_heads(module, f"layers.0.{name}_proj.bias", x)]
        queries = q.view(ranks, -1, *shape)[rank]
        first = rank * kv_heads // ranks  # of the key heads
        heads = slice(first * SIZE, (first + module.num_kv_heads) * SIZE)
        for one, expected in zip(found, (queries, k[heads], v[heads]), strict=True):
            assert torch.equal(one, expected)


@pytest.mark.parametrize("name", ["a.query_key_value.bias", "a.gate_proj.bias"])
def test_other_layouts_are_left_to_the_sums(worker: Any, name: str) -> None:
    assert worker.own_heads(projection(2, 4, 0), name, torch.zeros(4)) is None
    assert worker.own_heads(SimpleNamespace(), "a.qkv_proj.bias", torch.zeros(4)) is None


def quantise(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As vLLM's kernel does it: a product with the reciprocal."""
    return (weight.float() * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn), scale


class Projection(torch.nn.Module):
    """A matrix as a rank holds it, loaded from a checkpoint; `float8` as vLLM's online quantisation leaves it."""

    def __init__(self, rows: int, *, float8: bool) -> None:
        super().__init__()
        self.orig_dtype, self.float8 = torch.bfloat16, float8
        self.take(torch.zeros(rows, 8))

    def take(self, weight: torch.Tensor) -> None:
        weight = weight.to(torch.bfloat16)
        if not self.float8:
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            return
        rounded, scale = quantise(weight, weight.abs().max().float().clamp_min(1e-4) / 448)
        self.weight = torch.nn.Parameter(rounded.t(), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(scale.view(1), requires_grad=False)


class Model(torch.nn.Module):
    packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}  # noqa: RUF012

    def __init__(self, *, float8: bool) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Projection(8, float8=float8), Projection(8, float8=float8)
        self.norm = Projection(1, float8=False)


@pytest.fixture
def loads(worker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """`loads(model, sent, held)`: what the worker says of a load of `sent`, after which `held` is what it took."""
    group = SimpleNamespace(world_size=1)
    for name, attributes in {
        "vllm": {"_custom_ops": SimpleNamespace(scaled_fp8_quant=quantise)},
        "vllm.distributed.parallel_state": {"get_tp_group": lambda: group},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**attributes))

    def load(model: Model, sent: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> dict[str, Any]:
        save_file(sent, tmp_path / "model.safetensors")

        def reload_weights(weights_iterator: Any) -> None:
            for part in (model.gate_up_proj, model.down_proj, model.norm):  # as vLLM does it
                part.weight = torch.nn.Parameter(part.weight.to("meta"), requires_grad=False)
            assert dict(weights_iterator).keys() == sent.keys()
            model.gate_up_proj.take(torch.cat([held["gate_proj.weight"], held["up_proj.weight"]]))
            model.down_proj.take(held["down_proj.weight"])
            model.norm.take(held["norm.weight"])

        receiver = worker.WeightReceiver()
        receiver.model_runner = SimpleNamespace(reload_weights=reload_weights, get_model=lambda: model)
        return receiver.whet_load_weights(str(tmp_path))

    return load


def checkpoint() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    rows = {"gate_proj": 4, "up_proj": 4, "down_proj": 8, "norm": 1}
    return {f"{name}.weight": torch.randn(count, 8, generator=draw).bfloat16() for name, count in rows.items()}


@pytest.mark.parametrize("float8", [False, True])
def test_a_matrix_is_compared_in_the_dtype_that_is_held(loads: Any, float8: bool) -> None:
    model, sent = Model(float8=float8), checkpoint()
    assert loads(model, sent, sent) == {"tensors": 4, "differ": [], "unchecked": []}
    wrong = {**sent, "up_proj.weight": sent["up_proj.weight"] + (torch.arange(8) == 3)}
    assert loads(model, sent, wrong)["differ"] == ["gate_up_proj.weight"]


def test_scales_of_rows_are_not_compared(loads: Any) -> None:
    model, sent = Model(float8=True), checkpoint()
    take = model.down_proj.take

    def by_rows(weight: torch.Tensor) -> None:
        take(weight)
        model.down_proj.weight_scale.data = torch.ones(8)

    model.down_proj.take = by_rows  # type: ignore[method-assign]
    assert loads(model, sent, sent) == {"tensors": 4, "differ": [], "unchecked": ["down_proj.weight"]}


@pytest.mark.parametrize(("float8", "reads"), [(False, 4), (True, 7)])
def test_a_tensor_is_read_once_and_again_only_for_its_scale(
    worker: Any, loads: Any, monkeypatch: pytest.MonkeyPatch, float8: bool, reads: int
) -> None:
    read = list[str]()
    get = worker._Checkpoint.get_tensor
    monkeypatch.setattr(worker._Checkpoint, "get_tensor", lambda self, name: read.append(name) or get(self, name))
    loads(Model(float8=float8), checkpoint(), checkpoint())
    assert len(read) == reads
