"""What the commands print: one line of JSON, or lines and tables for a person."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from whet.cli.output import extra, print_json, print_result, progress_bar
from whet.errors import MissingExtraError


@dataclass
class Record:
    where: Path
    score: float


class Model(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Record(Path("runs/a"), 0.5), {"where": "runs/a", "score": 0.5}),
        (Model(name="ä"), {"name": "ä"}),
        ({"nested": {"model": Model(name="x")}}, {"nested": {"model": {"name": "x"}}}),
    ],
)
def test_a_result_is_one_line_of_json(result: object, expected: object, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(result)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == expected


def test_a_number_that_is_none_is_null_and_not_a_word_that_parsers_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reward": float("nan"), "values": (1.0, float("inf"))})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"reward": None, "values": [1.0, None]}


def test_what_json_cannot_hold_is_refused_rather_than_written_wrong() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        print_json({"what": object()})


def test_a_person_reads_plain_values_as_lines_and_records_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    result = {
        "architecture": "Qwen3ForCausalLM",
        "parameters": 852096,
        "card": [{"environment": "arithmetic", "reward": 0.25}, {"environment": "calculator", "reward": 0.5}],
        "tokenizer": {"size": 512},
        "empty": {},
    }
    print_result(result, as_json=False)
    out = capsys.readouterr().out
    assert "architecture  Qwen3ForCausalLM\n" in out
    assert "parameters    852,096\n" in out
    assert [line.split() for line in out.splitlines() if line.startswith(("environment", "arith", "calc"))] == [
        ["environment", "reward"],
        ["arithmetic", "0.25"],
        ["calculator", "0.5"],
    ]


def test_lines_of_a_table_that_is_piped_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    description = " ".join(["words"] * 40)
    print_result({"environments": [{"id": "a", "description": description}]}, as_json=False)
    assert description in capsys.readouterr().out


def test_a_missing_optional_package_names_its_extra() -> None:
    with (
        pytest.raises(MissingExtraError, match=r"training needs the 'train' extra.*pip install 'whet\[train\]'"),
        extra("train", "training"),
    ):
        raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")


def test_a_module_that_is_missing_for_another_reason_stays_an_error_of_its_own() -> None:
    with pytest.raises(ModuleNotFoundError, match="whatever"), extra("train", "training"):
        raise ModuleNotFoundError("No module named 'whatever'", name="whatever")


def test_without_a_terminal_progress_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        for done in range(101):
            progress("warm-up", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "warm-up 100/100"


def test_quiet_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(quiet=True) as progress:
        progress("warm-up", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_text_of_others_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"model": "abc:train:0", "summary": "[red]x[/red] [/nothing] :smile:"}]
    print_result({"name": "a:train:0 [/b]", "models": rows}, as_json=False)
    out = capsys.readouterr().out
    for text in (rows[0]["model"], rows[0]["summary"], "a:train:0 [/b]"):
        assert text in out
