"""`whet view`: what is opened, and what is said where there is nothing to open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main


def test_without_a_terminal_it_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view"]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "error: whet view needs a terminal. Use `whet eval list` and `whet eval show PATH` without one.\n"
    )
    assert said.out == ""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "error: nowhere: there is no such file or directory."),
        ("empty", "error: empty: no evaluation and no run in it, nor below it."),
        ("notes.txt", "error: notes.txt: not a file of rollouts; name a results.jsonl"),
        ("", "error: there is neither outputs/evals nor runs here."),
    ],
)
def test_a_path_without_rollouts_is_one_line_and_exit_code_two(
    path: str, words: str, terminals: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes\n")
    terminal = terminals.open(["whet", "view", *([path] if path else [])], cwd=tmp_path, columns=200)
    assert terminal.wait() == 2
    shown = terminal.text().strip()
    assert shown.startswith(words)
    assert "Traceback" not in shown
    assert b"\x1b[?1049h" not in terminal.raw  # the screen was never taken over


def test_asking_for_help_loads_no_textual() -> None:
    check = "import sys; from whet.cli.main import main; main(['view', '--help']); assert 'textual' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)
