"""Datasets: from an author's data to rows for rollouts.

A dataset is a list of dicts, a `datasets.Dataset`, or a callable that returns one. Rows stay plain Python values; they
never pass through Arrow here, so that `info` of mixed types survives unchanged, and `datasets` need not be installed.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from whet.errors import DatasetError
from whet.messages import copy_value, normalize_messages
from whet.types import Messages, UserMessage

Row = dict[str, Any]
logger = logging.getLogger(__name__)


class RowDataset(Sequence[Row]):
    """An immutable list of rows with the methods of `datasets.Dataset` that environments use."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> RowDataset: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            if key not in self.column_names:
                raise KeyError(key)
            return [row.get(key) for row in self._rows]
        return RowDataset(self._rows[key]) if isinstance(key, slice) else self._rows[key]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"RowDataset({len(self)} rows: {', '.join(self.column_names)})"

    @property
    def column_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def to_list(self) -> list[Row]:
        """The rows, copied."""
        return [copy_value(row) for row in self._rows]

    def select(self, indices: Iterable[int]) -> RowDataset:
        return RowDataset(self._rows[index] for index in indices)

    def shuffle(self, seed: int | None = None) -> RowDataset:
        rows = list(self._rows)
        random.Random(seed).shuffle(rows)
        return RowDataset(rows)

    def repeat(self, times: int) -> RowDataset:
        return RowDataset(self._rows * times)

    def filter(self, function: Callable[[Row], bool]) -> RowDataset:
        return RowDataset(row for row in self._rows if function(row))

    def map(self, function: Callable[[Row], Mapping[str, Any]]) -> RowDataset:
        return RowDataset({**row, **function(row)} for row in self._rows)


def build_dataset(
    source: Any, *, system_prompt: str | None = None, few_shot: Sequence[Any] | None = None, name: str = "dataset"
) -> RowDataset:
    """Rows with a prompt (a list of messages) and an integer `example_id`.

    Raises `DatasetError` for the first row that is no valid task.
    """
    rows = _plain_rows(source() if callable(source) else source, name)
    if not rows:
        raise DatasetError(f"the {name} has no rows.")
    opening = _opening(system_prompt, few_shot)
    if few_shot and any(row.get("prompt") is not None for row in rows):
        logger.warning("rows of the %s that bring their own 'prompt' go without the few_shot messages", name)
    return RowDataset(_number([_with_prompt(row, index, opening, name) for index, row in enumerate(rows)]))


def _plain_rows(source: Any, name: str) -> list[Row]:
    if isinstance(source, RowDataset):
        source = list(source)
    elif hasattr(source, "to_list") and hasattr(source, "column_names"):
        source = source.to_list()  # datasets.Dataset
    if isinstance(source, str | Mapping) or not isinstance(source, Iterable):
        raise DatasetError(
            f"the {name} is {type(source).__name__}; it should be a list of dicts, a datasets.Dataset, "
            "or a callable that returns one."
        )
    rows: list[Row] = []
    for index, row in enumerate(source):
        if not isinstance(row, Mapping):
            raise DatasetError(f"row {index} of the {name} is {type(row).__name__}; it should be a dict.")
        rows.append({key: value for key, value in row.items() if key != "env_id"})
    return rows


def _opening(system_prompt: str | None, few_shot: Sequence[Any] | None) -> Messages:
    opening: list[Any] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    try:
        return normalize_messages([*opening, *(few_shot or [])], field_name="few_shot")
    except (TypeError, ValueError) as error:
        raise DatasetError(f"few_shot is not a list of messages: {error}.") from error


def _with_prompt(row: Row, index: int, opening: Messages, name: str) -> Row:
    where = f"row {index} of the {name}"
    prompt = row.get("prompt")
    if prompt is None:
        question = row.get("question")
        if not isinstance(question, str | list):
            columns = (
                "neither 'prompt' nor 'question'" if question is None else f"a question of {type(question).__name__}"
            )
            raise DatasetError(
                f"{where} has {columns} (its columns: {', '.join(map(str, row)) or 'none'}). "
                "Give each row a 'question' (text) or a 'prompt' (a list of messages)."
            )
        row["prompt"] = [*copy_value(opening), UserMessage(question)]
    else:
        row["prompt"] = _given_prompt(prompt, where, opening)
    read_info(row.get("info"), where)
    return row


def read_info(value: Any, where: str) -> Mapping[str, Any]:
    """The `info` of a row, possibly empty. Raises `DatasetError` if it is neither a dict nor the JSON of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DatasetError(f"{where}: 'info' is a string that is not JSON ({error}).") from error
    if value is not None and not isinstance(value, Mapping):
        raise DatasetError(f"{where}: 'info' is {type(value).__name__}; it should be a dict, or a JSON object as text.")
    return value or {}


def _given_prompt(prompt: Any, where: str, opening: Messages) -> Messages:
    system = opening[:1] if opening and opening[0]["role"] == "system" else []
    if isinstance(prompt, str) and system:
        raise DatasetError(
            f"{where}: 'prompt' is text, so the system_prompt has no place in it. "
            "Name the column 'question', or make it a list of messages."
        )
    try:
        messages = normalize_messages(prompt, field_name="prompt")
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{where}: {error}.") from error
    if messages and messages[0]["role"] == "system":
        return messages
    return [*copy_value(system), *messages]


def _number(rows: list[Row]) -> list[Row]:
    """Integer `example_id` for all: ids of another type move to `src_id`, missing ones become 0, 1, 2, ..."""
    if all(type(row.get("example_id")) is int for row in rows):
        return rows
    for index, row in enumerate(rows):
        given = row.pop("example_id", None)
        if given is not None:
            row["src_id"] = given
        row["example_id"] = index
    return rows
