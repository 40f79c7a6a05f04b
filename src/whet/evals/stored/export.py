"""Saved evaluations for other tools: a CSV table, a Parquet file, a Hugging Face dataset.

The columns are those of `flat_rows.py`. Rows are read and written a few at a time, however many there are, and what is
written appears under its name only when it is whole.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from whet.errors import ConfigError, MissingExtraError, RunError
from whet.evals.stored.flat_rows import MESSAGE_FIELDS, Columns, Kind, find_columns, flat
from whet.evals.stored.streaming import find_results, stream_rows
from whet.records.directory import load_metadata

if TYPE_CHECKING:
    import pyarrow

Format = Literal["csv", "parquet", "hf"]
NAMES: dict[Format, str] = {"csv": "results.csv", "parquet": "results.parquet", "hf": "dataset"}
"""Names of the files, in the directory of the results, where no target is named."""
ROWS_AT_ONCE = 256
RUN_BY_SPREADSHEETS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
"""A cell that begins with one of these may be taken for a formula (OWASP, "CSV Injection")."""
PLAIN_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    rollouts: int


def export(path: Path, format: str, target: Path | None = None, *, overwrite: bool = False) -> Exported:
    """Write the rollouts of an evaluation in another format.

    Args:
        path: The evaluation: its directory or results file.
        format: `csv`, `parquet` or `hf` (a directory for `datasets.load_from_disk`).
        target: File or directory to write; in the directory of the results if it is not given.
        overwrite: Whether a target that is there already may be replaced.

    Raises `ConfigError` for an unknown format, `RunError` where there is no evaluation, a row cannot be read, or the
    target is there already, and `MissingExtraError` where Parquet or datasets are chosen without their libraries.
    """
    known = get_args(Format)
    if format not in known:
        raise ConfigError(f"format {format!r} is not known; it is one of {', '.join(known)}.")
    form: Format = format  # type: ignore[assignment]
    directory = find_results(path)
    target = target or directory / NAMES[form]
    _check_target(target, form, overwrite)
    state_columns = (load_metadata(directory) or {}).get("state_columns") or ()
    columns = find_columns(stream_rows(directory), state_columns)
    counter = count()
    rows = (flat(row, columns) for row, _ in zip(stream_rows(directory), counter, strict=False))
    writers: dict[Format, Callable[[Path, Columns, Iterator[dict[str, Any]]], None]] = {
        "csv": write_csv,
        "parquet": write_parquet,
        "hf": write_dataset,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        writers[form](temporary, columns, rows)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        _remove(temporary)
    return Exported(target, next(counter))


def _check_target(target: Path, format: Format, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise RunError(f"{target} is there already. Give another target (--to), or --overwrite to replace it.")
    if format == "hf" and not (target / "dataset_info.json").is_file():
        raise RunError(f"{target} is no dataset, so it is not replaced. Give another target (--to).")
    if format != "hf" and target.is_dir():
        raise RunError(f"{target} is a directory. Name the file to write: --to {target / NAMES[format]}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_csv(path: Path, columns: Columns, rows: Iterator[dict[str, Any]]) -> None:
    """Text is quoted, absent values are empty, messages are JSON.

    Text that a spreadsheet would run as a formula gets a `'` before it, which spreadsheets do not show; numbers stay
    numbers, also those that are text, such as an answer of -5.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow([_harmless(name) for name in columns.kinds])
        for row in rows:
            writer.writerow([_cell(row[name]) for name in columns.kinds])


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, int | float):
        return value
    return _harmless(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _harmless(text: str) -> str:
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # ends the file for some readers
    runs = text.startswith(tuple(RUN_BY_SPREADSHEETS)) and PLAIN_NUMBER.fullmatch(text) is None
    return f"'{text}" if runs else text


def write_parquet(path: Path, columns: Columns, rows: Iterator[dict[str, Any]]) -> None:
    """One file, compressed, in row groups of a few hundred rollouts."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("exporting to Parquet", "datasets") from error
    schema = _schema(columns)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(schema, rows):
            writer.write_batch(batch)


def write_dataset(path: Path, columns: Columns, rows: Iterator[dict[str, Any]]) -> None:
    """A directory for `datasets.load_from_disk`."""
    try:
        import datasets
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingExtraError("exporting a Hugging Face dataset", "datasets") from error
    schema = _schema(columns)
    arrow = path.with_name(f"{path.name}.arrow")
    shown = datasets.is_progress_bar_enabled()
    try:
        with pyarrow.OSFile(str(arrow), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
            for batch in _batches(schema, rows):
                writer.write_batch(batch)
        datasets.disable_progress_bars()
        # Memory-mapped, so that nothing is copied into memory or into a cache.
        datasets.Dataset.from_file(str(arrow)).save_to_disk(path)
    finally:
        if shown:
            datasets.enable_progress_bars()
        arrow.unlink(missing_ok=True)


def _schema(columns: Columns) -> pyarrow.Schema:
    import pyarrow

    text = pyarrow.string()
    message = pyarrow.struct(
        [*((name, text) for name in MESSAGE_FIELDS), ("tool_calls", pyarrow.list_(text)), ("extra", text)]
    )
    types: dict[Kind, Any] = {
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "yes or no": pyarrow.bool_(),
        "text": text,
        "json": text,
        "messages": pyarrow.list_(message),
    }
    return pyarrow.schema([(name, types[kind]) for name, kind in columns.kinds.items()])


def _batches(schema: pyarrow.Schema, rows: Iterator[dict[str, Any]]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield pyarrow.RecordBatch.from_pylist(some, schema)
