"""What the commands share: common options, printing a result, a progress bar, and naming a missing extra."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.errors import ConfigError, MissingExtraError
from whet.system.files import json_line
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON on standard output.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Log more, on standard error; -vv logs everything.")
]

EXTRAS = {
    "train": {
        "PIL",
        "gguf",
        "httptools",
        "httpx",
        "huggingface_hub",
        "numpy",
        "peft",
        "renderers",
        "safetensors",
        "starlette",
        "tokenizers",
        "torch",
        "transformers",
        "uvicorn",
    },
    "openai": {"openai"},
    "gepa": {"gepa"},
    "dashboard": {"fastapi", "starlette", "uvicorn"},
    "math": {"math_verify"},
    "hub": {
        "alembic",
        "cryptography",
        "fastapi",
        "fsspec",
        "markdown_it",
        "nh3",
        "psycopg",
        "python_multipart",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    },
    "serve": {"httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"},
}
EXTRAS["service"] = EXTRAS["train"] | EXTRAS["serve"] | EXTRAS["hub"]
EXTRAS["tinker"] = EXTRAS["train"] | EXTRAS["hub"] | {"google", "prometheus_client", "tinker"}
"""The packages of each extra that are imported by name."""

Progress = Callable[[str, int, int], None]
"""Receives a stage's name, how much of it is done, and of how much."""
UNFOLDED = 10_000
"""Columns of a table that is not printed to a terminal."""


def set_verbosity(verbose: int) -> None:
    """Set the log level that the count of `--verbose` stands for."""
    if verbose:
        from whet.system.logs import setup_logging

        setup_logging("INFO" if verbose == 1 else "DEBUG")


def console() -> Console:
    """Standard output for text that is coloured where it is a terminal."""
    from whet.system.console import SafeConsole

    return SafeConsole()


def print_json(result: Any) -> None:
    """One line of JSON: `result` is a dataclass, a pydantic model, or plain data. A number that is none is null.

    In a terminal all of it is ASCII, since JSON leaves control characters above U+007F as they are.
    """
    sys.stdout.write(json_line(result, _as_json, ascii=sys.stdout.isatty()))
    sys.stdout.flush()


def answer(result: Any, as_json: bool, show: Callable[[], object], *, ok: bool = True) -> None:
    """A result for a program to read, or what `show` prints for a person; exit code 1 where it is not `ok`."""
    if as_json:
        print_json(result)
    else:
        show()
    if not ok:
        raise typer.Exit(1)


def print_done(result: Any, as_json: bool, text: str, *, ok: bool = True) -> None:
    """What was done, in a line for a person."""
    answer(result, as_json, lambda: typer.echo(text), ok=ok)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """A result for a program to read, or for a person: aligned lines, with a table for each list of records."""
    if as_json:
        print_json(result)
        return
    out = console()
    if not out.is_terminal:  # lines in a file or a pipe stay whole
        out.width = UNFOLDED
    plain = {key: value for key, value in result.items() if not _is_nested(value)}
    width = max(map(len, plain), default=0)
    for key, value in plain.items():
        out.print(f"{key:<{width}}  {_text(value)}", soft_wrap=True)
    for key, value in result.items():
        if _is_nested(value):
            out.print()
            out.print(_table(key, value))


def _is_nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(row, Mapping) for row in value)


def _table(title: str, value: Any) -> Any:
    """A mapping of records, a list of records, or a mapping of values, as a table."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    if isinstance(value, Mapping) and not any(isinstance(row, Mapping) for row in value.values()):
        table.show_header = False
        rows = [{"": key, " ": item} for key, item in value.items()]
    elif isinstance(value, Mapping):
        rows = [{"": key, **(row if isinstance(row, Mapping) else {" ": row})} for key, row in value.items()]
    else:
        rows = [dict(row) for row in value]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), int | float) for row in rows)
        table.add_column(safe_text(column), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_text(row.get(column, "")) for column in columns))
    return table


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "" if value is None else safe_text(value, UNFOLDED)


def _as_json(value: Any) -> Any:
    """For `json_line`: a dataclass, a model, a mapping or a path as JSON has it."""
    if hasattr(value, "model_dump"):  # pydantic's, which costs too much to import only for this check
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


@contextmanager
def extra(name: str, feature: str, *, first: str | None = None) -> Iterator[None]:
    """Imports inside turn into one clear line when they fail because the optional packages `name` are not installed.

    `first` is a module without which nothing inside should begin.
    """
    if first is not None and importlib.util.find_spec(first) is None:
        raise MissingExtraError(feature, name)
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in EXTRAS[name]:
            raise MissingExtraError(feature, name) from error
        raise


@contextmanager
def model_extras(local: Sequence[bool]) -> Iterator[None]:
    """Imports inside need the extras of local models, of models behind endpoints, or both; `local` has one a model."""
    with ExitStack() as stack:
        if any(local):
            stack.enter_context(extra("train", "running a model here", first="torch"))
        if not all(local):
            stack.enter_context(extra("openai", "a model behind an endpoint"))
        yield


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an option was given."""
    from whet.config import refuse_infinite

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of too many digits, nesting without end
        raise ConfigError(f"{option}: not JSON: {error}. Write it like '{{\"max_length\": 9}}'") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: expected a JSON object like '{{\"max_length\": 9}}', got {text}")
    refuse_infinite(value, option)
    return value


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` to hand to a room. `quiet` shows nothing."""
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty():
        with _bar() as progress:
            yield progress
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from whet.system.console import SafeConsole

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=SafeConsole(stderr=True)) as bar:
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield progress


def _lines() -> Progress:
    """A line for each tenth of a stage."""
    shown: dict[str, int] = {}

    def progress(stage: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if shown.get(stage) != tenth:
            shown[stage] = tenth
            print(f"{stage} {done}/{total}", file=sys.stderr, flush=True)

    return progress
