"""Probabilities of a batch's trained tokens under a model, micro-batch by micro-batch.

`ForwardPass` chooses between whet's own forward pass (`decoder.py`) and that of transformers (`PlainLayout`), and
brings what they need of a batch to the device. It knows nothing of losses and gradients.

`PlainLayout`: the forward pass of models that whet's own does not know: transformers' own, over padded micro-batches.

Sequences of similar length are rows of a rectangle, padded behind their end, where nothing that is causal looks. What
several sequences begin with is computed for each of them, and the logits of a micro-batch are held whole: slower than
`decoder.py`, and more memory. Dropout and everything else that a model does only in training stays off, since
probabilities are compared with those that were sampled; only an adapter has dropout.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from whet.errors import ConfigError
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.forward.compiled import check_compiler
from whet.rl.learner.forward.decoder import LayerCall, hidden_states
from whet.rl.learner.forward.layout import Index, TokenLayout, micro_batches
from whet.rl.learner.forward.logprobs import Kept, LowRankLogits, likeliest_tokens, token_logprobs

Layout: TypeAlias = "TokenLayout | PlainLayout"
"""A micro-batch, for whet's own forward pass or for that of transformers."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """A part of a batch that is computed at once."""

    batch: PackedBatch
    layout: Layout
    filler: bool = False  # computed only because other ranks compute one more; it counts for nothing
    name: str = "micro-batch"  # for people
    others: Tensor | int | None = None
    """Tokens beside each target: ids [N, K], whose logprobs follow the target's. Or a number, K: the ids of so many of
    the likeliest are returned in place of logprobs."""
    hidden: list[Tensor] | None = None  # takes the hidden states [N, hidden] of each pass, for a critic


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
        if computation.compile and not own:
            raise ConfigError(
                "[learner] compile = true would have no effect: transformers' own forward pass runs this model or its "
                "reference, and whet compiles parts of its own alone. Set it to false."
            )
        if computation.compile:
            check_compiler(device)

    def micro_batches(self, batch: PackedBatch, vocab_size: int) -> list[MicroBatch]:
        budget = self._computation.tokens_at_once
        if self.own:
            return [MicroBatch(batch, layout) for layout in micro_batches(batch, budget)]
        return [MicroBatch(batch, layout) for layout in padded_micro_batches(batch, budget, vocab_size)]

    def logprobs(self, model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """log p and entropy of a micro-batch's N targets under `model`; with `others` log p [N, 1 + K]."""
        half = self._computation.dtype == "bfloat16"
        # No weight is used twice in a pass: to cache them in bfloat16 would only hold them for longer.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            if isinstance(micro.layout, PlainLayout):
                if micro.hidden is not None:
                    raise ConfigError(
                        '[algorithm] advantage = "gae": the critic reads hidden states, which the forward pass of '
                        "transformers, as this model or its reference needs, does not give. Choose another advantage."
                    )
                return self._padded(model, micro.batch, micro.layout, micro.others)
            return self._flat(model, micro, micro.layout)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _padded(
        self, model: Any, batch: PackedBatch, layout: PlainLayout, others: Tensor | int | None
    ) -> tuple[Tensor, Tensor]:
        return padded_logprobs(
            model,
            layout,
            self.tensor(batch.ids[layout.targets]).long(),
            self.tensor(batch.temperatures[layout.targets]),
            self._kept(batch, layout.targets),
            others,
        )

    def _flat(self, model: Any, micro: MicroBatch, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        batch, others = micro.batch, micro.others
        hidden_UD = hidden_states(
            model.model,
            self.tensor(batch.ids[layout.tokens]).long(),
            layout,
            experts_TLK=None if batch.experts is None else self.tensor(batch.experts[layout.tokens]),
            recompute=self._computation.activation_checkpointing,
            fused=self._computation.compile,
            call_layer=self._call_layer,
        )
        if len(layout.predictor_of_distribution) > len(layout.predictors):
            hidden_UD = hidden_UD[self.tensor(layout.predictor_of_distribution)]
        if micro.hidden is not None:
            micro.hidden.append(hidden_UD.detach()[self.tensor(layout.distribution_of_target)])
        head = getattr(model.lm_head, "base_layer", model.lm_head)
        matrix, added = getattr(head, "matrix", head.weight), _added_logits(model.lm_head, hidden_UD)
        targets_N = self.tensor(batch.ids[layout.targets]).long()
        states_N = self.tensor(layout.distribution_of_target)
        if isinstance(others, int):
            return likeliest_tokens(hidden_UD, matrix, others, added)[states_N], hidden_UD.new_empty(0)
        if others is not None:
            targets_N, states_N = _with_others(targets_N, others), states_N.repeat_interleave(1 + others.shape[1])
        temperatures_D = self.tensor(batch.temperatures[layout.a_target_of_distribution])
        logprobs_N, entropies_N = token_logprobs(
            hidden_UD,
            matrix,
            targets_N.flatten(),
            states_N,
            F.pad(temperatures_D, (0, len(hidden_UD) - len(temperatures_D)), value=1.0),  # of padding
            self._kept(batch, layout.a_target_of_distribution),
            added,
            fused=self._computation.compile,
        )
        if others is None:
            return logprobs_N, entropies_N
        return logprobs_N.view_as(targets_N), entropies_N.view_as(targets_N)[:, 0]

    def _kept(self, batch: PackedBatch, targets: Index) -> Kept | None:
        """What the sampler's cuts left of the distribution of each target, where probabilities are compared in that."""
        if batch.kept is None:
            return None
        kept = batch.kept.take(targets)
        states = np.repeat(np.arange(len(kept)), kept.counts)
        return Kept(self.tensor(states), self.tensor(kept.ids).long())


def _with_others(targets_N: Tensor, others_NK: Tensor) -> Tensor:
    return torch.cat([targets_N[:, None], others_NK], 1)


def _added_logits(head: Any, hidden_UD: Tensor) -> LowRankLogits | None:
    """What a layer of PEFT's adds to the base's logits; None where the output matrix has no adapter, or it is off."""
    if not hasattr(head, "lora_A") or head.disable_adapters:
        return None
    (name,) = head.active_adapters
    left_UD = head.lora_dropout[name](hidden_UD)
    return LowRankLogits(head.lora_A[name](left_UD) * head.scaling[name], head.lora_B[name].weight)


LOGITS_HELD = 1 << 27
"""Logits of a micro-batch at most: 512 MB in fp32. One sequence may have more."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainLayout:
    """One micro-batch: B sequences, each as far as its trained tokens need it, of which N are trained."""

    ids_BT: Index  # 0 where a sequence has ended
    targets: Index  # N; where in the batch each trained token is
    row_N: Index
    column_N: Index  # of the token before it, which predicts it


def padded_micro_batches(batch: PackedBatch, token_budget: int, vocab_size: int) -> list[PlainLayout]:
    """The batch in rectangles of at most `token_budget` positions. Every trained token is a target exactly once.

    A sequence that is longer than the budget gets a rectangle of its own.
    """
    budget = min(token_budget, LOGITS_HELD // vocab_size)
    spans: list[tuple[int, int]] = []
    for start, stop in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        if len(trained := np.flatnonzero(batch.trained[start:stop])):
            spans.append((start, start + int(trained[-1])))
    pieces: list[list[tuple[int, int]]] = []
    for start, stop in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):  # the longest first
        if not pieces or (len(pieces[-1]) + 1) * (pieces[-1][0][1] - pieces[-1][0][0]) > budget:
            pieces.append([])
        pieces[-1].append((start, stop))
    return [_rectangle(batch, piece) for piece in pieces]


def _rectangle(batch: PackedBatch, spans: Sequence[tuple[int, int]]) -> PlainLayout:
    ids_BT = np.zeros((len(spans), max(stop - start for start, stop in spans)), np.int64)
    columns, targets = [], []
    for row, (start, stop) in enumerate(spans):
        ids_BT[row, : stop - start] = batch.ids[start:stop]
        columns.append(np.flatnonzero(batch.trained[start + 1 : stop + 1]))
        targets.append(start + 1 + columns[-1])
    return PlainLayout(
        ids_BT=ids_BT,
        targets=np.concatenate(targets),
        row_N=np.repeat(np.arange(len(spans)), list(map(len, columns))),
        column_N=np.concatenate(columns),
    )


def padded_logprobs(
    model: Any,
    layout: PlainLayout,
    targets_N: Tensor,
    temperatures_N: Tensor,
    kept: Kept | None,
    others: Tensor | int | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature)[target], and the entropy of that distribution in nats; fp32 [N].

    `others` as in `MicroBatch`. With `kept` the softmax is over these tokens of each target alone.
    """
    device = targets_N.device
    ids_BT = torch.from_numpy(layout.ids_BT).to(device)
    columns_K, target_N = np.unique(layout.column_N, return_inverse=True)
    taken, options = inspect.signature(model.forward).parameters, {}
    if "position_ids" in taken:
        options["position_ids"] = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)
    if "logits_to_keep" in taken:
        options["logits_to_keep"] = torch.from_numpy(columns_K).to(device)
    else:
        target_N = layout.column_N
    logits_BKV = model(ids_BT, use_cache=False, **options).logits
    logits_NV = logits_BKV[torch.from_numpy(layout.row_N).to(device), torch.from_numpy(target_N).to(device)]
    if isinstance(others, int):
        return logits_NV.topk(min(others, logits_NV.shape[1])).indices, logits_NV.new_empty(0)
    if others is not None:
        targets_N = _with_others(targets_N, others)
    # Computed again for its gradient, so that no more than the logits themselves is held.
    outputs: tuple[Tensor, Tensor] = checkpoint(
        _of_logits, logits_NV, targets_N, temperatures_N, kept, use_reentrant=False
    )
    return outputs


def _of_logits(
    logits_NV: Tensor, targets_N: Tensor, temperatures_N: Tensor, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    logits_NV = logits_NV.float() / temperatures_N[:, None]
    if kept is None:
        logs_NV = summed_NV = logits_NV.log_softmax(-1)
    else:
        cut_NV = kept.cut(slice(0, logits_NV.shape[0]), slice(0, logits_NV.shape[1]))
        logs_NV = logits_NV.masked_fill(cut_NV, -math.inf).log_softmax(-1)
        summed_NV = logs_NV.masked_fill(cut_NV, 0.0)
    logprobs_N = logs_NV.gather(1, targets_N.view(len(targets_N), -1)).view_as(targets_N)
    return logprobs_N, -(logs_NV.exp() * summed_NV).sum(-1)


def recompute_layers(model: nn.Module) -> None:
    """Keep only the input of each layer from now on, and compute the layer again when its gradient is.

    Raises `ConfigError` for a model whose layers do not say that they can be.
    """
    layers: list[Any] = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            "[learner] activation_checkpointing: transformers cannot compute this model's layers again; set it to false"
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
