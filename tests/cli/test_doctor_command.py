"""`whet doctor` as a person and as a program call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.rl.config import RunConfig
from whet.rl.run import run_training

ReadPage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers are cut off long before their end."""
    directory = tmp_path_factory.mktemp("sick")
    config = RunConfig.model_validate(
        {
            "name": "sick",
            "max_steps": 5,
            "batch_size": 8,
            "rollouts_per_example": 4,
            "runs_directory": directory,
            "sampling": {"max_tokens": 2},
            "env": [{"id": "calculator"}],
            "eval": {"before": False, "after": False},
            "deployment": {"threads": 1},
        }
    )
    run_training(config, json_output=True)
    return directory / "sick"


def test_findings_are_printed_with_evidence_and_change_and_the_exit_code_is_1(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(sick)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("finished, step 5")
    assert any(
        line.startswith("error    the reward of calculator stays near zero: answers are cut off") for line in lines
    )
    assert any("reached max_tokens = 2" in line for line in lines)
    assert any(line.strip().startswith("> sampling.max_tokens = 8  (now 2)") for line in lines)


def test_as_json_it_is_one_line_for_a_program(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(sick), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["what"], found["state"], found["step"]) == ("run", "finished", 5)
    change = found["findings"][0]["changes"][0]
    assert (change["key"], change["value"], change["now"]) == ("sampling.max_tokens", 8, 2)


def test_the_report_of_the_run_has_the_finding(sick: Path, read_page: ReadPage) -> None:
    page = read_page(sick / "report.html")
    page.check()
    assert "What the doctor found" in page.text
    assert "sampling.max_tokens = 8" in page.text


def test_a_name_that_is_no_run_is_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(tmp_path / "absent")]) == 2
    assert "there is no run" in capsys.readouterr().err


def test_of_an_evaluation_it_says_whether_training_would_teach_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["-n", "4", "-r", "2", "-t", "2", "-o", str(tmp_path), "--json"]
    assert main(["eval", "run", "calculator", *options]) == 0
    results = Path(json.loads(capsys.readouterr().out)["results"])
    assert main(["doctor", str(results)]) == 1
    printed = capsys.readouterr().out
    assert "calculator is too hard for whet/tiny" in printed
    assert "mean reward 0.000: too hard" in printed
    assert "> Few rollouts earn anything" in printed
