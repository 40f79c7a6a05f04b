"""The forward pass of the embedded engine: `prefill` fills the KV cache, `decode` gives the logits of one token a row.

It is written for many short operations on small matrices: few operations per layer, no branches per row, nothing
computed twice in a step. Float32 results agree with a plain `transformers` forward to about 1e-6. There is no
sampling, no gradient and no scheduling here.

Prefill covers every prompt token but the last; the last one is the first token a row feeds to `decode`. So logits are
only computed where a token is drawn, or a prompt's logprobs are wanted, and rows that share a prompt differ only from
their first decode step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.inference.architecture import Architecture, Rope
from whet.inference.decoding.adapter_rows import LEAST_ROWS, AdapterRows, filled
from whet.inference.decoding.cache import KVCache
from whet.inference.decoding.functions import ACTIVATIONS, at_once, mix_experts, route, turns
from whet.inference.decoding.scheduler import WIDTH_STEP
from whet.inference.decoding.scoring import LOGITS_AT_ONCE, PromptScorer
from whet.inference.weights.adapters import PackedAdapter
from whet.inference.weights.block_matrix import BlockMatrix, JoinedRows
from whet.inference.weights.model_weights import DOWN, GATE_UP, OUTPUT, QKV, PackedWeights

_SCORES_PER_CHUNK = 1 << 24
"""Largest number of attention scores a prefill holds at a time on a CPU (64 MiB in float32)."""

_LEAST_POSITIONS = 1024
"""Of a rotary table; beyond that it has as many as a power of two that the cache's columns fit in."""


class Decoder:
    """Packed weights, a KV cache and the rotary tables, with the two passes over them."""

    def __init__(
        self, arch: Architecture, weights: PackedWeights, cache: KVCache, *, batch_invariant: bool = False
    ) -> None:
        """`batch_invariant` is that of `EmbeddedEngine`."""
        self.arch, self.weights, self.cache = arch, weights, cache
        self._least_rows = LEAST_ROWS if batch_invariant else 0
        device = weights.embedding.device
        ropes = list(dict.fromkeys(rope for rope in arch.ropes if rope is not None))
        self._ropes, self._positions = ropes, 0  # how many positions the tables hold
        self._tables: list[tuple[Tensor, Tensor]] = []
        self._table_of_layer = [None if rope is None else ropes.index(rope) for rope in arch.ropes]
        self._windows = list(dict.fromkeys(arch.windows))
        self._window_of_layer = [self._windows.index(window) for window in arch.windows]
        self._act = ACTIVATIONS[arch.activation]
        self._kv_heads = torch.arange(arch.num_kv_heads, device=device)

    def decode(self, ids_B: Tensor, positions_B: Tensor, width: int, adapters: AdapterRows | None = None) -> Tensor:
        """Logits `[B, V]` (float32) of the tokens that follow `ids_B`, one per cache slot 0..B-1.

        `positions_B` is the position of each token; its keys and values are written there, and it sees the columns up
        to and including it. `width` is at least the largest position + 1. `adapters` are those of the rows, if any.
        """
        arch, cache = self.arch, self.cache
        rows = ids_B.shape[0]
        heads, kv_heads, dim = arch.num_heads, arch.num_kv_heads, arch.head_dim
        adapters = self._or_own(adapters, rows)
        turned = self._turns(positions_B)
        biases = [bias.unsqueeze(1) for bias in self._biases(positions_B.unsqueeze(1), width)]
        slots = cache.index[:rows]
        places_BH = (slots.unsqueeze(1) * kv_heads + self._kv_heads) * cache.columns + positions_B.unsqueeze(1)
        places = places_BH.view(-1)  # of the new keys and values among all of a layer
        x = self._embed(ids_B)
        for i, layer in enumerate(self.weights.layers):
            normal = x if arch.norms.attention_in is None else _normalise(x, arch.norm_eps)
            qkv = self._project(normal, layer.qkv, layer.qkv_bias, adapters, (i, QKV)).view(
                rows, heads + 2 * kv_heads, dim
            )
            qk = self._rotate(qkv[:, : heads + kv_heads], i, turned)
            keys, values = cache.keys[i], cache.values[i]
            keys.view(-1, dim).index_copy_(0, places, qk[:, heads:].reshape(-1, dim))
            values.view(-1, dim).index_copy_(0, places, qkv[:, heads + kv_heads :].reshape(-1, dim))
            q = qk[:, :heads].reshape(rows * kv_heads, heads // kv_heads, dim)
            scores = torch.bmm(q, keys[:rows].view(rows * kv_heads, -1, dim)[:, :width].mT)
            scores.view(rows, heads, width).add_(biases[self._window_of_layer[i]])
            attended = torch.bmm(scores.softmax(-1), values[:rows].view(rows * kv_heads, -1, dim)[:, :width])
            attended = attended.view(rows, heads * dim)
            x = self._added(x, attended, layer.output, layer.output_bias, layer.output_gain, adapters, (i, OUTPUT))
            x = self._feed_forward(x, i, adapters, slots, positions_B)
        return self._logits(x, adapters)

    def prefill(
        self,
        slots: list[int],
        starts: list[int],
        tokens: list[list[int]],
        adapters: AdapterRows | None = None,
        scorers: Sequence[PromptScorer] = (),
    ) -> None:
        """Write keys and values of `tokens[i]` into slot `slots[i]` from position `starts[i]` on.

        Columns before `starts[i]` must hold that sequence already. Rows are padded to the longest; what padding
        writes is beyond a row's tokens and is overwritten before it can be seen. `scorers`, one for each row or none,
        get the logits that follow the tokens.
        """
        longest = max(map(len, tokens))
        width = self._width(max(starts) + longest)
        device = self.weights.embedding.device
        step = max(1, at_once(_SCORES_PER_CHUNK, device) // (len(slots) * self.arch.num_heads * width))
        if self._least_rows:
            longest, step = (-(-count // self._least_rows) * self._least_rows for count in (longest, step))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in tokens], device=device)
        slots_P = torch.tensor(slots, device=device)
        starts_P = torch.tensor(starts, device=device)
        for offset in range(0, longest, step):
            chunk = padded[:, offset : offset + step]
            within = self._or_own(None if adapters is None else adapters.over(chunk.shape[1]), chunk.numel())
            read = min(width, self._width(max(starts) + offset + step))
            x = self._prefill_chunk(slots_P, starts_P + offset, chunk, read, within, through=bool(scorers))
            for row, scorer in enumerate(scorers):
                x_TD = x.view(*chunk.shape, -1)[row, : max(0, len(tokens[row]) - offset)]
                self._score(scorer, starts[row] + offset, x_TD, None if adapters is None else adapters.alone(row))

    def _score(self, scorer: PromptScorer, start: int, x_TD: Tensor, adapter: PackedAdapter | None) -> None:
        """Pass on logits of what follows the tokens from position `start` on, of which `x_TD` are the outputs."""
        rows_at_once = max(LEAST_ROWS, at_once(LOGITS_AT_ONCE, x_TD.device) // self.arch.vocab_size)
        for begin in range(max(0, scorer.first - 1 - start), len(x_TD), rows_at_once):
            part = x_TD[begin : begin + rows_at_once]
            rows = AdapterRows.of([adapter] * len(part), x_TD.device)
            scorer.take(start + begin, self._logits(part, self._or_own(rows, len(part))))

    def _width(self, needed: int) -> int:
        """Columns to read where so many are needed."""
        return min(-(-needed // WIDTH_STEP) * WIDTH_STEP if self._least_rows else needed, self.cache.columns)

    def _prefill_chunk(
        self,
        slots_P: Tensor,
        starts_P: Tensor,
        ids_PT: Tensor,
        width: int,
        adapters: AdapterRows | None,
        *,
        through: bool,
    ) -> Tensor:
        """Keys and values of the tokens; what is returned are, if it goes `through` the last layer, its outputs."""
        arch, cache = self.arch, self.cache
        rows, length = ids_PT.shape
        heads, kv_heads, dim = arch.num_heads, arch.num_kv_heads, arch.head_dim
        # Padding may reach past the last column; clamped, it lands where only the last prompt token can be.
        positions = (starts_P.unsqueeze(1) + cache.index[:length]).clamp_max_(cache.columns - 1)
        flat = positions.reshape(-1)
        turned = self._turns(flat)
        biases = [bias.view(rows, 1, 1, length, width) for bias in self._biases(positions.unsqueeze(-1), width)]
        slot_PT = slots_P.repeat_interleave(length)
        x = self._embed(ids_PT.reshape(-1))
        last = len(self.weights.layers) - 1
        for i, layer in enumerate(self.weights.layers):
            normal = x if arch.norms.attention_in is None else _normalise(x, arch.norm_eps)
            qkv = self._project(normal, layer.qkv, layer.qkv_bias, adapters, (i, QKV)).view(
                -1, heads + 2 * kv_heads, dim
            )
            qk = self._rotate(qkv[:, : heads + kv_heads], i, turned)
            cache.keys[i][slot_PT, :, flat] = qk[:, heads:]
            cache.values[i][slot_PT, :, flat] = qkv[:, heads + kv_heads :]
            if i == last and not through:
                cache.record(i, slot_PT, flat, -1)
                break
            keys = cache.keys[i][:, :, :width].index_select(0, slots_P)
            values = cache.values[i][:, :, :width].index_select(0, slots_P)
            q = qk[:, :heads].view(rows, length, kv_heads, heads // kv_heads, dim).permute(0, 2, 3, 1, 4)
            scores = torch.matmul(q.reshape(rows, kv_heads, -1, dim), keys.mT).view(rows, kv_heads, -1, length, width)
            weights = scores.add_(biases[self._window_of_layer[i]]).softmax(-1).view(rows, kv_heads, -1, width)
            attended = torch.matmul(weights, values).view(rows, heads, length, dim).transpose(1, 2)
            attended = attended.reshape(-1, heads * dim)
            x = self._added(x, attended, layer.output, layer.output_bias, layer.output_gain, adapters, (i, OUTPUT))
            x = self._feed_forward(x, i, adapters, slot_PT, flat)
        return x

    def _or_own(self, adapters: AdapterRows | None, rows: int) -> AdapterRows | None:
        """What the weights add to all rows themselves, where a request names no adapter."""
        own = self.weights.adapter
        if adapters is not None or own is None:
            return adapters
        return AdapterRows([own], [list(range(rows))], rows, self.weights.embedding.device)

    def _embed(self, ids: Tensor) -> Tensor:
        embedding = self.weights.embedding
        if isinstance(embedding, BlockMatrix):
            x = embedding.select(ids).to(self.cache.dtype)
        else:
            x = embedding.index_select(0, ids)
        return x if self.arch.embedding_scale == 1 else x.mul_(self.arch.embedding_scale)

    def _turns(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each rotary table, cosines and sines at these positions."""
        if self.cache.columns > self._positions:
            self._positions = max(_LEAST_POSITIONS, 1 << (self.cache.columns - 1).bit_length())
            within = torch.arange(self._positions, device=positions.device)
            self._tables = [_table(rope, within, self.arch.head_dim) for rope in self._ropes]
        return [
            (cos.index_select(0, positions).unsqueeze(1), sin.index_select(0, positions).unsqueeze(1))
            for cos, sin in self._tables
        ]

    def _biases(self, positions: Tensor, width: int) -> list[Tensor]:
        """Of each window, what is added to scores: 0 at columns that a token sees, up to and including its own."""
        columns = self.cache.index[:width]
        visible, biases = columns <= positions, []
        for window in self._windows:
            seen = visible if window is None else visible & (columns > positions - window)
            biases.append(torch.where(seen, 0.0, float("-inf")).to(self.cache.dtype))
        return biases

    def _rotate(self, qk: Tensor, i: int, turned: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Query-key norm and rotary embedding of `[N, heads + kv_heads, D]`, in float32."""
        qk, gain = qk.float(), self.weights.layers[i].qk_gain
        if gain is not None:
            qk = (qk * self._inverse_lengths(qk)).mul_(gain)
        if (table := self._table_of_layer[i]) is not None:
            cos, sin = turned[table]
            qk = qk.roll(self.arch.head_dim // 2, -1).mul_(sin).addcmul_(qk, cos)
        return qk.to(self.cache.dtype)

    def _inverse_lengths(self, qk: Tensor) -> Tensor:
        """Of each head, or of all queries and of all keys together."""
        if self.arch.qk_norm == "head":
            return _inverse_length(qk, self.arch.norm_eps)
        sizes = (self.arch.num_heads, self.arch.num_kv_heads)
        lengths = [_inverse_length(part.flatten(1), self.arch.norm_eps) for part in qk.split(sizes, 1)]
        return torch.cat([length.expand(-1, size) for length, size in zip(lengths, sizes, strict=True)], 1).unsqueeze(
            -1
        )

    def _added(
        self,
        x: Tensor,
        inner: Tensor,
        weight: Tensor | JoinedRows,
        bias: Tensor | None,
        gain: Tensor | None,
        adapters: AdapterRows | None,
        layer_part: tuple[int, int],
    ) -> Tensor:
        """x with inner @ weight added in place, normalised where the family has a norm there."""
        if gain is None:
            return self._project(inner, weight, bias, adapters, layer_part, residual=x)
        return x.add_(self._gained(self._project(inner, weight, bias, adapters, layer_part), gain))

    def _gained(self, y: Tensor, gain: Tensor) -> Tensor:
        return (y * _inverse_length(y, self.arch.norm_eps)).mul_(gain).to(y.dtype)

    def _feed_forward(
        self, x: Tensor, i: int, adapters: AdapterRows | None, slots: Tensor, positions: Tensor
    ) -> Tensor:
        """`slots` and `positions` say which tokens these are, for the record of their experts."""
        arch, layer = self.arch, self.weights.layers[i]
        normal = x if arch.norms.feed_in is None else _normalise(x, arch.norm_eps)
        if layer.router is not None:
            experts = arch.experts
            assert experts is not None
            chosen, weights = route(torch.mm(normal, layer.router), experts.per_token, normalise=experts.normalised)
            self.cache.record(i, slots, positions, chosen)
            gate_up, down = cast("tuple[Tensor, Tensor]", (layer.gate_up, layer.down))  # experts are never in blocks
            return x.add_(mix_experts(normal, chosen, weights, gate_up, down))
        gate, up = self._project(normal, layer.gate_up, layer.gate_up_bias, adapters, (i, GATE_UP)).chunk(2, dim=-1)
        inner = self._act(gate).mul_(up)
        return self._added(x, inner, layer.down, layer.down_bias, layer.down_gain, adapters, (i, DOWN))

    def _logits(self, x: Tensor, adapters: AdapterRows | None) -> Tensor:
        normal = self._gained(x, self.weights.final_gain)
        return self._project(normal, self.weights.unembedding, None, adapters, (len(self.weights.layers), 0)).float()

    def _project(
        self,
        x: Tensor,
        weight: Tensor | JoinedRows,
        bias: Tensor | None,
        adapters: AdapterRows | None,
        layer_part: tuple[int, int],
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        """x @ weight + bias and what adapters add at `layer_part`, added to `residual` where one is given, in place
        unless there are too few rows."""
        count = len(x)
        if count < self._least_rows:
            y = _product(filled(x), weight, bias, None if residual is None else filled(residual))[:count]
        else:
            y = _product(x, weight, bias, residual)
        if adapters is not None:
            adapters.add(y, x, *layer_part)
        return y


def _table(rope: Rope, positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """For heads in the order of `fusions.head_order`: rotating is x * cos + roll(x, D/2) * sin with the sign of the
    first half's sine turned. Pairs that are not rotated have cosine 1 and sine 0."""
    cos, sin = turns(rope, positions)
    rest = head_dim // 2 - cos.shape[-1]
    cos, sin = F.pad(cos, (0, rest), value=1.0), F.pad(sin, (0, rest))
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _inverse_length(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(sum(x^2) + n eps) over the last dimension, in float32: RMS norm without the constant sqrt(n)."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length.mul_(length).add_(eps * x.shape[-1]).rsqrt_()


def _normalise(x: Tensor, eps: float) -> Tensor:
    """RMS norm without its gain and sqrt(n), which are folded into the matrix that comes next."""
    return (x * _inverse_length(x, eps)).to(x.dtype)


def _product(x: Tensor, weight: Tensor | JoinedRows, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """x @ weight + bias, added in place to `residual` where one is given."""
    if residual is not None:
        y = residual.add_(weight.times(x)) if isinstance(weight, JoinedRows) else residual.addmm_(x, weight)
        return y if bias is None else y.add_(bias)
    if isinstance(weight, JoinedRows):
        return weight.times(x) if bias is None else weight.times(x).add_(bias)
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
