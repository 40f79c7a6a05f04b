"""Evaluations for other tools: a table, a Parquet file, a Hugging Face dataset, conversations to imitate."""

from __future__ import annotations

import builtins
import csv
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, MissingExtraError, RunError
from whet.evals.stored.export import export

Row = Callable[..., dict[str, Any]]
Stored = Callable[..., Path]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(path: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


def read_dataset(path: Path) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets")
    return datasets.load_from_disk(str(path)).to_list()


READERS = {"parquet": read_parquet, "hf": read_dataset}


@pytest.fixture
def rows(row: Row) -> list[dict[str, Any]]:
    call = json.dumps({"id": "1", "name": "add", "arguments": "{}"})
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "three"}]},
        {"role": "assistant", "content": "It is 3.", "refusal": "none"},
    ]
    first = row(0, 1.0, 0, info={"level": 2}, steps=[1, 2], unforeseen=True)
    return [first, row(0, 0.25, 1, completion=said), row(1, "ModelError", 0)]


@pytest.mark.parametrize("format", ["csv", "parquet", "hf"])
def test_every_rollout_is_a_row_beside_the_results(stored: Stored, rows: list[dict[str, Any]], format: str) -> None:
    directory = stored(rows, state_columns=["steps"])
    exported = export(directory / "results.jsonl", format)
    assert exported.rollouts == 3
    assert exported.path.parent == directory
    found = read_csv(exported.path) if format == "csv" else READERS[format](exported.path)
    assert [str(one["example_id"]) for one in found] == ["0", "0", "1"]
    assert found[0]["question"] == "What is 0 + 2?"
    assert found[1]["response"] == "It is 3."
    assert found[2]["error"] == "ModelError"
    assert not list(directory.glob(".*"))  # nothing is left aside


@pytest.mark.parametrize("format", ["parquet", "hf"])
def test_columns_have_types_and_nothing_is_lost(stored: Stored, rows: list[dict[str, Any]], format: str) -> None:
    found = READERS[format](export(stored(rows, state_columns=["steps"]), format).path)
    first, second, failed = found
    assert first["reward"] == 1.0
    assert first["metric_exact_match"] == 1.0
    assert first["is_completed"] is True
    assert (first["seconds"], first["input_tokens"], first["cost"]) == (1.5, 20.0, None)
    assert json.loads(first["info"]) == {"level": 2}
    assert json.loads(first["steps"]) == [1, 2]
    assert json.loads(first["other"]) == {"unforeseen": True}
    assert failed["reward"] is None
    assert failed["error_message"] == "ModelError('no answer')"
    thinking, tool, last = second["completion"]
    assert thinking["reasoning_content"] == "hm"
    assert json.loads(thinking["tool_calls"][0])["name"] == "add"
    assert json.loads(tool["content"]) == [{"type": "text", "text": "three"}]
    assert json.loads(last["extra"]) == {"refusal": "none"}
    assert last["tool_calls"] is None


def test_a_table_has_messages_as_json_and_empty_cells_for_what_is_absent(
    stored: Stored, rows: list[dict[str, Any]]
) -> None:
    first, _, failed = read_csv(export(stored(rows), "csv").path)
    assert json.loads(first["prompt"])[1]["content"] == "What is 0 + 2?"
    assert (first["reward"], first["is_truncated"], first["cost"]) == ("1.0", "false", "")
    assert (failed["reward"], failed["metric_exact_match"]) == ("", "")


@pytest.mark.parametrize(
    ("said", "cell"),
    [
        ('=HYPERLINK("http://evil")', '\'=HYPERLINK("http://evil")'),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\t=1"),
        ("＝1+1", "'＝1+1"),  # noqa: RUF001
        ("-5", "-5"),
        ("+3.5e2", "+3.5e2"),
        ('a";=1,\n=2', 'a";=1,\n=2'),
        ("half \ud800 of one, and \0", "half \ufffd of one, and \ufffd"),
    ],
)
def test_no_cell_runs_as_a_formula(stored: Stored, row: Row, said: str, cell: str) -> None:
    (found,) = read_csv(export(stored([row(0, 1.0, said=said)]), "csv").path)
    assert found["response"] == cell


def test_a_metric_s_name_does_not_run_as_a_formula_either(stored: Stored, row: Row) -> None:
    path = export(stored([row("=1", 1.0, metrics={"=1": 1.0}, **{"=2": 1})], state_columns=["=2"]), "csv").path
    header, line = path.read_text().splitlines()
    assert '"metric_=1"' in header
    assert '"\'=2"' in header
    assert line.startswith('"\'=1"')


def test_ids_of_mixed_types_become_text_and_metrics_need_not_be_in_every_row(stored: Stored, row: Row) -> None:
    mixed = [row(1, 1.0, metrics={"m": 1}), row("b", 1.0, metrics={"m": None}), row(2**70, 1.0, metrics={"n": True})]
    found = read_parquet(export(stored(mixed), "parquet").path)
    assert [one["example_id"] for one in found] == ["1", "b", str(2**70)]
    assert [one["metric_m"] for one in found] == [1.0, None, None]
    assert [one["metric_n"] for one in found] == [None, None, 1.0]


@pytest.mark.parametrize("format", ["csv", "parquet", "hf"])
def test_a_target_that_is_there_is_replaced_only_when_asked_for(
    stored: Stored, rows: list[dict[str, Any]], tmp_path: Path, format: str
) -> None:
    directory, target = stored(rows), tmp_path / "new" / "target"
    assert export(directory, format, target).path == target
    with pytest.raises(RunError, match="is there already"):
        export(directory, format, target)
    assert export(directory, format, target, overwrite=True).rollouts == 3


def test_a_folder_that_is_no_dataset_is_never_replaced(stored: Stored, row: Row, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    directory = stored([row(0, 1.0)])
    with pytest.raises(RunError, match="is no dataset, so it is not replaced"):
        export(directory, "hf", home, overwrite=True)
    with pytest.raises(RunError, match=r"is a directory. Name the file"):
        export(directory, "csv", home, overwrite=True)
    assert (home / "thesis.tex").exists()


def test_what_cannot_be_read_leaves_no_half_of_an_export(stored: Stored, row: Row) -> None:
    directory = stored([row(0, 1.0)])
    with (directory / "results.jsonl").open("a") as file:
        file.write("nothing\n")
    with pytest.raises(RunError, match="line 2: not JSON"):
        export(directory, "csv")
    assert {path.name for path in directory.iterdir()} == {"results.jsonl", "metadata.json"}


def test_an_unknown_format_is_refused_with_those_there_are(stored: Stored, row: Row) -> None:
    with pytest.raises(ConfigError, match="'xlsx' is not known; it is one of csv, parquet, hf"):
        export(stored([row(0, 1.0)]), "xlsx")


@pytest.mark.parametrize("format", ["parquet", "hf"])
def test_a_missing_library_is_named_with_its_extra(
    stored: Stored, row: Row, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("pyarrow", "datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    directory = stored([row(0, 1.0)])
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'whet\[datasets\]'"):
        export(directory, format)


def test_a_large_evaluation_takes_little_memory(stored: Stored, row: Row) -> None:
    directory = stored(row(task, 1.0, 0, "word " * 1000) for task in range(1000))
    assert (directory / "results.jsonl").stat().st_size > 5e6
    tracemalloc.start()
    export(directory, "csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_the_best_rollouts_of_each_task_are_conversations_to_imitate(
    stored: Stored, rows: list[dict[str, Any]], row: Row
) -> None:
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    rows[1] = {**rows[1], "reward": 1.5, "tool_defs": [tool]}
    directory = stored([*rows, row(2, 0.5)])
    exported = export(directory, "sft", best_per_example=1)
    assert exported.path == directory / "sft.jsonl"
    assert exported.left_out == {
        "left out: the rollout failed": 1,
        "left out: not among the best 1 of their task": 1,
    }
    first, second = [json.loads(line) for line in exported.path.read_text().splitlines()]
    assert (first["reward"], second["reward"], second["example_id"]) == (1.5, 0.5, 2)
    assert first["tools"] == [{"type": "function", "function": tool}]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert first["completion"][0]["tool_calls"] == [call]
    assert export(directory, "sft", min_reward=1.0, overwrite=True).rollouts == 2
    with pytest.raises(RunError, match="no rollout is good enough"):
        export(directory, "sft", min_reward=2.0, overwrite=True)
    for format, options in (("sft", {}), ("csv", {"min_reward": 1.0})):
        with pytest.raises(ConfigError, match="one is needed"):
            export(directory, format, overwrite=True, **options)
