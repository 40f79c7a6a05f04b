"""Which rows are used for training, validation and the final comparison. Pure.

train and val     from the training dataset
held_out          from the evaluation dataset; where there is none, what is left of the training dataset

No row is in two of them, nor one with the same prompt and answer. The seed alone decides which rows are
taken, and a larger held-out part begins with the rows of a smaller one.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import GepaError
from whet.gepa.types import SearchExample, Split

FEWEST_HELD_OUT = 8
"""Held-out examples below which a comparison says next to nothing."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnvRows:
    """The rows of one environment."""

    label: str
    train: Sequence[Row]
    evaluation: Sequence[Row] | None  # None: there is no evaluation dataset
    weight: float = 1.0


@dataclass(slots=True)
class Splits:
    train: list[SearchExample] = field(default_factory=list)
    val: list[SearchExample] = field(default_factory=list)
    held_out: list[SearchExample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def split_examples(
    sources: Sequence[EnvRows], *, num_train: int, num_val: int, held_out: int, exact: bool, seed: int
) -> Splits:
    """Examples of every environment, shared out by weight.

    `exact`: the config sets the number of held-out examples; otherwise fewer will do, down to `FEWEST_HELD_OUT`.
    Raises `GepaError` where there are too few rows.
    """
    weights = [source.weight for source in sources]
    splits = Splits()
    shares = zip(sources, shared(num_train, weights), shared(num_val, weights), shared(held_out, weights), strict=True)
    for source, train, val, confirm in shares:
        rows = _shuffled(source.train, f"{seed}/{source.label}/train")
        if len(rows) < train + val:
            raise GepaError(
                f"environment {source.label} has {len(rows)} different tasks to train on, and {train} for training "
                f"(-n) and {val} for validation (-N) are configured. {_smaller(len(rows), train, val)}"
            )
        taken, rest = rows[: train + val], rows[train + val :]
        if source.evaluation is not None:
            known = {_task_hash(row) for row in taken}
            rest = [
                row
                for row in _shuffled(source.evaluation, f"{seed}/{source.label}/eval")
                if _task_hash(row) not in known
            ]
        splits.train += _examples(source.label, "train", taken[:train])
        splits.val += _examples(source.label, "val", taken[train:])
        splits.held_out += _examples(source.label, "held_out", rest[:confirm])
        if len(rest) < confirm:
            _too_few(source, len(rest), confirm, exact, splits)
    return splits


def shared(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in parts by weight, each at least 1 while there are enough; the largest remainders are rounded up."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [max(int(share), min(1, total)) for share in exact]
    order = sorted(range(len(weights)), key=lambda index: (parts[index] - exact[index], index))
    while sum(parts) < total:
        parts[order[0]] += 1
        order = [*order[1:], order[0]]
    while sum(parts) > total:
        parts[max(range(len(parts)), key=lambda index: parts[index])] -= 1
    return parts


def _too_few(source: EnvRows, there: int, wanted: int, exact: bool, splits: Splits) -> None:
    if exact or there < min(wanted, FEWEST_HELD_OUT):
        raise GepaError(
            f"environment {source.label} has {there} tasks left to hold out for the final comparison, and {wanted} are "
            "wanted. Give smaller -n and -N, or held_out in [gepa]; 0 leaves the comparison out."
        )
    splits.notes.append(f"{source.label}: the final comparison is on the {there} tasks that can be held out")


def _smaller(rows: int, train: int, val: int) -> str:
    half = max(1, rows * train // (train + val))
    return f"Give -n {half} -N {rows - half}, or fewer." if rows >= 2 else "Give it more tasks."


def _shuffled(rows: Iterable[Row], seed: str) -> list[Row]:
    """The rows with different tasks, each once, in an order of the seed's."""
    different = list({_task_hash(row): row for row in reversed(list(rows))}.values())[::-1]
    random.Random(seed).shuffle(different)
    return different


def _examples(label: str, split: Split, rows: Sequence[Row]) -> list[SearchExample]:
    return [SearchExample(label, split, number, row.get("example_id"), row) for number, row in enumerate(rows)]


def _task_hash(row: Row) -> bytes:
    """A hash of a row's prompt and answer, without its number and name."""
    known = [row.get(name) for name in ("prompt", "answer", "info", "task")]
    known[2] = json.loads(known[2]) if isinstance(known[2], str) else known[2]
    return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=16).digest()
