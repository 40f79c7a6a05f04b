"""How the sequences of several adapters are laid out for one pass, so that each is computed as it is alone.

    rows       adapter 1: p q r s | p q t | -      a piece: sequences of one piece of work, row after row, and padding
               adapter 2: u v w x y | -            up to a multiple of the rows of a product
               adapter 3: p q | - -

Every token is a row, since all may be targets. What sequences of one piece begin with is one computation, as in
`forward/layout.py`; nothing is shared between pieces, whose adapters differ. Rows of a piece, the shapes of its runs in
attention, and what it is divided into depend on its own sequences only: so do the sums that are made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whet.rl.learner.config import EAGER_KEYS
from whet.rl.learner.forward.layout import READS, Block, Index, TokenLayout, TokenRun, block_of, common

NARROWEST = 16
"""Sides of a block are multiples of this, and of an eighth of the largest power of two that is not above them."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Sequences of one piece of work that are computed at once, as T tokens."""

    numbers: list[int]
    """Which sequences of the work these are."""
    paths: list[Index]
    """Of each sequence, the rows of its tokens among the piece's."""
    runs: list[TokenRun]
    ids_T: Index
    positions_T: Index


def pieces_of(sequences: Sequence[Sequence[int]], token_budget: int) -> list[Piece]:
    """Cut a work's sequences into pieces of at most `token_budget` tokens; a longer sequence is a piece of its own."""
    arrays = [np.array(ids, np.int32) for ids in sequences]
    order = sorted(range(len(arrays)), key=lambda number: arrays[number].tobytes(), reverse=True)
    cuts: list[list[tuple[int, int]]] = []  # a sequence, and how many tokens it shares with the one before it
    tokens = read = 0
    before = np.zeros(0, np.int32)
    for number in order:
        ids = arrays[number]
        shared = common(before[:, None], ids[:, None])
        new = len(ids) - shared
        reads = len(ids) if new else 0
        if not cuts or tokens + new > token_budget or read + reads > READS * token_budget:
            cuts.append([])
            tokens = read = shared = 0
            new = reads = len(ids)
        cuts[-1].append((number, shared))
        tokens, read, before = tokens + new, read + reads, ids
    return [_piece(arrays, cut) for cut in cuts]


def _piece(arrays: Sequence[NDArray[np.int32]], cut: Sequence[tuple[int, int]]) -> Piece:
    path = np.zeros(0, np.int64)
    paths: list[Index] = []
    runs: list[TokenRun] = []
    ids, positions = [], []
    added = 0
    for number, shared in cut:
        own = arrays[number]
        new = len(own) - shared
        path = np.concatenate([path[:shared], np.arange(added, added + new)])
        added += new
        paths.append(path)
        ids.append(own[shared:])
        positions.append(np.arange(shared, len(own)))
        if new:
            runs.append(TokenRun(path, shared, len(own), silent=False))
    return Piece(
        [number for number, _ in cut], paths, runs, np.concatenate(ids).astype(np.int64), np.concatenate(positions)
    )


@dataclass(frozen=True, slots=True, eq=False)
class PassLayout:
    """Pieces that are computed together."""

    ids_T: Index
    layout: TokenLayout
    starts: list[int]
    """The first row of each piece."""
    spans: list[int]
    """Rows of each piece with its padding; their sum is T."""


def lay_out(pieces: Sequence[Piece], multiple: int) -> PassLayout:
    """Pieces one after the other, each on a multiple of so many rows."""
    spans = [-(-len(piece.ids_T) // multiple) * multiple for piece in pieces]
    starts = [0, *np.cumsum(spans).tolist()][:-1]
    ids_T, positions_T = np.zeros((2, sum(spans)), np.int64)
    alike: dict[tuple[int, int], list[list[TokenRun]]] = {}
    for piece, start in zip(pieces, starts, strict=True):
        rows = slice(start, start + len(piece.ids_T))
        ids_T[rows], positions_T[rows] = piece.ids_T, piece.positions_T
        for run in piece.runs:
            shape = _side(run.length), _side(run.end)
            groups = alike.setdefault(shape, [[]])
            if groups[0] and shape[1] > EAGER_KEYS:  # there, how a block is computed depends on its runs
                groups.append([])
            groups[-1].append(replace(run, path=run.path + start))
    blocks, own = [], []
    everything = np.arange(len(ids_T))
    for shape, groups in alike.items():
        for runs in groups:
            blocks.append(block_of(runs, everything, *shape))
            own += [run.path[run.begin : run.end] for run in runs]
    return PassLayout(ids_T, _layout(positions_T, tuple(blocks), np.concatenate(own)), starts, spans)


def _layout(positions_T: Index, blocks: tuple[Block, ...], own: Index) -> TokenLayout:
    everything, nothing = np.arange(len(positions_T)), np.zeros(0, np.int64)
    padding = np.ones(len(positions_T), np.bool_)
    padding[own] = False
    return TokenLayout(
        tokens=everything,
        positions=positions_T,
        silent=(),
        speaking=blocks,
        predictors=everything,
        targets=nothing,
        distribution_of_target=nothing,
        predictor_of_distribution=nothing,
        a_target_of_distribution=nothing,
        rows=np.concatenate([own, np.flatnonzero(padding)]),
    )


def _side(size: int) -> int:
    step = max(NARROWEST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
