"""A model whose parameters are divided among ranks (FSDP2), and what one rank can do with its part.

Each decoder layer is gathered when it is computed and freed behind that; gradients are summed and divided among ranks
micro-batch by micro-batch (reduce-scatter), never averaged, since losses are sums. With groups of ranks that hold the
same (HSDP), a layer is gathered within a group, and gradients are also summed over groups. whet's own forward pass
does not call layers and model as modules, which is where FSDP2 gathers: `call_layer`, and `rank_learner.py` for the
model, do.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from whet.errors import TrainingError, WhetError
from whet.rl.learner.forward.decoder import run_layer
from whet.rl.learner.ranks.own_rows import StoredModel, fill, leave_memory
from whet.rl.learner.whole import Whole

T = TypeVar("T")


class Sharding(Whole):
    """One rank of a group of processes, and its part of each parameter."""

    divided = True

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        device: torch.device,
        init_method: str,
        timeout_s: float,
        phase: Callable[[str], None],
        shard_ranks: int | None = None,
    ) -> None:
        """Join the group: returns when all ranks are there. `phase` is called with what may wait for other ranks. So
        many `shard_ranks` in a row divide each parameter; the other groups of as many hold the same (HSDP)."""
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
        self._shards = shard_ranks or world_size
        sizes = {"replicas": world_size // self._shards, "shards": self._shards}
        if self._shards == world_size:
            del sizes["replicas"]
        self._mesh: DeviceMesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def shard(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        *,
        own: bool,
        stored: StoredModel | None = None,
        held_in: torch.dtype | None = None,
    ) -> None:
        """Keep this rank's part of each parameter alone, on the device. Parameters that are trained are float32; they
        are computed with in `dtype`, and their gradients summed in float32. `own`: whet's own forward pass runs it.
        With `stored` parameters have no memory yet, and this rank's rows of them are read, matrices in `held_in`."""
        self.phase("dividing the model among ranks")
        if stored is not None:
            leave_memory(model, held_in)
        options: dict[str, Any] = {"mesh": self._mesh}
        if dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
            options["mp_policy"] = policy
        for layer in [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]:
            if own:
                layer.forward = partial(run_layer, layer)
            _add_up(fully_shard(layer, **options))
        _add_up(fully_shard(model, **options))
        if stored is not None:
            self.phase("reading this rank's part of the model")
            fill(model, partial(self._read, stored))

    def _read(self, stored: StoredModel, name: str, parameter: nn.Parameter) -> DTensor:
        assert isinstance(parameter, DTensor)
        rows = self.rows(parameter)
        assert rows is not None
        own = stored.rows(name, rows).to(self.device, parameter.dtype)
        shape, stride, places = parameter.shape, parameter.stride(), parameter.placements
        return DTensor.from_local(own, self._mesh, places, run_check=False, shape=shape, stride=stride)

    def own(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def rows(self, tensor: Tensor) -> slice | None:
        """Parameters are divided by rows, as evenly as whole rows are; the last ranks may have none."""
        number = self.rank % self._shards
        rows, each = len(tensor), -(-len(tensor) // self._shards)
        return slice(min(number * each, rows), min((number + 1) * each, rows))

    def norm(self, own: Tensor) -> Tensor:
        self.phase("gradient norm")
        squares = own.double().square()
        dist.all_reduce(squares, group=self._mesh.get_group("shards"))
        return squares.sqrt()

    def summed(self, tensor: Tensor, what: str) -> Tensor:
        self.phase(what)
        dist.all_reduce(tensor)
        return tensor

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
        rows: list[Tensor] = []
        for number, tensor in enumerate(tensors):
            whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            if number == self.rank and mapped is not None:
                whole = mapped
            dist.broadcast(whole, src=number)
            rows.append(whole[self.rows(whole)].clone())
        return rows

    @torch.no_grad()
    def gather(self, tensor: Tensor, name: str) -> Tensor:
        """A whole parameter on rank 0. All ranks gather it, which is one operation of every backend."""
        self.phase(f"gathering {name}")
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        return whole if self.rank == 0 else whole.to("meta")

    def gathers_to(self, model: nn.Module) -> torch.device:
        return self.device if self.rank == 0 else torch.device("meta")

    @contextmanager
    def gathered(self, model: nn.Module, name: str) -> Iterator[bool]:
        parts = name.split(".")
        modules = [model.get_submodule(".".join(parts[:count])) for count in range(len(parts))]
        unit = [module for module in modules if isinstance(module, FSDPModule)][-1]
        self.phase(f"gathering {name}")
        unit.unshard()
        try:
            yield self.rank == 0
        finally:
            unit.reshard()

    def write(self, write: Callable[[], None], gathered: Iterable[object], what: str) -> None:
        def work() -> None:
            if self.rank == 0:
                write()

        self.together(work, what, gathered)

    def together(self, work: Callable[[], None], what: str, gathered: Iterable[object] = ()) -> None:
        """Do something that may fail on a rank, and have all ranks raise what the first of them did. What `gathered`
        has left then is gathered first, which other ranks wait for."""
        fault: Exception | None = None
        try:
            work()
        except WhetError as error:
            fault = error
        except OSError as error:
            fault = TrainingError(f"rank {self.rank}, {what}: {error}. Is the disk full?")
        try:
            for _ in gathered:
                pass
        except WhetError as error:
            fault = fault or error
        faults = [one for one in self.of_all(_as_sent(fault), what) if one is not None]
        if faults:
            raise faults[0]

    def most(self, count: int, what: str) -> int:
        """The largest count of any rank."""
        self.phase(what)
        counts = torch.tensor(count, device=self.device)
        dist.all_reduce(counts, op=dist.ReduceOp.MAX)
        return int(counts)

    def of_all(self, mine: T, what: str) -> list[T]:
        """What each rank has, in the order of ranks."""
        self.phase(what)
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, mine)
        return values

    def close(self) -> None:
        dist.destroy_process_group()


def _as_sent(fault: Exception | None) -> Exception | None:
    """The error, or one of its text where it is made with other arguments than the text."""
    try:
        pickle.loads(pickle.dumps(fault))
    except TypeError:
        return TrainingError(str(fault))
    return fault


def call_layer(layer: Any, x_TD: Tensor, **options: Any) -> Tensor:
    """Calls a layer as a module, whose forward method is `run_layer`."""
    computed_TD: Tensor = layer(x_TD, **options)
    return computed_TD


def _add_up(module: Any) -> None:
    """Sum gradients over ranks instead of averaging them."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
