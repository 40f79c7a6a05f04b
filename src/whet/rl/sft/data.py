"""From `[data]` and `[validation]` to the token sequences of a run: read, filtered, split, measured.

Nothing is left out in silence: rows that cannot be used are an error that names them, and whatever the config leaves
out is counted in `notes`.

`Batches`: which rows a step trains, every row once an epoch, each epoch in an order of its own. Resumes by a number.

    3 rows, batches of 2     epoch 1: c a b     epoch 2: b c a     step 1: c a     step 2: b b     step 3: c a

A batch takes what it needs from the next epoch, so all but the last have the same size. With a limit on tokens a batch
ends before the row that would exceed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from whet.errors import DatasetError, TrainingError
from whet.inference.loading import read_model
from whet.rl.data.batch import TokenSequence
from whet.rl.sft.config import SftConfig
from whet.rl.sft.rows import (
    DataSource,
    Row,
    conversation_of,
    conversation_tokens,
    read_dataset,
    read_path,
    recorded_tokens,
    text_tokens,
)
from whet.rollouts.selection import preference_pairs, select_rollouts

if TYPE_CHECKING:
    from whet.inference.rendering.chat_renderer import ChatRenderer

MOST_NAMED = 5


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One row as the learner sees it."""

    number: int  # of its row in the source, from 1
    where: str
    sequences: list[TokenSequence]
    preferred: int = 0  # of a pair: how many of the sequences, the first ones, are of the better answer

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))

    @property
    def content(self) -> bytes:
        """The same for rows that teach the same."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            digest.update(len(sequence).to_bytes(8, "little") + sequence.ids.tobytes() + sequence.trained.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True, eq=False)
class SftData:
    train: list[Example]
    validation: list[Example]
    notes: list[str] = field(default_factory=list)  # what was left out, for people

    @property
    def fingerprint(self) -> str:
        """Of everything that is trained, in its order: a resumed run must find the same."""
        return hashlib.sha256(b"".join(example.content for example in self.train)).hexdigest()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(sequence) for example in self.train + self.validation for sequence in example.sequences)

    def batches(self, config: SftConfig) -> Batches:
        """All that are to come, from the first on."""
        epochs = None if config.max_steps else config.epochs
        tokens = [example.tokens for example in self.train]
        return Batches(tokens, config.batch_size, config.batch_tokens, epochs, config.seed)


def load_data(config: SftConfig, renderer: ChatRenderer, *, context: int) -> SftData:
    """Everything that is trained and validated on. `context` is the most tokens the model takes.

    Raises `DatasetError` naming rows that cannot be used, and where nothing is left to train on.
    """
    reader = _Reader(config, renderer, context)
    data = config.data
    if data.path is not None:
        train = reader.examples(read_path(data.path, data.split), str(data.path))
    else:
        assert data.dataset is not None, "the config has one of the two"
        train = reader.examples(read_dataset(data.dataset, data.split), data.dataset)
    held_out: list[Example] = []
    if config.validation is not None and config.validation.path is not None:
        held_out = reader.examples(read_path(config.validation.path, data.split), str(config.validation.path))
        known = {example.content for example in held_out}
        kept = [example for example in train if example.content not in known]
        reader.note(len(train) - len(kept), "left out of training: the same row is in validation")
        train = kept
    elif config.validation is not None:
        train, held_out = split(train, config.validation.fraction, config.seed)
    if not train:
        raise DatasetError(f"{data.path or data.dataset}: no row is left to train on.{_list(reader.notes)}")
    return SftData(train, held_out, reader.notes)


def split(examples: Sequence[Example], fraction: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Rows to train on and a share of `fraction` (at least one row) to validate on, each in the order given.

    Rows with the same content are on the same side. Raises `DatasetError` where one side would be empty.
    """
    contents = list(dict.fromkeys(example.content for example in examples))
    count = max(1, round(len(contents) * fraction))
    if count >= len(contents):
        raise DatasetError(f"{len(contents)} different rows are too few to keep a share of {fraction} for validation")
    chosen = set(Random(f"validation {seed}").sample(contents, count))
    return (
        [example for example in examples if example.content not in chosen],
        [example for example in examples if example.content in chosen],
    )


class _Reader:
    """Rows to examples under one config; `notes` says what was left out."""

    def __init__(self, config: SftConfig, renderer: ChatRenderer, context: int) -> None:
        self.notes: list[str] = []
        self._config, self._data, self._renderer = config, config.data, renderer
        self._most = min(context, config.data.max_length or context)

    def note(self, count: int, why: str) -> None:
        if count:
            self.notes.append(f"{count} row{'' if count == 1 else 's'} {why}")

    def examples(self, source: DataSource, name: str) -> list[Example]:
        if not source.rows:
            raise DatasetError(f"{name}: there is no row in it")
        good = [(row,) for row in self._good(source, name)] if self._config.dpo is None else self._pairs(source)
        rows = good[: self._data.num_examples or len(good)]
        if source.sampled_by is not None and rows:
            self._check_recorded(source.sampled_by, name)
        examples, faults = [], []
        for first, *others in rows:
            try:
                sequences, *worse = [
                    self._sequences(row, recorded=source.sampled_by is not None) for row in (first, *others)
                ]
                preferred = len(sequences) if worse else 0
                examples.append(Example(first.number, first.where, sum(worse, sequences), preferred))
            except (DatasetError, TrainingError) as error:
                faults.append(f"{first.where}: {error}")
        if faults:
            raise DatasetError(f"{name}: {len(faults)} of {len(rows)} rows cannot be used.{_list(faults)}")
        return self._fitting(examples, name)

    def _good(self, source: DataSource, name: str) -> list[Row]:
        """Rows that ended well and earned enough."""
        least, best = self._data.min_reward, self._data.best_per_example
        if least is None and best is None:
            if source.rollouts:
                raise DatasetError(
                    f"{name} holds rollouts, good and bad. Say which to imitate with [data] min_reward, such as 1.0, "
                    "or best_per_example."
                )
            return source.rows
        rows = ((row.where, row.fields) for row in source.rows)
        selection = select_rollouts(rows, min_reward=least, best_per_example=best)
        for why, count in selection.left_out.items():
            self.note(count, why)
        return [source.rows[number] for number in selection.kept]

    def _pairs(self, source: DataSource) -> Sequence[tuple[Row, ...]]:
        """The better and the worse row of each pair."""
        if not source.rollouts and {"chosen", "rejected"} <= source.rows[0].fields.keys():
            return [(_answered(row, "chosen"), _answered(row, "rejected")) for row in source.rows]
        pairs, left_out = preference_pairs((row.where, row.fields) for row in source.rows)
        for why, count in left_out.items():
            self.note(count, why)
        return [(source.rows[best], source.rows[worst]) for best, worst in pairs]

    def _sequences(self, row: Row, *, recorded: bool) -> list[TokenSequence]:
        if recorded:
            return recorded_tokens(row.fields.get("turns") or [], name=row.where)
        if self._data.text:
            return text_tokens(row.fields.get("prompt"), row.fields.get("completion"), self._renderer, name=row.where)
        conversation = conversation_of(row.fields, self._data.train_on)
        thinking = self._data.enable_thinking
        return conversation_tokens(conversation, self._renderer, enable_thinking=thinking, name=row.where)

    def _check_recorded(self, model: str, name: str) -> None:
        """Recorded tokens are trained as they are, and mean something else to another tokenizer."""
        for key in ("train_on", "text", "enable_thinking"):
            if self._data.differs(key):
                raise DatasetError(
                    f"[data] {key} would have no effect: {name} is a run, whose tokens are trained as sampled"
                )
        if model == self._config.model:
            return
        if read_model(model).tokenizer.get_vocab() != self._renderer.tokenizer.get_vocab():
            raise DatasetError(
                f"{name} was sampled by {model}, whose tokens {self._config.model} reads otherwise. Evaluate {model} "
                "with whet eval run and train on what that saves, which is text."
            )

    def _fitting(self, examples: list[Example], name: str) -> list[Example]:
        """Sequences of at most so many tokens, by the way that the config chose for longer ones."""
        long = [example for example in examples if max(map(len, example.sequences)) > self._most]
        if not long:
            return examples
        if self._data.too_long == "refuse":
            lengths = [f"{example.where}: {max(map(len, example.sequences))} tokens" for example in long]
            raise DatasetError(
                f"{name}: {len(long)} of {len(examples)} rows have more than {self._most} tokens. Raise [data] "
                f'max_length (the model takes its context), or set too_long = "cut" or "skip".{_list(lengths)}'
            )
        if self._data.too_long == "skip":
            self.note(len(long), f"left out: more than {self._most} tokens")
            return [example for example in examples if all(example is not other for other in long)]
        self.note(len(long), f"cut to {self._most} tokens")
        cut = [replace(example, sequences=_cut(example.sequences, self._most)) for example in examples]
        empty = [example.where for example in cut if not example.sequences]
        if empty:
            raise DatasetError(f"{name}: {len(empty)} rows have no answer left when they are cut.{_list(empty)}")
        return cut


def _answered(row: Row, name: str) -> Row:
    """A row of a prompt and two answers, with one of them as its completion."""
    answer = row.fields.get(name)
    if (
        isinstance(answer, Sequence)
        and answer
        and isinstance(answer[0], Mapping)
        and answer[0].get("role") != "assistant"
    ):
        raise DatasetError(
            f"{row.where}: {name} should begin with the assistant; the messages before it are the prompt"
        )
    return replace(row, fields={**row.fields, "completion": answer})


def _cut(sequences: Sequence[TokenSequence], most: int) -> list[TokenSequence]:
    cut = (
        TokenSequence.demonstration(one.ids[:most].tolist(), one.trained[:most].tolist(), rollout=one.rollout)
        for one in sequences
    )
    return [sequence for sequence in cut if sequence.trained.any()]


def _list(lines: Sequence[Any]) -> str:
    if not lines:
        return ""
    shown = [f"\n  {line}" for line in lines[:MOST_NAMED]]
    more = f"\n  and {len(lines) - MOST_NAMED} more" if len(lines) > MOST_NAMED else ""
    return "".join(shown) + more


@dataclass(frozen=True, slots=True)
class Pick:
    epoch: int  # from 1
    row: int  # from 0


@dataclass(slots=True)
class Batches:
    """Batches over rows of these many tokens; without `epochs`, without end."""

    tokens: Sequence[int]
    batch_size: int
    batch_tokens: int | None
    epochs: int | None
    seed: int
    taken: int = 0
    tokens_taken: int = 0  # since it was made
    _orders: dict[int, list[int]] = field(default_factory=dict)

    def next(self) -> list[Pick]:
        """The rows of the next step; empty where every epoch is over."""
        batch: list[Pick] = []
        total = 0
        while len(batch) < self.batch_size and (pick := self._pick(self.taken)) is not None:
            total += self.tokens[pick.row]
            if batch and self.batch_tokens is not None and total > self.batch_tokens:
                break
            batch.append(pick)
            self.taken += 1
            self.tokens_taken += self.tokens[pick.row]
        return batch

    def left(self, most: int | None = None) -> int:
        """How many batches are to come, in epochs that end, or of the first `most` rows."""
        assert self.epochs is not None or most is not None, "endless batches have no number"
        counted = replace(self)
        number = 0
        while counted.next() and (most is None or counted.taken <= most):
            number += 1
        return number

    def _pick(self, position: int) -> Pick | None:
        epoch, index = divmod(position, len(self.tokens))
        if self.epochs is not None and epoch >= self.epochs:
            return None
        if epoch not in self._orders:
            rows = range(len(self.tokens))
            self._orders = {epoch: Random(f"epoch {epoch} {self.seed}").sample(rows, len(rows))}
        return Pick(epoch + 1, self._orders[epoch][index])
