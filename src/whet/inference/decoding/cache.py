"""The KV cache: one rectangle of slots x columns, indexed by (layer, slot, head, position).

Slot `s` holds one sequence from column 0 on, so a row's position is its column and later turns of a rollout
continue where the earlier ones ended. `scheduler.py` assigns the slots and decides the number of columns.

What a decode step needs to know of every slot, as tensors: its tokens so far, its random numbers, where it ends.

Everything a row draws stays in these tensors until the row is done, so a step costs no Python work per row. A row that
is not running keeps its position: it is computed along with the others, writes where nothing is kept, and is never
done.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.inference.architecture import Architecture
from whet.inference.decoding.sampling import Cuts, SampledTokens, uniforms
from whet.inference.decoding.scheduler import SampleJob
from whet.inference.protocol import SamplingParams


class KVCache:
    """Keys and values `[S, heads, T, D]` of each layer; zeros at first, so unwritten columns are finite."""

    def __init__(
        self, arch: Architecture, *, dtype: torch.dtype, device: torch.device, record_experts: bool = False
    ) -> None:
        self._arch, self._device = arch, device
        self._recorded = arch.experts.per_token if record_experts and arch.experts is not None else 0
        self.slots = 0
        self.columns = 0
        self.dtype = dtype
        empty = torch.zeros(0, arch.num_kv_heads, 0, arch.head_dim, dtype=dtype, device=device)
        self.keys, self.values = [empty] * arch.num_layers, [empty] * arch.num_layers
        self.experts = self._allocate_experts(0, 0)
        """`[L, S, T, K]`: the experts that each token went to, -1 where it went to none; K = 0 unless recorded."""
        self.index = torch.arange(0, device=device)
        """0, 1, 2, ... as far as slots or columns go."""

    @staticmethod
    def bytes_per_token(arch: Architecture, dtype: torch.dtype) -> int:
        return arch.kv_values_per_token * dtype.itemsize

    def _allocate_experts(self, slots: int, columns: int) -> Tensor:
        shape = (self._arch.num_layers, slots, columns, self._recorded)
        return torch.full(shape, -1, dtype=torch.int16, device=self._device)

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, self.experts, self.index]

    def resize(self, slots: int, columns: int, *, kept: int) -> None:
        """Become exactly this large. Of the first `kept` slots what is in both rectangles stays."""
        kept, width = min(kept, slots, self.slots), min(columns, self.columns)
        for layers in (self.keys, self.values):
            for i, old in enumerate(layers):  # one after the other: no more than one of them is held twice
                layers[i] = _rectangle(old, slots, columns, kept, width)
        if self._recorded:
            old_experts, self.experts = self.experts, self._allocate_experts(slots, columns)
            self.experts[:, :kept, :width] = old_experts[:, :kept, :width]
        self.slots, self.columns = slots, columns
        self.index = torch.arange(max(slots, columns), device=self._device)

    def copy_prefix(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` columns of each source slot, as they are now, to its target slot."""
        if length == 0 or not sources:
            return
        source, target = self._index(sources), self._index(targets)
        for whole in (*self.keys, *self.values):
            layer = whole[:, :, :length]
            layer.index_copy_(0, target, layer.index_select(0, source))  # what one layer needs stays near the core
        if self._recorded:
            self.experts[:, target, :length] = self.experts[:, source, :length]

    def record(self, layer: int, slots: Tensor, positions: Tensor, chosen_NK: Tensor | int) -> None:
        """Record which experts tokens went to, where that is switched on."""
        if self._recorded:
            chosen = chosen_NK.to(torch.int16) if isinstance(chosen_NK, Tensor) else chosen_NK
            self.experts[layer][slots, positions] = chosen

    def swap(self, left: list[int], right: list[int], length: int) -> None:
        """Exchange the first `length` columns of pairs of slots."""
        self.copy_prefix(left + right, right + left, length)

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)


def _rectangle(old: Tensor, slots: int, columns: int, kept: int, width: int) -> Tensor:
    """Another rectangle with the first `kept` slots and `width` columns of `old`, and zeros."""
    _, heads, _, dim = old.shape
    new = old.new_empty(slots, heads, columns, dim)
    new[:kept, :, :width] = old[:kept, :, :width]
    new[:kept, :, width:] = 0
    new[kept:] = 0
    return new


_NEVER = 1 << 40
_NO_TOKEN = -1


class BatchRows:
    """One row per cache slot (S), columns are positions in the sequence (T)."""

    def __init__(self, device: torch.device, vocab_size: int) -> None:
        self._device, self._vocab_size = device, vocab_size
        self._temperature_off, self._greedy_off, self._cuts_off = True, True, True
        self.slots = self.columns = 0
        self.tokens_ST = torch.zeros(0, 1, dtype=torch.int64, device=device)
        self.logprobs_ST = torch.zeros(0, 1, device=device)
        self.mass_ST = torch.zeros(0, 1, device=device)  # of what cuts left to draw from; of rows that cut alone
        self.uniforms_ST = torch.zeros(0, 1, device=device)
        self.position_S = torch.zeros(0, dtype=torch.int64, device=device)  # of the token fed next
        self._advance_S = torch.zeros(0, dtype=torch.int64, device=device)  # 1 while running
        self._offset_S = torch.zeros(0, dtype=torch.int64, device=device)  # start of the row in the flattened tensors
        self._last_S = torch.zeros(0, dtype=torch.int64, device=device)  # position of the last token it may draw
        self._stops_SK = torch.full((0, 1), _NO_TOKEN, device=device)
        self._inverse_temperature_S = torch.ones(0, device=device)
        self._greedy_S = torch.zeros(0, dtype=torch.bool, device=device)
        self._cuts = Cuts(
            torch.zeros(0, dtype=torch.int64, device=device),
            torch.ones(0, device=device),
            torch.zeros(0, device=device),
        )

    def resize(self, slots: int, columns: int) -> None:
        """Follow the cache; one column more, for the last token drawn, which is never fed."""
        width = columns + 1
        self.tokens_ST = _resized(self.tokens_ST, 0, slots, width)
        self.logprobs_ST = _resized(self.logprobs_ST, 0.0, slots, width)
        self.mass_ST = _resized(self.mass_ST, 1.0, slots, width)
        self.uniforms_ST = _resized(self.uniforms_ST, 0.5, slots, width)
        self._stops_SK = _resized(self._stops_SK, _NO_TOKEN, slots, self._stops_SK.shape[1])
        self.position_S = _resized(self.position_S, 0, slots).clamp_max_(columns - 1)
        self._advance_S = _resized(self._advance_S, 0, slots)
        self._last_S = _resized(self._last_S, _NEVER, slots)
        self._inverse_temperature_S = _resized(self._inverse_temperature_S, 1.0, slots)
        self._greedy_S = _resized(self._greedy_S, False, slots)
        cuts = self._cuts
        self._cuts = Cuts(
            _resized(cuts.top_k_B, self._vocab_size, slots),
            _resized(cuts.top_p_B, 1.0, slots),
            _resized(cuts.min_p_B, 0.0, slots),
        )
        self._offset_S = torch.arange(slots, device=self._device) * width
        self.slots, self.columns = slots, columns

    def start(self, jobs: list[SampleJob]) -> None:
        """Set up the rows of newly admitted jobs: the next token each feeds is the last of its prompt."""
        prompts = [job.request.prompt_ids for job in jobs]
        params = [job.request.params for job in jobs]
        slots = torch.tensor([job.slot for job in jobs], device=self._device)
        longest, shortest = max(map(len, prompts)), min(map(len, prompts))
        padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=self._device)
        self.tokens_ST[slots, :longest] = padded
        drawn = max(job.total for job in jobs) - shortest
        numbers = uniforms([job.seed for job in jobs], [shortest] * len(jobs), drawn)
        self.uniforms_ST[slots, shortest : shortest + drawn] = torch.from_numpy(numbers).to(self._device)
        most_stops = max(len(p.stop_token_ids) for p in params)
        if most_stops > self._stops_SK.shape[1]:
            self._stops_SK = _resized(self._stops_SK, _NO_TOKEN, self.slots, most_stops)
        width = self._stops_SK.shape[1]
        # What the vocabulary does not have is never drawn. int64 holds what is left, whatever the request has.
        ids = [[token for token in p.stop_token_ids if 0 <= token < self._vocab_size] for p in params]
        stops = [[*own, *[_NO_TOKEN] * (width - len(own))] for own in ids]
        self._stops_SK[slots] = self._column(stops)
        self.position_S[slots] = self._column([len(prompt) - 1 for prompt in prompts])
        self._last_S[slots] = self._column([job.total - 1 for job in jobs])
        self._advance_S[slots] = 1
        self._inverse_temperature_S[slots] = self._column([1.0 if p.greedy else 1.0 / p.temperature for p in params])
        self._greedy_S[slots] = self._column([p.greedy for p in params])
        self._cuts.top_k_B[slots] = self._column(
            [min(p.top_k, self._vocab_size) if p.top_k > 0 else self._vocab_size for p in params]
        )
        self._cuts.top_p_B[slots] = self._column([float(p.top_p) for p in params])
        self._cuts.min_p_B[slots] = self._column([float(p.min_p) for p in params])

    def stop(self, slots: list[int]) -> None:
        """These rows are done: they keep their positions."""
        index = torch.tensor(slots, dtype=torch.long, device=self._device)
        self._advance_S[index] = 0
        self._last_S[index] = _NEVER
        self._stops_SK[index] = _NO_TOKEN

    def swap(self, left: list[int], right: list[int]) -> None:
        """Exchange pairs of rows."""
        source = torch.tensor(left + right, device=self._device)
        target = torch.tensor(right + left, device=self._device)
        per_row = (
            self.position_S,
            self._advance_S,
            self._last_S,
            self._stops_SK,
            self._inverse_temperature_S,
            self._greedy_S,
        )
        cuts = (self._cuts.top_k_B, self._cuts.top_p_B, self._cuts.min_p_B)
        for tensor in (self.tokens_ST, self.logprobs_ST, self.mass_ST, self.uniforms_ST, *per_row, *cuts):
            tensor[target] = tensor[source]

    def note_params(self, params: list[SamplingParams]) -> None:
        """Find out which parts of sampling the running rows need at all."""
        self._temperature_off = all(p.greedy or p.temperature == 1 for p in params)
        self._greedy_off = not any(p.greedy for p in params)
        self._cuts_off = all(p.top_p >= 1 and p.top_k <= 0 and p.min_p <= 0 for p in params)

    def inverse_temperature(self, rows: int) -> Tensor | None:
        return None if self._temperature_off else self._inverse_temperature_S[:rows]

    def greedy(self, rows: int) -> Tensor | None:
        return None if self._greedy_off else self._greedy_S[:rows]

    def cuts(self, rows: int) -> Cuts | None:
        cuts = self._cuts
        return None if self._cuts_off else Cuts(cuts.top_k_B[:rows], cuts.top_p_B[:rows], cuts.min_p_B[:rows])

    def next_places(self, rows: int) -> Tensor:
        """Where the tokens fed next are in the flattened `[S * T]` tensors; tokens drawn go to the next position."""
        return self._offset_S[:rows] + self.position_S[:rows]

    def advance(self, places_B: Tensor, drawn: SampledTokens) -> Tensor:
        """Store what was drawn at `places_B`, move running rows on, and say which are done, `[B]` bool."""
        tokens_B, logprobs_B = drawn.tokens_B, drawn.logprobs_B
        rows = tokens_B.shape[0]
        self.tokens_ST.view(-1).index_copy_(0, places_B, tokens_B)
        self.logprobs_ST.view(-1).index_copy_(0, places_B, logprobs_B)
        if drawn.mass_B is not None:
            self.mass_ST.view(-1).index_copy_(0, places_B, drawn.mass_B)
        position_B = self.position_S[:rows].add_(self._advance_S[:rows])
        stopped_B = (tokens_B.unsqueeze(1) == self._stops_SK[:rows]).any(1)
        return stopped_B.logical_or_(position_B >= self._last_S[:rows])

    def drawn(self, slot: int, start: int, end: int) -> tuple[list[int], list[float], list[float]]:
        """Ids, logprobs and (of a row that cuts) what cuts left of positions `start` to `end` (exclusive)."""
        ids, logprobs, mass = (of_ST[slot, start:end] for of_ST in (self.tokens_ST, self.logprobs_ST, self.mass_ST))
        return ids.tolist(), logprobs.tolist(), mass.tolist()

    def _column(self, values: list[int] | list[float] | list[bool] | list[list[int]]) -> Tensor:
        return torch.tensor(values, device=self._device)


def _resized(old: Tensor, fill: float, *shape: int) -> Tensor:
    new = torch.full(shape, fill, dtype=old.dtype, device=old.device)
    kept = tuple(slice(0, min(a, b)) for a, b in zip(old.shape, shape, strict=True))
    new[kept] = old[kept]
    return new
