"""Probabilities of a batch's trained tokens under a model, micro-batch by micro-batch.

`ForwardPass` chooses between whet's own forward pass (`decoder.py`) and that of transformers (`plain.py`), and brings
what they need of a batch to the device. It knows nothing of losses and gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from whet.rl.data.batch import PackedBatch
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.forward.decoder import LayerCall, hidden_states
from whet.rl.learner.forward.layout import Index, TokenLayout, micro_batches
from whet.rl.learner.forward.logprobs import Kept, token_logprobs
from whet.rl.learner.forward.plain import PlainLayout, padded_logprobs, padded_micro_batches

Layout: TypeAlias = TokenLayout | PlainLayout
"""A micro-batch, for whet's own forward pass or for that of transformers."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """A part of a batch that is computed at once."""

    batch: PackedBatch
    layout: Layout
    filler: bool = False  # computed only because other ranks compute one more; it counts for nothing
    name: str = "micro-batch"  # for people


class ForwardPass:
    """What a model makes of a batch, by `[learner]`."""

    def __init__(
        self, computation: LearnerConfig, device: torch.device, *, own: bool, call_layer: LayerCall | None = None
    ) -> None:
        """`own`: by whet's own forward pass, which runs each layer through `call_layer`."""
        self.device = device
        self.own = own
        self._computation = computation
        self._call_layer = call_layer

    def micro_batches(self, batch: PackedBatch, vocab_size: int) -> list[MicroBatch]:
        budget = self._computation.micro_batch_tokens
        if self.own:
            return [MicroBatch(batch, layout) for layout in micro_batches(batch, budget)]
        return [MicroBatch(batch, layout) for layout in padded_micro_batches(batch, budget, vocab_size)]

    def logprobs(self, model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """log p and entropy of a micro-batch's N targets under `model`."""
        half = self._computation.dtype == "bfloat16"
        # No weight is used twice in a pass: to cache them in bfloat16 would only hold them for longer.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            if isinstance(micro.layout, PlainLayout):
                return self._padded(model, micro.batch, micro.layout)
            return self._flat(model, micro.batch, micro.layout)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _padded(self, model: Any, batch: PackedBatch, layout: PlainLayout) -> tuple[Tensor, Tensor]:
        return padded_logprobs(
            model,
            layout,
            self.tensor(batch.ids[layout.targets]).long(),
            self.tensor(batch.temperatures[layout.targets]),
            self._kept(batch, layout.targets),
        )

    def _flat(self, model: Any, batch: PackedBatch, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        hidden_UD = hidden_states(
            model.model,
            self.tensor(batch.ids[layout.tokens]).long(),
            layout,
            experts_TLK=None if batch.experts is None else self.tensor(batch.experts[layout.tokens]),
            recompute=self._computation.activation_checkpointing,
            call_layer=self._call_layer,
        )
        if len(layout.predictor_of_distribution) > len(layout.predictors):
            hidden_UD = hidden_UD[self.tensor(layout.predictor_of_distribution)]
        temperatures_D = self.tensor(batch.temperatures[layout.a_target_of_distribution])
        return token_logprobs(
            hidden_UD,
            model.lm_head.weight,
            self.tensor(batch.ids[layout.targets]).long(),
            self.tensor(layout.distribution_of_target),
            F.pad(temperatures_D, (0, len(hidden_UD) - len(temperatures_D)), value=1.0),  # of padding
            self._kept(batch, layout.a_target_of_distribution),
        )

    def _kept(self, batch: PackedBatch, targets: Index) -> Kept | None:
        """What the sampler's cuts left of the distribution of each target, where probabilities are compared in that."""
        if batch.kept is None:
            return None
        kept = batch.kept.take(targets)
        states = np.repeat(np.arange(len(kept)), kept.counts)
        return Kept(self.tensor(states), self.tensor(kept.ids).long())
