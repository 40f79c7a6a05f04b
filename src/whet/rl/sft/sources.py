"""Rows out of files: JSON lines, JSON, Parquet, saved datasets, evaluations, training runs, the Hugging Face hub.

Every row keeps where it came from, so that a bad one can be named. What a row means is `conversation.py`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from whet.config import read_toml
from whet.errors import DatasetError, MissingExtraError, RunError
from whet.records.directory import RESULTS, RUN_CONFIG
from whet.rollouts.results import load_outputs
from whet.rollouts.token_rows import read_rollouts

FILES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    where: str  # "train.jsonl, line 3"
    fields: Mapping[str, Any]
    number: int = 0  # its position in the source, from 1, by which the ledger names it


@dataclass(frozen=True, slots=True)
class DataSource:
    """Rows, and of what kind they are."""

    rows: list[Row]
    rollouts: bool = False  # what a model said, with its reward, good or bad
    sampled_by: str | None = None  # of rollouts with tokens: the model whose tokens they are

    @classmethod
    def of(cls, rows: Iterable[Row], *, rollouts: bool = False, sampled_by: str | None = None) -> Self:
        """With its rows numbered."""
        return cls([replace(row, number=number) for number, row in enumerate(rows, start=1)], rollouts, sampled_by)


def read_path(path: Path, split: str) -> DataSource:
    """The rows of the file or data set at `path`. Raises `DatasetError`."""
    if path.is_file():
        if split != "train":
            raise DatasetError(f"[data] split = {split!r} would have no effect: {path} is a file")
        return DataSource.of(_file(path))
    check_path(path)
    try:
        if (path / "rollouts").is_dir() and (path / RUN_CONFIG).is_file():
            model = read_toml(path / RUN_CONFIG).get("model")
            return DataSource.of(_trained(path), rollouts=True, sampled_by=str(model))
        if evaluations := sorted(results.parent for results in path.rglob(RESULTS)):
            rows = (row for evaluation in evaluations for row in _evaluated(evaluation))
            return DataSource.of(rows, rollouts=True)
    except RunError as error:
        raise DatasetError(str(error)) from None
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return DataSource.of(_with_datasets(lambda datasets: datasets.load_from_disk(str(path)), str(path), split))
    files = sorted(file for file in path.iterdir() if file.suffix in FILES)
    if not files:
        raise DatasetError(
            f"{path} holds no data: no {', '.join(FILES)} file, no saved dataset, no {RESULTS} of an evaluation and no "
            "rollouts of a run"
        )
    return DataSource.of(row for file in files for row in _file(file))


def check_path(path: Path) -> None:
    """Raise `DatasetError` where nothing exists at `path`."""
    if not path.is_file() and not path.is_dir():
        raise DatasetError(f"{path}: there is no such file or directory")


def read_dataset(name: str, split: str) -> DataSource:
    """A dataset of the Hugging Face hub. Raises `DatasetError`."""
    return DataSource.of(_with_datasets(lambda datasets: datasets.load_dataset(name, split=split), name, split))


def _file(path: Path) -> Iterator[Row]:
    if path.suffix not in FILES:
        raise DatasetError(f"{path}: give a {', '.join(FILES)} file, or a directory")
    try:
        if path.suffix == ".parquet":
            yield from _named(path, _parquet(path))
        elif path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8-sig"))
            if not isinstance(found, list):
                raise DatasetError(f"{path} should hold a list of rows, not {type(found).__name__}")
            yield from _named(path, found)
        else:
            with path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield _row(f"{path}, line {number}", _json(line, f"{path}, line {number}"))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON ({error})") from None


def _named(path: Path, rows: Iterable[Any]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        yield _row(f"{path}, row {number}", row)


def _row(where: str, fields: Any) -> Row:
    if not isinstance(fields, Mapping):
        raise DatasetError(f"{where}: expected an object, found {type(fields).__name__}")
    return Row(where, fields)


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DatasetError(f"{where}: not JSON ({error})") from None


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading Parquet", "datasets") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{path}: not a Parquet file ({str(error).partition(chr(10))[0]})") from None
    return rows


def _evaluated(evaluation: Path) -> Iterator[Row]:
    for number, fields in enumerate(load_outputs(evaluation), start=1):
        yield Row(f"{evaluation / RESULTS}, rollout {number}", fields)


def _trained(run: Path) -> Iterator[Row]:
    """The trained rollouts of a run, those of evaluations left alone."""
    for file in sorted((run / "rollouts").glob("step_*.jsonl")):
        for number, fields in enumerate(read_rollouts(file), start=1):
            yield Row(f"{file}, line {number}", fields)


def _with_datasets(load: Callable[[Any], Any], name: str, split: str) -> list[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"reading {name}", "datasets") from error
    try:
        found = load(datasets)
    except Exception as error:  # the library raises whatever its many backends do
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DatasetError(f"{name}: the dataset cannot be loaded ({reason})") from None
    if isinstance(found, Mapping):
        if split not in found:
            raise DatasetError(f"{name} has no split {split!r}; it has {', '.join(map(str, found))}")
        found = found[split]
    return [Row(f"{name}, row {number}", fields) for number, fields in enumerate(found, start=1)]
