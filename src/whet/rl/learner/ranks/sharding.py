"""A model whose parameters are divided among ranks (FSDP2), and what one rank can do with its part.

Each decoder layer is gathered when it is computed and freed behind that; gradients are summed and divided among ranks
micro-batch by micro-batch (reduce-scatter), never averaged, since losses are sums. whet's own forward pass does not
call layers and model as modules, which is where FSDP2 gathers: `call_layer`, and `rank_learner.py` for the model, do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from whet.rl.learner.forward.decoder import run_layer
from whet.rl.learner.whole import Whole

T = TypeVar("T")


class Sharding(Whole):
    """One rank of a group of processes, and its part of each parameter."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        device: torch.device,
        init_method: str,
        timeout_s: float,
        phase: Callable[[str], None],
    ) -> None:
        """Join the group: returns when all ranks are there. `phase` is called with what may wait for other ranks."""
        self.rank, self.ranks = rank, world_size
        self.device = device
        self.phase = phase
        self.phase("meeting the other ranks")
        dist.init_process_group(
            "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl",
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=None if device.type == "cpu" else device,
        )
        self._mesh: DeviceMesh = init_device_mesh(device.type, (world_size,))

    def shard(self, model: PreTrainedModel, dtype: torch.dtype, *, own: bool) -> None:
        """Keep this rank's part of each parameter alone, on the device. Parameters that are trained are float32; they
        are computed with in `dtype`, and their gradients summed in float32. `own`: whet's own forward pass runs it."""
        self.phase("dividing the model among ranks")
        options: dict[str, Any] = {"mesh": self._mesh}
        if dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
            options["mp_policy"] = policy
        for layer in [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]:
            if own:
                layer.forward = partial(run_layer, layer)
            _add_up(fully_shard(layer, **options))
        _add_up(fully_shard(model, **options))

    def own(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def norm(self, own: Tensor) -> Tensor:
        self.phase("gradient norm")
        squares = own.double().square()
        dist.all_reduce(squares)
        return squares.sqrt()

    def map_whole(self, function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each rank gathers all and keeps one, which it maps and sends to the others."""
        self.phase("gathering matrices for Muon")
        mine: Tensor | None = None
        for number, tensor in enumerate(tensors):
            assert isinstance(tensor, DTensor)
            whole = tensor.full_tensor()
            if number == self.rank:
                mine = whole
        mapped = None if mine is None else function(mine).contiguous()
        self.phase("spreading matrices of Muon")
        found: list[Tensor] = []
        for number, tensor in enumerate(tensors):
            whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            if number == self.rank and mapped is not None:
                whole = mapped
            dist.broadcast(whole, src=number)
            rows = -(-len(whole) // self.ranks)
            found.append(whole[self.rank * rows : (self.rank + 1) * rows].clone())
        return found

    def most(self, count: int, what: str) -> int:
        """The largest count of any rank."""
        self.phase(what)
        counts = torch.tensor(count, device=self.device)
        dist.all_reduce(counts, op=dist.ReduceOp.MAX)
        return int(counts)

    def of_all(self, mine: T, what: str) -> list[T]:
        """What each rank has, in the order of ranks."""
        self.phase(what)
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, mine)
        return found

    def close(self) -> None:
        dist.destroy_process_group()


def call_layer(layer: Any, x_TD: Tensor, **options: Any) -> Tensor:
    """Calls a layer as a module, whose forward method is `run_layer`."""
    computed_TD: Tensor = layer(x_TD, **options)
    return computed_TD


def _add_up(module: Any) -> None:
    """Sum gradients over ranks instead of averaging them."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
