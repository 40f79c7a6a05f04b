"""What one rank of many computes: the `Learner` protocol over a part of each batch and of each parameter.

Every method is called on all ranks at once, with the same arguments but for the part of the batch, and all raise the
same error. The driver that starts ranks, gives each its part and joins what they return is `ranks_learner.py`.

    forward_backward   every rank computes as many micro-batches as the one with the most, whole layers gathered one
                       after the other; a rank that has fewer fills up with one token that counts for nothing
    optim_step         each rank updates its part; the gradient's norm is that of all
    publish, export    all ranks gather one tensor after the other, and rank 0 writes
    save               rank 0 writes the weights, each rank its part of the optimiser's state
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.errors import TrainingError
from whet.inference.devices import choose_device, expand_segments
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward.forward_pass import ForwardPass, MicroBatch
from whet.rl.learner.make import Dtype, LearnerParts, learner_parts
from whet.rl.learner.protocol import LossOutput
from whet.rl.learner.ranks.rank_group import empty_part, one_token
from whet.rl.learner.ranks.sharding import Sharding, call_layer
from whet.rl.learner.saved_state import SavedState, check_saved, save_state_of_ranks
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.learner.weights import PublishFormat
from whet.rl.sections.algorithm import LossConfig


def make_rank_learner(
    model: Path,
    *,
    rank: int,
    world_size: int,
    init_method: str,
    collective_timeout_s: float,
    phase: Callable[[str], None],
    optimizer: OptimizerConfig,
    lora: LoraConfig | None,
    max_steps: int,
    seed: int,
    publish_directory: Path,
    computation: LearnerConfig | None = None,
    publish_dtype: Dtype = "float32",
    publish_format: PublishFormat = "packed",
    threads: int | None = None,
    reference: str | None = None,
) -> RankLearner:
    """One rank's learner over the checkpoint in `model`, as `make_learner` has it. Returns when all ranks have theirs.

    `init_method` is where ranks meet, as `torch.distributed` has it (`tcp://host:port`, `file:///path`). No collective
    operation takes longer than `collective_timeout_s`: it raises there. `phase` is called, with a name for people,
    before everything that may wait for other ranks. On CUDA without an index, rank r takes device r of its host, modulo
    their number. A reference is never computed in a thread: ranks have to meet in one order. Raises what `make_learner`
    does.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    computation = computation or LearnerConfig()
    device = choose_device(computation.device, "[learner] device")
    if device == "cuda":
        device = f"cuda:{rank % torch.cuda.device_count()}"
    expand_segments(device)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    sharding = Sharding(
        rank,
        world_size,
        device=torch.device(device),
        init_method=init_method,
        timeout_s=collective_timeout_s,
        phase=phase,
        shard_ranks=computation.shard_ranks,
    )
    computation = computation.settled(adapter=lora is not None).model_copy(update={"device": device})
    parts = learner_parts(
        model,
        lora=lora,
        seed=seed,
        computation=computation,
        publish_dtype=publish_dtype,
        publish_format=publish_format,
        reference=reference,
        sharding=sharding,
    )
    torch.manual_seed(seed + rank)  # adapters begin as equals, but each rank's dropout is its own
    forward = ShardedPass(sharding, computation, own=parts.arch is not None)
    return RankLearner(
        sharding, forward, parts, optimizer, computation, max_steps=max_steps, publish_directory=publish_directory
    )


class RankLearner(TorchLearner):
    """See `whet.rl.learner.protocol.Learner`; `forward_backward` and `token_logprobs` take this rank's part alone."""

    _alone = False

    def __init__(
        self,
        sharding: Sharding,
        forward: ShardedPass,
        parts: LearnerParts,
        optimizer: OptimizerConfig,
        computation: LearnerConfig,
        *,
        max_steps: int,
        publish_directory: Path,
    ) -> None:
        """`parts` are divided already."""
        super().__init__(
            parts.weights,
            optimizer,
            computation,
            max_steps=max_steps,
            publish_directory=publish_directory,
            arch=parts.arch,
            reference=parts.reference,
            whole=sharding,
            forward=forward,
        )
        self._sharding = sharding
        self._sharded = forward

    def forward_backward(self, batch: PackedBatch | None, loss: LossConfig) -> LossOutput:
        """As `TorchLearner` does, of this rank's part; None where it has none."""
        return super().forward_backward(empty_part() if batch is None else batch, loss)

    def token_logprobs(self, batch: PackedBatch | None) -> NDArray[np.float32]:
        found_T = super().token_logprobs(empty_part() if batch is None else batch)
        self._reshard()
        return found_T

    def token_values(self, batch: PackedBatch | None) -> NDArray[np.float32]:
        found_T = super().token_values(empty_part() if batch is None else batch)
        self._reshard()
        return found_T

    def _hold_reference(self) -> None:
        assert self._reference is not None, "checked by the config"
        with self._reference.lend() as model:  # behind its last pass some of it is still gathered
            model.reshard()
        super()._hold_reference()

    def reference_logprobs(self, batch: PackedBatch | None) -> NDArray[np.float32]:
        logprobs_T = super().reference_logprobs(empty_part() if batch is None else batch)
        self._reshard()
        return logprobs_T

    def _save_state(self, directory: Path, state: SavedState) -> None:
        self._sharding.together(
            lambda: save_state_of_ranks(directory, state, self._sharding), "writing the optimiser's state"
        )

    def _read(self, directory: Path) -> SavedState:
        self._sharding.together(lambda: check_saved(directory), "looking for a checkpoint")
        states: list[SavedState] = []
        self._sharding.together(
            lambda: states.append(super(RankLearner, self)._read(directory)), "reading a checkpoint"
        )
        return states[0]

    def close(self) -> None:
        super().close()
        self._sharding.close()

    def _micro_batches(self, batch: PackedBatch) -> list[MicroBatch]:
        """As many as the rank with the most has."""
        micros = super()._micro_batches(batch)
        most = self._sharding.most(len(micros), "agreeing on the number of micro-batches")
        if len(micros) < most:
            filler = replace(super()._micro_batches(one_token())[0], filler=True)
            micros += [filler] * (most - len(micros))
        return [replace(micro, name=f"micro-batch {i} of {most}") for i, micro in enumerate(micros, start=1)]

    def _wholes(self, micros: Any) -> list[tuple[Tensor, Tensor]]:
        wholes = super()._wholes(micros)
        self._reshard()
        return wholes

    def _with_likeliest(self, micros: Any, count: int) -> list[MicroBatch]:
        with_ids = super()._with_likeliest(micros, count)
        self._reshard()
        return with_ids

    def _backward(self, total: Tensor) -> None:
        self._sharded.says("reduce-scatter of gradients")
        super()._backward(total)

    def _agreed(self, fault: TrainingError | None) -> TrainingError | None:
        faults = self._sharding.of_all(None if fault is None else str(fault), "agreeing that the loss is finite")
        return next((TrainingError(text) for text in faults if text is not None), None)

    def _reshard(self) -> None:
        """Behind a forward pass without a backward one, what does not belong to a layer is still gathered."""
        self.weights.model.reshard()


class ShardedPass(ForwardPass):
    """A forward pass in which FSDP2 gathers what is computed with."""

    def __init__(self, sharding: Sharding, computation: LearnerConfig, *, own: bool) -> None:
        super().__init__(computation, sharding.device, own=own, call_layer=call_layer)
        self._phase = sharding.phase
        self._micro = ""

    def says(self, what: str) -> None:
        """What the micro-batch that was computed last waits for."""
        self._phase(f"{what}, {self._micro}")

    def logprobs(self, model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        self._micro = micro.name
        self.says("all-gather of weights")
        if not self.own:
            return super().logprobs(model, micro)
        if "forward" not in vars(model):  # called as a module, it runs FSDP2's hooks
            model.forward = partial(super().logprobs, model)
        outputs: tuple[Tensor, Tensor] = model(micro)
        return outputs
