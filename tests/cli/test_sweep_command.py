"""`whet train sweep` on the terminal: its table, and mistakes that are found before anything is loaded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from whet.cli.main import main
from whet.cli.sweep import print_sweep
from whet.dashboard.folders import FolderLibrary
from whet.rl.sweep.sweep import SweepResult, TrialResult


def trial(runs: Path, number: int, score: float | None, state: str, note: str = "") -> TrialResult:
    path = runs / f"s-{number}"
    path.mkdir(parents=True)
    (path / "config.toml").write_text(f'name = "s-{number}"\nmodel = "whet/tiny"\n[[env]]\nid = "reverse-text"\n')
    (path / "status.json").write_text('{"state": "finished"}')
    return TrialResult(path, {"learning_rate": 10.0**-number, "lora.rank": 8}, score, 64, 2, state, note)  # type: ignore[arg-type]


def test_the_table_has_what_was_varied_and_the_page_that_compares_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    trials = [
        trial(runs, 2, 0.75, "finished"),
        trial(runs, 1, 0.5, "stopped early"),
        trial(runs, 0, None, "failed", "the judge\x1b[2J is down"),
    ]
    file = io.StringIO()
    result = SweepResult(runs / "s", "finished", trials, "rollouts", 192, 1000)
    print_sweep(result, Console(file=file, width=200, highlight=False))
    lines = file.getvalue().splitlines()
    assert lines[0].split() == ["run", "learning_rate", "lora.rank", "score", "rollouts", "state"]
    assert lines[1].split() == ["s-2", "0.01", "8", "0.750", "64", "finished"]
    assert lines[2].split()[3:] == ["0.500", "64", "stopped", "early"]
    assert "failed: the judge" in lines[3]
    assert "192 rollouts (19% of those of all trials in full)" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    [compare] = [line for line in lines if line.startswith("compare")]
    ids = [part.partition("=")[2] for part in compare.partition("?")[2].split("&")]
    library = FolderLibrary([runs])
    assert [run.name for id in ids if (run := library.look(id)) is not None] == ["s-2", "s-1"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nothing.toml", "nothing.toml: there is no such file"),
        ("run.toml", "there is nothing to vary"),
        ("run.toml --vary seed=1,2 --method best", "'method'"),
        ("run.toml --vary seed=1,2 --environment sums", "no environment 'sums' is evaluated; there are reverse-text"),
        ("run.toml --vary seed=1,2 --resume", "run-sweep is not a sweep"),
        ("sft.toml --vary seed=1,2", "--metric reward needs an [[eval.env]]"),
    ],
)
def test_mistakes_are_one_line(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('batch_size = 8\n[[env]]\nid = "reverse-text"\n')
    Path("sft.toml").write_text('max_steps = 1\n[data]\npath = "rows.jsonl"\n')
    assert main(["train", "sweep", *words.split()]) == 2
    errors = capsys.readouterr().err
    assert why in errors
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) <= 2
    assert not (tmp_path / "runs").exists()
