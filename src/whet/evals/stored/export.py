"""Saved evaluations for other tools: a CSV table, a Parquet file, a Hugging Face dataset, conversations to imitate.

Rollouts are rows of one table: the same columns for all, each of one type. What a column cannot hold goes to `other`.

| column | type | what it is |
| --- | --- | --- |
| `example_id` | integer, or text where some id is none | the task |
| `rollout` | integer | which attempt at the task, from 0 |
| `reward` | number | absent where the rollout failed |
| `error`, `error_message` | text | kind of failure, and its chain of causes |
| `question`, `response`, `answer` | text | last user message, last model message, the right answer |
| `prompt`, `completion` | messages | see `MESSAGE_FIELDS`; JSON text in CSV |
| `stop_condition`, `is_completed`, `is_truncated` | text, yes or no | how it ended |
| `seconds`, `input_tokens`, `output_tokens`, `cost` | number | what it took; `cost` in dollars |
| `metric_<name>` | number | one for each metric |
| `info`, `tool_defs`, `timing`, `<state column>` | JSON text | as saved |
| `other` | JSON text | everything else of the row |

`sft` is JSON lines instead, of the rollouts that are good enough (`demonstrations.py`).

Rows are read and written a few at a time, however many there are, and what is
written appears under its name only when it is whole.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from whet.display.text import listed
from whet.errors import ConfigError, MissingExtraError, RunError
from whet.evals.stored.demonstrations import write_demonstrations
from whet.evals.stored.stored import find_results, stream_rows
from whet.messages import readable_text, whole_characters
from whet.records.directory import load_metadata
from whet.rollouts.selection import Selection, select_rollouts
from whet.types import RolloutOutput

if TYPE_CHECKING:
    import pyarrow

Kind = Literal["integer", "number", "yes or no", "text", "json", "messages"]
Format = Literal["csv", "parquet", "hf", "sft"]
NAMES: dict[Format, str] = {"csv": "results.csv", "parquet": "results.parquet", "hf": "dataset", "sft": "sft.jsonl"}
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
    left_out: Mapping[str, int] = field(default_factory=dict)  # how many, by the reason


def export(
    path: Path,
    format: str,
    target: Path | None = None,
    *,
    overwrite: bool = False,
    min_reward: float | None = None,
    best_per_example: int | None = None,
) -> Exported:
    """Write the rollouts of an evaluation in another format.

    Args:
        path: The evaluation: its directory or results file.
        format: `csv`, `parquet`, `hf` (a directory for `datasets.load_from_disk`) or `sft`.
        target: File or directory to write; in the directory of the results if it is not given.
        overwrite: Whether a target that is there already may be replaced.
        min_reward, best_per_example: Of `sft`, which needs one of them: `whet.rollouts.selection.select_rollouts`.

    Raises `ConfigError` for an unknown format and options that it has not, `RunError` where there is no evaluation, a
    row cannot be read, or the target is there already, and `MissingExtraError` where Parquet or datasets are chosen
    without their libraries.
    """
    known = get_args(Format)
    if format not in known:
        raise ConfigError(f"format {format!r} is not known; it is one of {', '.join(known)}.")
    form: Format = format  # type: ignore[assignment]
    if (form == "sft") == (min_reward is None and best_per_example is None):
        raise ConfigError("--min-reward and --best-per-example say which rollouts --format sft writes: one is needed.")
    directory = find_results(path)
    target = target or directory / NAMES[form]
    _check_target(target, form, overwrite)
    selection: Selection | None = None
    if form == "sft":
        named = ((f"{directory}, rollout {number}", row) for number, row in enumerate(stream_rows(directory), 1))
        selection = select_rollouts(named, min_reward=min_reward, best_per_example=best_per_example)
        if not selection.kept:
            raise RunError(f"{directory}: no rollout is good enough to be written.")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        rollouts = _write_table(directory, form, temporary) if selection is None else 0
        if selection is not None:
            write_demonstrations(temporary, stream_rows(directory), selection.kept)
            rollouts = len(selection.kept)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        _remove(temporary)
    return Exported(target, rollouts, {} if selection is None else selection.left_out)


def _write_table(directory: Path, form: Format, path: Path) -> int:
    state_columns = (load_metadata(directory) or {}).get("state_columns") or ()
    columns = find_columns(stream_rows(directory), state_columns)
    counter = count()
    rows = (flat(row, columns) for row, _ in zip(stream_rows(directory), counter, strict=False))
    writers: dict[Format, Callable[[Path, Columns, Iterator[dict[str, Any]]], None]] = {
        "csv": write_csv,
        "parquet": write_parquet,
        "hf": write_dataset,
    }
    writers[form](path, columns, rows)
    return next(counter)


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


MESSAGE_FIELDS = ("role", "content", "reasoning_content", "tool_call_id", "name")
"""Text of a message; further fields: `tool_calls`, a list of JSON text, and `extra`, what else it has as JSON text.

Content that is a list of parts is JSON text too.
"""
Cell = Callable[[Mapping[str, Any]], Any]
FIRST: dict[str, tuple[Kind, Cell]] = {
    "example_id": ("integer", lambda row: row["example_id"]),
    "rollout": ("integer", lambda row: row["rollout"] if _is_integer(row.get("rollout")) else None),
    "reward": ("number", lambda row: None if row.get("error") else _number(row.get("reward"))),
    "error": ("text", lambda row: _text(_part(row, "error").get("error"))),
    "error_message": ("text", lambda row: _text(_part(row, "error").get("error_chain_repr"))),
    "question": ("text", lambda row: _last_text(row.get("prompt"), "user")),
    "response": ("text", lambda row: _last_text(row.get("completion"), "assistant")),
    "answer": ("text", lambda row: _text(row.get("answer"))),
    "stop_condition": ("text", lambda row: _text(row.get("stop_condition"))),
    "is_completed": ("yes or no", lambda row: bool(row.get("is_completed"))),
    "is_truncated": ("yes or no", lambda row: bool(row.get("is_truncated"))),
    "seconds": ("number", lambda row: _number(_part(_part(row, "timing"), "generation").get("duration"))),
    "input_tokens": ("number", lambda row: _number(_part(row, "token_usage").get("input_tokens"))),
    "output_tokens": ("number", lambda row: _number(_part(row, "token_usage").get("output_tokens"))),
    "cost": ("number", lambda row: _number(_part(row, "token_usage").get("cost"))),
}
LAST: dict[str, tuple[Kind, Cell]] = {
    "prompt": ("messages", lambda row: _messages(row.get("prompt"))),
    "completion": ("messages", lambda row: _messages(row.get("completion"))),
    "info": ("json", lambda row: _filled_json(row.get("info"))),
    "tool_defs": ("json", lambda row: _filled_json(row.get("tool_defs"))),
    "timing": ("json", lambda row: _filled_json(row.get("timing"))),
}
OTHER = "other"
TAKEN = {
    *("example_id", "rollout", "reward", "error", "error_chain", "long_error_chain", "answer", "stop_condition"),
    *("is_completed", "is_truncated", "token_usage", "prompt", "completion", "info", "tool_defs", "timing", "metrics"),
}
"""Fields of a row that have their columns."""
LARGEST_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one table, in order."""

    kinds: dict[str, Kind]
    metrics: tuple[str, ...]
    state: tuple[str, ...]


def find_columns(rows: Iterable[RolloutOutput], state_columns: Sequence[str] = ()) -> Columns:
    """The columns that hold all of `rows`; `state_columns` are those of the evaluation's metadata."""
    ids_are_integers = True
    metrics: set[str] = set()
    for row in rows:
        ids_are_integers = ids_are_integers and _is_integer(row["example_id"])
        metrics |= row["metrics"].keys()
    kinds: dict[str, Kind] = {name: kind for name, (kind, _) in FIRST.items()}
    if not ids_are_integers:
        kinds["example_id"] = "text"
    kinds |= {f"metric_{name}": "number" for name in sorted(metrics)}
    # A state column may be called like a field of a row or a column of this table.
    taken = {*TAKEN, *kinds, *LAST, OTHER}
    state = tuple(name for name in dict.fromkeys(state_columns) if name not in taken)
    kinds |= dict.fromkeys(state, "json")
    kinds |= {name: kind for name, (kind, _) in LAST.items()}
    kinds[OTHER] = "json"
    return Columns(kinds, tuple(sorted(metrics)), state)


def flat(row: RolloutOutput, columns: Columns) -> dict[str, Any]:
    """A row with exactly these columns; None where it has no such value. Half characters are replaced."""
    known = {*TAKEN, *columns.state}
    known |= {name for name, value in row["metrics"].items() if row.get(name) == value}  # a column too in old rows
    cells = {name: value(row) for name, (_, value) in (FIRST | LAST).items()}
    if columns.kinds["example_id"] == "text":
        cells["example_id"] = _text(row["example_id"])
    cells |= {f"metric_{name}": _number(row["metrics"].get(name)) for name in columns.metrics}
    cells |= {name: _filled_json(row.get(name)) for name in columns.state}
    cells[OTHER] = _filled_json({key: value for key, value in row.items() if key not in known})
    return {name: cells[name] for name in columns.kinds}


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table of this name; an empty one where the row has none."""
    return row.get(name) or {}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST_INTEGER <= value < LARGEST_INTEGER


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(whole_characters(value if isinstance(value, str) else _json(value)))


def _json(value: Any) -> str:
    return json.dumps(whole_characters(value), ensure_ascii=False)


def _filled_json(value: Any) -> str | None:
    """As JSON text; None where there is nothing in it."""
    return None if value in (None, [], {}) else _json(value)


def _last_text(messages: Any, role: str) -> str | None:
    """The last message of a role, as text."""
    if isinstance(messages, str):
        return _text(messages)
    matching = [one for one in listed(messages) if isinstance(one, Mapping) and one.get("role") == role]
    return _text(readable_text(matching[-1].get("content"))) if matching else None


def _messages(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = [{"role": "text", "content": value}]
    return [_message(message) for message in listed(value) if isinstance(message, Mapping)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    extra = {key: value for key, value in message.items() if key not in (*MESSAGE_FIELDS, "tool_calls")}
    return {
        **{name: _text(message.get(name)) for name in MESSAGE_FIELDS},
        "tool_calls": [_text(call) for call in calls] if isinstance(calls, list) else None,
        "extra": _json(extra) if extra else None,
    }
