"""log p of the tokens that were taken, and entropies, without ever holding the logits of all tokens at once.

Logits are made chunk by chunk and thrown away; the backward pass makes them again, unless one chunk is all there is.
A chunk of the forward pass is some hidden states by the whole vocabulary. One of the backward pass is many hidden
states by a part of the vocabulary: then the gradient of the output matrix, which is larger than the logits of a chunk,
is written once, instead of being read and written for each chunk. Both results have exact gradients, with respect to
hidden states and to the output matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.inference.weights.block_matrix import BlockMatrix
from whet.rl.learner.config import LOGITS_AT_ONCE
from whet.rl.learner.forward import compiled
from whet.rl.learner.forward.kernels import product_dtype

LOG2_E = 1 / math.log(2)

CHUNK_ELEMENTS = LOGITS_AT_ONCE
"""Logits held at once: 16 MB in fp32, small enough to stay in a CPU's last-level cache."""

FROZEN_ELEMENTS = 1 << 20
"""The same where the output matrix is dequantised in parts: such a base is chosen for its memory, of which logits with
what follows from them take five times as much, when all activations are held."""

STATES_AT_ONCE = 2048
"""Hidden states of a chunk of the backward pass at most."""

CUDA_CHUNK_ELEMENTS = 1 << 27
"""Logits held at once on a GPU: 512 MB, enough rows to keep its matrix units busy with a vocabulary of 150,000."""


def token_logprobs(
    hidden_UD: Tensor,
    weight_VD: Tensor | BlockMatrix,
    targets_N: Tensor,
    state_of_target_N: Tensor,
    temperatures_U: Tensor,
    kept: Kept | None = None,
    added: LowRankLogits | None = None,
    *,
    fused: bool = False,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target], and the entropy of that distribution in nats; fp32 [N].

    Target n is predicted by hidden state `state_of_target_N[n]`, in ascending order; each of U predicts at least one,
    or is padding. With `kept` the softmax is over these tokens of each state alone; a target is always among them.
    With `added` logits are hidden @ weight.T + added.down @ added.up.T. Under autocast the matrix products are made in
    its dtype, forward and backward. `fused`: what follows from logits is computed by `compiled.py`, where there are
    several chunks and no `kept`.
    """
    dtype = product_dtype(hidden_UD.device)
    scaled_UD = (hidden_UD / temperatures_U[:, None]).to(dtype)
    down_UR = None if added is None else (added.down_UR / temperatures_U[:, None]).to(dtype)
    up_VR = None if added is None else added.up_VR.to(dtype)
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        scaled_UD, weight_VD, targets_N, state_of_target_N, kept, down_UR, up_VR, fused
    )
    return result


@torch.no_grad()
def likeliest_tokens(
    hidden_UD: Tensor, weight_VD: Tensor | BlockMatrix, count: int, added: LowRankLogits | None
) -> Tensor:
    """Ids [U, count] of the largest logits of each hidden state; arguments as of `token_logprobs`."""
    dtype = product_dtype(hidden_UD.device)
    weight_VD = weight_VD if isinstance(weight_VD, BlockMatrix) else weight_VD.to(dtype)
    up_VR = None if added is None else added.up_VR.to(dtype)
    size = max(1, elements(hidden_UD) // weight_VD.shape[0])
    parts = hidden_UD.to(dtype).split(size)
    downs = [None] * len(parts) if added is None else added.down_UR.to(dtype).split(size)
    logits = (_logits(part, weight_VD, down, up_VR) for part, down in zip(parts, downs, strict=True))
    return torch.cat([logits_UV.topk(min(count, weight_VD.shape[0])).indices for logits_UV in logits])


class LowRankLogits(NamedTuple):
    """What an adapter of the output matrix adds to logits; both get gradients."""

    down_UR: Tensor  # of each hidden state
    up_VR: Tensor  # of each word


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Which tokens hidden states choose among, as pairs by the order of states. One without pairs has all of them."""

    states: Tensor
    tokens: Tensor

    def cut(self, states: slice, words: slice) -> Tensor:
        """Of the states and the part of the vocabulary of a chunk: what is not kept."""
        first, last = torch.searchsorted(
            self.states, torch.tensor([states.start, states.stop], device=self.states.device)
        ).tolist()
        rows, tokens = self.states[first:last] - states.start, self.tokens[first:last]
        count, width = states.stop - states.start, words.stop - words.start
        limited = torch.zeros(count, 1, dtype=torch.bool, device=rows.device)
        limited[rows] = True
        inside = (tokens >= words.start) & (tokens < words.stop)
        kept = torch.zeros(count, width, dtype=torch.bool, device=rows.device)
        kept[rows[inside], tokens[inside] - words.start] = True
        return limited & ~kept


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        weight_VD: Tensor | BlockMatrix,
        targets_N: Tensor,
        states_N: Tensor,
        cuts: Kept | None,
        down_UR: Tensor | None,
        up_VR: Tensor | None,
        fused: bool,
    ) -> tuple[Tensor, Tensor]:
        count, vocabulary = len(hidden_UD), weight_VD.shape[0]
        logprobs_N = hidden_UD.new_empty(len(targets_N), dtype=torch.float32)
        entropies_U, totals_U = torch.empty(2, count, dtype=torch.float32, device=hidden_UD.device)
        a_target_U = targets_N.new_zeros(count).scatter_reduce_(0, states_N, targets_N, "amax")
        product_VD = weight_VD if isinstance(weight_VD, BlockMatrix) else weight_VD.to(hidden_UD.dtype)
        chunks, whole = _chunks(states_N, count, vocabulary), slice(0, vocabulary)
        kept: tuple[Tensor, ...] = ()
        ctx.fused = fused and cuts is None and len(chunks) > 1
        if isinstance(weight_VD, BlockMatrix) and not ctx.fused:
            scored = _scored_by_words(hidden_UD, weight_VD, targets_N, states_N, cuts, down_UR, up_VR)
            (logprobs_N, entropies_U, totals_U), chunks = scored, []
        for states, part in chunks:
            logits_UV = _logits(hidden_UD[states], product_VD, None if down_UR is None else down_UR[states], up_VR)
            if ctx.fused:
                totals_U[states], entropies_U[states] = compiled.totals_and_entropies(logits_UV)
                logprobs_N[part] = logits_UV[states_N[part] - states.start, targets_N[part]] - totals_U[states_N[part]]
                continue
            cut = None if cuts is None else cuts.cut(states, whole)
            if cut is not None:
                logits_UV.masked_fill_(cut, -math.inf)
            logs_UV = logits_UV.log_softmax(-1)
            probabilities_UV = (logs_UV * LOG2_E).exp2_()  # three times as fast as exp on some CPUs
            if len(chunks) > 1:
                a_target = a_target_U[states, None]
                totals_U[states] = (logits_UV.gather(1, a_target) - logs_UV.gather(1, a_target)).squeeze(1)
            if cut is not None:
                logs_UV.masked_fill_(cut, 0.0)
            logprobs_N[part] = logs_UV[states_N[part] - states.start, targets_N[part]]
            entropies_U[states] = torch.linalg.vecdot(probabilities_UV, logs_UV).neg_()
            if len(chunks) == 1:
                kept = logs_UV, probabilities_UV
        trained = None if isinstance(weight_VD, BlockMatrix) else weight_VD
        ctx.save_for_backward(hidden_UD, trained, targets_N, states_N, entropies_U, totals_U, down_UR, up_VR, *kept)
        ctx.frozen = weight_VD if trained is None else None
        ctx.set_materialize_grads(False)
        ctx.cuts = cuts
        return logprobs_N, entropies_U[states_N]

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden_UD, weight_VD, targets_N, states_N, entropies_U, totals_U, down_UR, up_VR, *kept = ctx.saved_tensors
        vocabulary = len(weight_VD) if ctx.frozen is None else ctx.frozen.shape[0]
        if grad_logprobs_N is None:
            if grad_entropies_N is None:
                return (None,) * 8
            grad_logprobs_N = torch.zeros_like(grad_entropies_N)
        grad_logprobs_U = torch.zeros_like(entropies_U).index_add_(0, states_N, grad_logprobs_N)
        grad_entropies_U = None
        if grad_entropies_N is not None:
            grad_entropies_U = torch.zeros_like(entropies_U).index_add_(0, states_N, grad_entropies_N)
        grad_hidden_UD = torch.zeros_like(hidden_UD, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_down_UR, grad_up_VR = (
            None if low is None else torch.zeros_like(low, dtype=torch.float32) for low in (down_UR, up_VR)
        )
        for states, part, words in _tiles(states_N, len(hidden_UD), vocabulary, whole=bool(kept), frozen=ctx.frozen):
            hidden, dtype = hidden_UD[states], hidden_UD.dtype
            weight = weight_VD[words].to(dtype) if ctx.frozen is None else ctx.frozen.part(words, dtype)
            down, up = (None, None) if down_UR is None else (down_UR[states], up_VR[words])
            # d log p(target) / d logits = onehot(target) - p, d entropy / d logits = -p (log p + entropy)
            if ctx.fused:
                of_entropies_U = torch.zeros_like(entropies_U) if grad_entropies_U is None else grad_entropies_U
                rows = (x_U[states] for x_U in (totals_U, entropies_U, grad_logprobs_U, of_entropies_U))
                grad = compiled.slopes(_logits(hidden, weight, down, up), *rows)
            else:
                logs, probabilities = kept or _distributions(
                    _logits(hidden, weight, down, up),
                    totals_U[states],
                    None if ctx.cuts is None else ctx.cuts.cut(states, words),
                )
                slope = -grad_logprobs_U[states, None]
                if grad_entropies_U is not None:
                    slope = slope - grad_entropies_U[states, None] * (logs + entropies_U[states, None])
                grad = probabilities * slope
            inside_N, place_N = _places(targets_N[part] - words.start, states_N[part] - states.start, grad)
            grad.view(-1).index_add_(0, place_N, grad_logprobs_N[part].where(inside_N, 0.0))
            grad = grad.to(hidden.dtype)
            if grad_hidden_UD is not None:
                grad_hidden_UD[states] += grad @ weight
            if grad_weight_VD is not None:
                grad_weight_VD[words] += grad.T @ hidden
            if down is not None and up is not None and grad_down_UR is not None and grad_up_VR is not None:
                grad_down_UR[states] += grad @ up
                grad_up_VR[words] += grad.T @ down
        grads = [
            None if grad is None else grad.to(of.dtype)
            for grad, of in ((grad_hidden_UD, hidden_UD), (grad_down_UR, down_UR), (grad_up_VR, up_VR))
        ]
        return grads[0], grad_weight_VD, None, None, None, *grads[1:], None


def _scored_by_words(
    hidden_UD: Tensor,
    matrix: BlockMatrix,
    targets_N: Tensor,
    states_N: Tensor,
    cuts: Kept | None,
    down_UR: Tensor | None,
    up_VR: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs, and of each state the entropy and the logarithm of the sum of exponentials.

    Each part of the vocabulary is dequantised once for many states, whose sums are carried along, relative to the
    largest logit so far (online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867).
    """
    highest_U, sums_U, weighted_U = torch.zeros(3, len(hidden_UD), device=hidden_UD.device)
    highest_U.fill_(torch.finfo(torch.float32).min)  # finite: a part of which nothing is kept leaves it so
    logits_N = torch.zeros(len(targets_N), device=hidden_UD.device)
    for states, part, words in _tiles(states_N, len(hidden_UD), matrix.shape[0], frozen=matrix):
        down, up = (None, None) if down_UR is None or up_VR is None else (down_UR[states], up_VR[words])
        logits_UV = _logits(hidden_UD[states], matrix.part(words, hidden_UD.dtype), down, up)
        inside_N, place_N = _places(targets_N[part] - words.start, states_N[part] - states.start, logits_UV)
        logits_N[part] = logits_UV.view(-1)[place_N].where(inside_N, logits_N[part])
        cut = None if cuts is None else cuts.cut(states, words)
        if cut is not None:
            logits_UV.masked_fill_(cut, -math.inf)
        before_U, sum_U = highest_U[states], sums_U[states]
        highest = torch.maximum(before_U, logits_UV.amax(-1))
        logits_UV.sub_(highest[:, None])
        exponentials_UV = (logits_UV * LOG2_E).exp2_()
        if cut is not None:
            logits_UV.masked_fill_(cut, 0.0)
        shift, rest = before_U - highest, ((before_U - highest) * LOG2_E).exp2_()
        weighted_U[states] = rest * (weighted_U[states] + shift * sum_U) + torch.linalg.vecdot(
            exponentials_UV, logits_UV
        )
        sums_U[states] = rest * sum_U + exponentials_UV.sum(-1)
        highest_U[states] = highest
    logs_U = sums_U.log()
    totals_U = highest_U + logs_U
    return logits_N - totals_U[states_N], logs_U - weighted_U / sums_U, totals_U


def _places(words_N: Tensor, states_N: Tensor, tile_UV: Tensor) -> tuple[Tensor, Tensor]:
    """Which targets a tile has, and where: the place of another is 0."""
    inside_N = (words_N >= 0) & (words_N < tile_UV.shape[1])
    return inside_N, (states_N * tile_UV.shape[1] + words_N).where(inside_N, 0)


def _logits(hidden: Tensor, weight: Tensor | BlockMatrix, down: Tensor | None, up: Tensor | None) -> Tensor:
    product = weight.product(hidden) if isinstance(weight, BlockMatrix) else hidden @ weight.T
    if down is not None and up is not None:
        product.addmm_(down, up.T)
    return product.float()


def _distributions(logits: Tensor, totals_U: Tensor, cut: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logarithms of probabilities, and probabilities, of a part of the vocabulary; `totals_U` are logarithms of the
    sums over all of it. What was cut off has probability 0, and 0 for its logarithm."""
    logs = logits.sub_(totals_U[:, None])
    if cut is not None:
        logs.masked_fill_(cut, -math.inf)
    probabilities = (logs * LOG2_E).exp2_()
    return logs if cut is None else logs.masked_fill_(cut, 0.0), probabilities


def _tiles(
    states_N: Tensor, count: int, vocabulary: int, *, whole: bool = False, frozen: BlockMatrix | None
) -> Iterator[tuple[slice, slice, slice]]:
    """Hidden states and a part of the vocabulary that are computed together, and the targets that the states predict.

    The `whole` is one tile.
    """
    most = count if whole else min(count, STATES_AT_ONCE)
    at_once = elements(states_N)
    if frozen is not None and not states_N.is_cuda:
        at_once = min(at_once, FROZEN_ELEMENTS)
    width = vocabulary if whole else max(1, at_once // max(most, 1))
    for states, part in _pieces(states_N, count, most):
        for start in range(0, vocabulary, width):
            yield states, part, slice(start, min(start + width, vocabulary))


def _chunks(states_N: Tensor, count: int, vocabulary: int) -> list[tuple[slice, slice]]:
    """Hidden states that are computed together, and the targets that they predict."""
    return _pieces(states_N, count, max(1, elements(states_N) // vocabulary))


def _pieces(states_N: Tensor, count: int, size: int) -> list[tuple[slice, slice]]:
    """At most `size` hidden states each, and the targets that they predict."""
    starts = [*range(0, count, size), count]
    bounds = torch.searchsorted(states_N, torch.tensor(starts, device=states_N.device)).tolist()
    return [(slice(*states), slice(*part)) for states, part in zip(pairwise(starts), pairwise(bounds), strict=True)]


def elements(like: Tensor) -> int:
    return CUDA_CHUNK_ELEMENTS if like.is_cuda else CHUNK_ELEMENTS
