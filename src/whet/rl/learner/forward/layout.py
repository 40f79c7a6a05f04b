"""How a batch is laid out for the model: micro-batches in which what several sequences begin with is computed once.

    sequences   p q r | a b        answers to one prompt p q r, two of which begin alike
                p q r | a c d
                p q r | e f

    runs        p q                computed once; nothing in it predicts a trained token
                r e                reads p q; r predicts a, a and e, and e predicts f
                a c                reads p q r; a predicts b and c, and c predicts d

The last token of a sequence predicts nothing and is left out. Every other token adds itself to a tree, unless one of
the same past is there already; a run is what a sequence adds, and reads all tokens from the root to its own. Prompts
shared by a group, a preamble shared by all prompts, histories that branch, and equal answers are all the same case. It
changes no gradient: a token's gradient is the sum over those that read it.

Tokens are flat (no padding) everywhere except inside attention, where runs of similar shape become padded rectangles
(`Block`). Pure numpy; what meets in a micro-batch depends on the tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whet.rl.data.batch import PackedBatch

Index = NDArray[np.int64]

BLOCK_PLACES = 8192
"""Pairs of a query and a key that are padded rather than begin another block, whose operations cost as much."""

MULTIPLE = 8
"""Sides of a block are multiples of this: shapes come back, and code that was compiled for one serves again."""

READS = 8
"""Keys that a micro-batch gathers at most, for each token of its budget: so many answers may share a long prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """R runs of similar shape: a padded rectangle of queries, R x L, over a padded rectangle of keys, R x S.

    A run reads the tokens from the root to its own end; its query l sees the first `before + l + 1` of them.
    """

    queries: Index  # R x L; which of the block's own tokens is at a position; padding repeats the run's first
    where: Index  # for each of the block's own tokens, its position in the flattened queries
    padding: Index  # the places of the flattened queries that hold no token
    keys: Index  # R x S; which token of the micro-batch is read; padding repeats the run's first
    before: Index  # R; tokens that a run reads before its own
    lengths: Index  # R; its own tokens


@dataclass(frozen=True, slots=True, eq=False)
class TokenLayout:
    """One micro-batch: T flat tokens, run after run and block after block.

    U of them are predictors: a successor is a trained token. N trained tokens are predicted, by the order of D
    distributions: a predictor has one for each temperature (and each set of tokens that the sampler's cuts left) that a
    successor was drawn with.
    """

    tokens: Index  # T; where in the batch each token comes from
    positions: Index  # T; position in its sequence
    silent: tuple[Block, ...]  # the first blocks; nothing in them is a predictor
    speaking: tuple[Block, ...]
    predictors: Index  # U
    targets: Index  # N; where in the batch the successor is
    distribution_of_target: Index  # N; ascending
    predictor_of_distribution: Index  # D; counted in predictors, ascending
    a_target_of_distribution: Index  # D; where in the batch one of those drawn from it is
    rows: Index | None = None  # T; where tokens are not block after block: those of the blocks, then all others


@dataclass(frozen=True, slots=True)
class _Branch:
    """A sequence as far as its trained tokens need it: tokens `start : stop` of the batch. The first `shared` of them
    are also the first of the branch before it."""

    start: int
    stop: int
    shared: int

    @property
    def new(self) -> int:
        return self.stop - self.start - self.shared

    @property
    def read(self) -> int:
        """Keys that its own run reads."""
        return self.stop - self.start if self.new else 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenRun:
    """Tokens `begin : end` of a path from the root. `path` counts tokens as they were added, before blocks are made."""

    path: Index
    begin: int
    end: int
    silent: bool

    @property
    def length(self) -> int:
        return self.end - self.begin


def micro_batches(batch: PackedBatch, token_budget: int) -> list[TokenLayout]:
    """The batch in pieces of at most `token_budget` tokens. Every trained token is a target exactly once.

    Sequences stay whole; one that is longer than the budget gets a piece of its own.
    """
    pieces: list[list[_Branch]] = []
    tokens = read = 0
    for branch in _branches(batch):
        if not pieces or tokens + branch.new > token_budget or read + branch.read > READS * token_budget:
            pieces.append([])
            tokens, read, branch = 0, 0, replace(branch, shared=0)
        pieces[-1].append(branch)
        tokens += branch.new
        read += branch.read
    return [_lay_out(batch, piece) for piece in pieces]


def _branches(batch: PackedBatch) -> Iterator[_Branch]:
    """Sequences with trained tokens, ordered so that those that begin alike follow one another, and one that continues
    comes before one that ends: then the latter adds nothing."""
    keys_TK = batch.ids[:, None]
    if batch.experts is not None:  # tokens that were sent to different experts are not the same computation
        keys_TK = np.concatenate([keys_TK, batch.experts.reshape(len(keys_TK), -1)], axis=1, dtype=np.int32)
    spans = []
    for start, stop in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        trained = np.flatnonzero(batch.trained[start:stop])
        if len(trained):
            spans.append((start, start + int(trained[-1])))
    spans.sort(key=lambda span: keys_TK[slice(*span)].tobytes(), reverse=True)
    before = slice(0, 0)
    for start, stop in spans:
        yield _Branch(start, stop, common(keys_TK[before], keys_TK[start:stop]))
        before = slice(start, stop)


def common(left_TK: NDArray[np.int32], right_TK: NDArray[np.int32]) -> int:
    """How many tokens both begin with."""
    length = min(len(left_TK), len(right_TK))
    differ = (left_TK[:length] != right_TK[:length]).any(axis=1)
    return int(differ.argmax()) if differ.any() else length


def _lay_out(batch: PackedBatch, branches: Sequence[_Branch]) -> TokenLayout:
    path = np.zeros(0, np.int64)
    paths: list[Index] = []
    sources, depths, predictors, targets = [], [], [], []
    added = 0
    for branch in branches:
        path = np.concatenate([path[: branch.shared], np.arange(added, added + branch.new)])
        added += branch.new
        paths.append(path)
        depths.append(np.arange(branch.shared, len(path)))
        sources.append(branch.start + depths[-1])
        predicting = np.flatnonzero(batch.trained[branch.start + 1 : branch.stop + 1])
        predictors.append(path[predicting])
        targets.append(branch.start + 1 + predicting)
    predicts = np.zeros(added, np.bool_)
    predicts[np.concatenate(predictors)] = True

    runs = list(_runs(branches, paths, predicts))
    silent, speaking = (list(_grouped(run for run in runs if run.silent == kind)) for kind in (True, False))
    order = np.concatenate([run.path[run.begin : run.end] for alike in (*silent, *speaking) for run in alike])
    position = np.empty_like(order)  # of a token as it was added, in the order of blocks
    position[order] = np.arange(added)
    predictor_N, target_N = position[np.concatenate(predictors)], np.concatenate(targets)
    drawn_N3 = np.stack([predictor_N, *_drawn_from(batch, target_N)], axis=1)
    order_N = np.lexsort(drawn_N3.T[::-1])
    drawn_N3 = drawn_N3[order_N]
    first_N = np.concatenate([[True], (drawn_N3[1:] != drawn_N3[:-1]).any(axis=1)])
    unique_U, predictor_of_distribution = np.unique(drawn_N3[first_N, 0], return_inverse=True)
    return TokenLayout(
        tokens=np.concatenate(sources)[order],
        positions=np.concatenate(depths)[order],
        silent=tuple(_block(alike, position) for alike in silent),
        speaking=tuple(_block(alike, position) for alike in speaking),
        predictors=unique_U,
        targets=target_N[order_N],
        distribution_of_target=np.cumsum(first_N) - 1,
        predictor_of_distribution=predictor_of_distribution,
        a_target_of_distribution=target_N[order_N][first_N],
    )


def _drawn_from(batch: PackedBatch, target_N: Index) -> tuple[Index, Index]:
    """Numbers of the temperature, and of the set of tokens, that each target was drawn with: equal where these are."""
    temperature_N = np.unique(batch.temperatures[target_N], return_inverse=True)[1]
    if batch.kept is None:
        return temperature_N, np.zeros_like(temperature_N)
    kept = batch.kept.take(target_N)
    sets = np.split(kept.ids, np.cumsum(kept.counts)[:-1])
    numbers: dict[bytes, int] = {}
    return temperature_N, np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in sets])


def _runs(branches: Sequence[_Branch], paths: Sequence[Index], predicts: NDArray[np.bool_]) -> Iterator[TokenRun]:
    """What each branch adds, cut before its first predictor: behind the attention of the last layer nothing needs what
    is before it."""
    for branch, path in zip(branches, paths, strict=True):
        if branch.new:
            first = branch.shared + int(predicts[path[branch.shared :]].argmax())
            if first > branch.shared:
                yield TokenRun(path, branch.shared, first, silent=True)
            yield TokenRun(path, first, len(path), silent=False)


def _grouped(runs: Iterable[TokenRun]) -> Iterator[list[TokenRun]]:
    """Runs of similar shape, the longest first."""
    chosen: list[TokenRun] = []
    reach = needed = 0
    for run in sorted(runs, key=lambda run: (-run.length, -run.end)):
        reach, needed = max(reach, run.end), needed + run.length * run.end
        if chosen and (len(chosen) + 1) * chosen[0].length * reach - needed > BLOCK_PLACES:
            yield chosen
            chosen, reach, needed = [], run.end, run.length * run.end
        chosen.append(run)
    if chosen:
        yield chosen


def block_of(runs: Sequence[TokenRun], position: Index, length: int, keys: int) -> Block:
    """Runs of at most `length` tokens that read at most so many `keys`; `position` of a token of their paths is its
    number in the micro-batch."""
    lengths_R = np.array([run.length for run in runs])
    ends_R = np.array([run.end for run in runs])
    real_RL = np.arange(length) < lengths_R[:, None]
    # What a run pads with is its own: a number that is not finite stays within the run.
    queries_RL = np.repeat((np.cumsum(lengths_R) - lengths_R)[:, None], length, axis=1)
    queries_RL[real_RL] = np.arange(lengths_R.sum())
    read_RS = np.arange(keys) < ends_R[:, None]
    keys_RS = np.repeat(position[[run.path[0] for run in runs]][:, None], keys, axis=1)
    keys_RS[read_RS] = position[np.concatenate([run.path[: run.end] for run in runs])]
    return Block(
        queries=queries_RL,
        where=np.flatnonzero(real_RL),
        padding=np.flatnonzero(~real_RL),
        keys=keys_RS,
        before=ends_R - lengths_R,
        lengths=lengths_R,
    )


def _block(runs: Sequence[TokenRun], position: Index) -> Block:
    length, keys = (max(sizes) for sizes in zip(*((run.length, run.end) for run in runs), strict=True))
    return block_of(runs, position, -(-length // MULTIPLE) * MULTIPLE, -(-keys // MULTIPLE) * MULTIPLE)
