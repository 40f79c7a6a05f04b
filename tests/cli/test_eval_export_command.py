"""`whet eval report` and `whet eval export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.cli.main import main


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    directory = tmp_path / "evaluation"
    directory.mkdir()
    rows = [{"example_id": task, "reward": task / 2} for task in range(3)]
    (directory / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "metadata.json").write_text(json.dumps({"env_id": "arithmetic", "model": "m"}))
    return directory


def test_the_report_is_written_and_named(evaluation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "report", str(evaluation)]) == 0
    assert (evaluation / "report.html").is_file()
    assert str(evaluation / "report.html") in capsys.readouterr().out


def test_an_export_says_how_many_rollouts_went_where(evaluation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = evaluation / "rollouts.csv"
    assert main(["eval", "export", str(evaluation), "--to", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rollouts": 3, "saved": str(target)}
    assert len(target.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "xlsx"], "it is one of csv, parquet, hf"),
        (["--to", "."], "is there already"),
    ],
)
def test_a_mistake_is_one_line(
    evaluation: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["eval", "export", str(evaluation), *arguments]) == 2
    assert said in capsys.readouterr().err
