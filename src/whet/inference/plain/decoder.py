"""The forward pass of models that whet's own does not know: transformers' own, over a KV cache of slots and columns.

What transformers promises for every model that generates in batches is all that is relied on: rows that end together,
padding before them, a mask that leaves the padding out, and the position of each token. So the cache holds a slot's
keys and values from column 0 on, as `PlainCache` does, and before each layer's attention those of the batch are copied
to the right:

    slot 0   a b c d e .        given to transformers   a b c d e
    slot 1   f g . . . .                                - - - f g

That copy, and the general code behind it, make it slower than `decoder.py`, whose interface it has. Nothing is
approximated: `probe` compares it with a forward pass without a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from whet.errors import ModelLoadError
from whet.inference.decoding.adapter_rows import AdapterRows
from whet.inference.decoding.functions import at_once
from whet.inference.decoding.scoring import LOGITS_AT_ONCE, PromptScorer
from whet.inference.plain.weights import PlainForm, PlainWeights, projections
from whet.inference.weights.weight_loader import WeightLoader

_SCORES_PER_CHUNK = 1 << 24
"""Largest number of attention scores of a layer that a prefill computes at a time on a CPU (64 MiB in float32)."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of one forward pass, which end together: their last `queries` columns are the tokens fed."""

    slots_B: Tensor
    width: int
    queries: int
    real_BQ: Tensor  # which of the tokens fed are no padding
    slot_N: Tensor  # where in the cache each of those belongs
    position_N: Tensor
    columns_BW: Tensor | None  # which column of its slot is at each position; None where all rows begin together
    mask_BW: Tensor

    @classmethod
    def of(cls, slots: list[int], ends: list[int], fed: list[int], device: torch.device) -> _Batch:
        """Row i has `ends[i]` tokens, of which the last `fed[i]` are fed."""
        width, queries = max(ends), max(fed)
        slots_B = torch.tensor(slots, device=device)
        ends_B1, fed_B1 = (torch.tensor(counts, device=device).unsqueeze(1) for counts in (ends, fed))
        offsets_BW = torch.arange(width, device=device) - (width - ends_B1)
        real_BQ = torch.arange(queries, device=device) >= queries - fed_B1
        return cls(
            slots_B=slots_B,
            width=width,
            queries=queries,
            real_BQ=real_BQ,
            slot_N=slots_B.unsqueeze(1).expand_as(real_BQ)[real_BQ],
            position_N=offsets_BW[:, width - queries :][real_BQ],
            columns_BW=None if min(ends) == width else offsets_BW.clamp(min=0),
            mask_BW=(offsets_BW >= 0).long(),
        )

    @property
    def positions_BQ(self) -> Tensor:
        return (self.mask_BW.cumsum(1) - 1).clamp_(min=0)[:, self.width - self.queries :]


class _RowsOfLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers' cache has no types
    """What transformers takes for one layer's cache: keeps what is new in its slot, and gives back whole rows."""

    is_sliding = False
    is_croppable = False

    def __init__(self, keys: Tensor, values: Tensor, batch: _Batch) -> None:
        super().__init__()
        self._stored, self._batch = (keys, values), batch
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        batch = self._batch
        whole = []
        for stored, new in zip(self._stored, (key_states, value_states), strict=True):
            stored[batch.slot_N, :, batch.position_N] = new.transpose(1, 2)[batch.real_BQ].to(stored.dtype)
            if batch.columns_BW is None:
                whole.append(stored[:, :, : batch.width].index_select(0, batch.slots_B))
            else:
                whole.append(stored[batch.slots_B.unsqueeze(1), :, batch.columns_BW].transpose(1, 2))
        self.keys, self.values = whole  # some models read those of an earlier layer here
        return whole[0], whole[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._batch.width, 0

    def get_seq_length(self) -> int:
        """Of what came before the tokens fed."""
        return self._batch.width - self._batch.queries

    def get_max_length(self) -> int:
        return -1


class PlainDecoder:
    """A transformers model and a cache, with the two passes of `decoder.Decoder`."""

    def __init__(self, model: PreTrainedModel, weights: PlainWeights, cache: PlainCache) -> None:
        self.cache = cache
        self._model, self._weights = model, weights
        taken = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in taken
        self._takes_last = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self._row_adapters: AdapterRows | None = None
        self._hooked = False

    @property
    def weights(self) -> PlainWeights:
        return self._weights

    @weights.setter
    def weights(self, weights: PlainWeights) -> None:
        weights.put_into(self._model)
        self._weights = weights

    def decode(self, ids_B: Tensor, positions_B: Tensor, width: int, adapters: AdapterRows | None = None) -> Tensor:
        """See `Decoder.decode`. `width` is not needed: rows are as long as they are."""
        ends = [position + 1 for position in positions_B.tolist()]
        batch = _Batch.of(list(range(len(ends))), ends, [1] * len(ends), ids_B.device)
        return self._forward(ids_B.unsqueeze(1), batch, adapters, self._takes_last)[:, -1].float()

    def prefill(
        self,
        slots: list[int],
        starts: list[int],
        tokens: list[list[int]],
        adapters: AdapterRows | None = None,
        scorers: Sequence[PromptScorer] = (),
    ) -> None:
        """See `Decoder.prefill`."""
        longest, heads = max(map(len, tokens)), self.cache.keys[0].shape[1]
        width = max(start + len(row) for start, row in zip(starts, tokens, strict=True))
        device = self.cache.index.device
        step = max(1, at_once(_SCORES_PER_CHUNK, device) // (len(slots) * heads * width))
        if scorers:
            vocabulary = self._model.get_input_embeddings().num_embeddings
            step = min(step, max(1, at_once(LOGITS_AT_ONCE, device) // (len(slots) * vocabulary)))
        for offset in range(0, longest, step):
            parts = [row[offset : offset + step] for row in tokens]
            ends = [start + min(offset + step, len(row)) for start, row in zip(starts, tokens, strict=True)]
            fed = list(map(len, parts))
            padded = [[0] * (max(fed) - len(part)) + part for part in parts]
            ids_BQ = torch.tensor(padded, device=self.cache.index.device)
            batch = _Batch.of(slots, ends, fed, ids_BQ.device)
            rows = None if adapters is None else adapters.over(ids_BQ.shape[1])
            logits_BQV = self._forward(ids_BQ, batch, rows, {} if scorers else self._takes_last)
            for row, scorer in enumerate(scorers):
                skipped = max(0, scorer.first - 1 - starts[row] - offset)
                if fed[row] > skipped:  # rows are padded in front
                    scorer.take(starts[row] + offset + skipped, logits_BQV[row, -fed[row] :][skipped:].float())

    def _forward(self, ids_BQ: Tensor, batch: _Batch, adapters: AdapterRows | None, kept: Mapping[str, int]) -> Tensor:
        """Logits of what follows each token, or with `kept` the last ones alone."""
        layers = [_RowsOfLayer(*stored, batch) for stored in zip(self.cache.keys, self.cache.values, strict=True)]
        positions = {"position_ids": batch.positions_BQ} if self._takes_positions else {}
        self._adapt(adapters)
        try:
            output = self._model(
                ids_BQ,
                attention_mask=batch.mask_BW,
                past_key_values=Cache(layers=layers),
                use_cache=True,
                **positions,
                **kept,
            )
        finally:
            self._row_adapters = None
        logits: Tensor = output.logits
        return logits

    def _adapt(self, adapters: AdapterRows | None) -> None:
        """Of the next forward pass; a model that never has adapters has no hooks."""
        self._row_adapters = adapters
        if adapters is not None and not self._hooked:
            for index, module in enumerate(projections(self._model).values()):
                module.register_forward_hook(self._adding(index))
            self._hooked = True

    def _adding(self, projection: int) -> Any:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self._row_adapters is None:
                return output
            added = output.reshape(-1, output.shape[-1]).clone()
            self._row_adapters.add(added, inputs[0].reshape(-1, inputs[0].shape[-1]), 0, projection)
            return added.view(output.shape)

        return add


def plain_parts(
    model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device
) -> tuple[PlainCache, WeightLoader[PlainWeights], PlainDecoder]:
    """What an engine over this model computes with. Raises `ModelLoadError` where it could not be exact."""
    model = model.to(device).eval().requires_grad_(False)
    probe(model)
    weights = PlainWeights.of_model(model)
    cache = PlainCache(cache_shapes(model), dtype=dtype, device=device)
    form = PlainForm(model, dtype=dtype, device=device)
    return cache, WeightLoader(form, weights.tensors(), device=device), PlainDecoder(model, weights, cache)


@torch.inference_mode()
def probe(model: PreTrainedModel) -> None:
    """Compare a few tokens through the cache, in rows of different length, with a forward pass without a cache.

    Raises `ModelLoadError` where the two differ by more than rounding: then the model reads more than the past of a
    token, or its positions cannot be continued.
    """
    cache = PlainCache(cache_shapes(model), dtype=model.dtype, device=model.device)
    cache.resize(2, 8, kept=0)
    decoder = PlainDecoder(model, PlainWeights.of_model(model), cache)
    vocabulary = model.get_input_embeddings().num_embeddings
    long, short = ([(7 * i + 3) % vocabulary for i in range(count)] for count in (7, 4))
    kind = model.config.model_type
    wrong = f"{kind} models cannot be continued exactly from cached keys and values, which sampling needs"
    try:
        decoder.prefill([0], [0], [long[:3]])
        decoder.prefill([0, 1], [3, 0], [long[3:-1], short[:-1]])
        last = torch.tensor([long[-1], short[-1]], device=model.device)
        positions = torch.tensor([len(long) - 1, len(short) - 1], device=model.device)
        cached = decoder.decode(last, positions, 8).log_softmax(-1)
        whole = [model(torch.tensor([ids], device=model.device), use_cache=False).logits for ids in (long, short)]
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, IndexError) as error:
        raise ModelLoadError(f"{wrong} ({str(error).partition(chr(10))[0]})") from None
    expected = torch.stack([logits[0, -1].float().log_softmax(-1) for logits in whole])
    bound = 1e-3 if model.dtype == torch.float32 else 0.25
    if not (difference := (cached - expected).abs().max().item()) <= bound:
        raise ModelLoadError(f"{wrong}: logprobs differ by {difference:.2g} from those of a whole forward pass")


# The KV cache of a transformers model: slots x columns for each layer, whatever its heads and widths.


class LayerShape(NamedTuple):
    """Of one layer's cache."""

    heads: int
    key_width: int
    value_heads: int
    value_width: int


def cache_shapes(model: PreTrainedModel) -> list[LayerShape]:
    """What each layer keeps of a token, as a forward pass over one token shows it.

    Raises `ModelLoadError` for a model that keeps anything else than keys and values of every token: states that sum up
    the past cannot be cut back to where two rollouts part.
    """
    kind = model.config.model_type
    other = ModelLoadError(
        f"{kind} models keep more than keys and values of tokens (such as the state of a recurrent layer); whet cannot "
        "continue those from where two rollouts part, and does not run them. Use a vLLM server to sample from them."
    )
    if getattr(model, "_is_stateful", False):
        raise other
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        try:
            model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            raise other from None
    shapes = []
    for layer in cache.layers:
        if type(layer) is DummyLayer:  # this one reads the keys and values of an earlier one
            shapes.append(LayerShape(0, 0, 0, 0))
            continue
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or layer.keys is None or layer.keys.dim() != 4:
            raise other
        keys, values = layer.keys, layer.values
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]))
    return shapes


class PlainCache:
    """Keys and values `[S, heads, T, D]` of each layer, which may differ in heads and width. See `cache.KVCache`."""

    def __init__(self, shapes: Sequence[LayerShape], *, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device
        numbers = sum(one.heads * one.key_width + one.value_heads * one.value_width for one in shapes)
        self.bytes_per_token = numbers * dtype.itemsize
        self.slots = self.columns = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.index = torch.arange(0, device=device)
        self._allocate(0, 0, kept=0)

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, self.index]

    def resize(self, slots: int, columns: int, *, kept: int) -> None:
        """Become exactly this large. Of the first `kept` slots what is in both rectangles stays."""
        self._allocate(slots, columns, kept=min(kept, slots, self.slots))

    def _allocate(self, slots: int, columns: int, *, kept: int) -> None:
        width = min(columns, self.columns)

        def resized(old: list[Tensor], shapes: list[tuple[int, int]]) -> list[Tensor]:
            new = [torch.zeros(slots, h, columns, d, dtype=self._dtype, device=self._device) for h, d in shapes]
            for to, source in zip(new, old, strict=False):
                to[:kept, :, :width] = source[:kept, :, :width]
            return new

        self.keys = resized(self.keys, [(one.heads, one.key_width) for one in self._shapes])
        self.values = resized(self.values, [(one.value_heads, one.value_width) for one in self._shapes])
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot, as they are now, to its target slot."""
        if length == 0 or not sources:
            return
        source, target = (torch.tensor(slots, device=self._device) for slots in (sources, targets))
        for layer in (*self.keys, *self.values):
            part = layer[:, :, :length]
            part.index_copy_(0, target, part.index_select(0, source))

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)
