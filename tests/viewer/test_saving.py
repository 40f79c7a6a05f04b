"""Copying and exporting rollouts."""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunError
from whet.rollouts.results import RESULTS
from whet.viewer.clipboard import LONGEST, save_instead, why_not
from whet.viewer.saving import save, suggested_name
from whet.viewer.store import open_store

Fixture = Callable[..., Any]


@pytest.fixture
def run(evaluation: Fixture, rollout: Fixture) -> Path:
    path: Path = evaluation([rollout(0, 1.0, "one"), rollout(1, 0.0, "two")])
    with (path / RESULTS).open("a") as file:
        file.write("no row\n")
    return path


def test_lines_are_exported_as_they_stand_in_the_file(run: Path, tmp_path: Path) -> None:
    with open_store(run) as store:
        assert save(store, [1, 0, 2], "jsonl", tmp_path / "x.jsonl") == (2, 1)
    lines = (run / RESULTS).read_text().splitlines()
    assert (tmp_path / "x.jsonl").read_text().splitlines() == [lines[1], lines[0]]


def test_markdown_has_every_rollout(run: Path, tmp_path: Path) -> None:
    with open_store(run) as store:
        assert save(store, [0, 1], "md", tmp_path / "x.md") == (2, 0)
    assert re.findall(r"# Rollout|one|two", (tmp_path / "x.md").read_text()) == ["# Rollout", "one", "# Rollout", "two"]


def test_a_file_that_exists_is_never_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("mine")
    with open_store(run) as store, pytest.raises(RunError, match="exists already; give another name"):
        save(store, [0], "md", tmp_path / "x.md")
    assert (tmp_path / "x.md").read_text() == "mine"


def test_an_export_that_is_stopped_or_fails_leaves_nothing(run: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with open_store(run) as store:
        assert save(store, [0, 1], "md", tmp_path / "x.md", stopped=lambda: True) == (0, 0)
        with pytest.raises(RunError, match="cannot be written"):
            save(store, [0], "md", tmp_path / "nowhere" / "x.md")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_suggested_name_is_good_for_every_file_system(evaluation: Fixture, rollout: Fixture) -> None:
    path = evaluation([rollout(0, 1.0)], name="who's: it?")
    with open_store(path) as store:
        assert suggested_name(store, 0, "md") == "who-s-it-rollout-1.md"
        assert suggested_name(store, None, "jsonl") == "who-s-it-rollouts.jsonl"


def test_a_text_that_no_clipboard_takes_goes_to_a_file_that_only_its_owner_reads() -> None:
    assert why_not("short", {"TERM": "xterm-256color"}) is None
    assert why_not("short", {"TERM": "linux"}) == "this terminal has no clipboard for programs"
    assert why_not("x" * LONGEST, {"TERM": "xterm"}) == "too long for a terminal's clipboard"
    path = save_instead("text \ud800")
    try:
        assert path.read_text() == "text \\ud800"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        path.unlink()


def test_y_sends_the_rollout_to_the_terminal_s_clipboard_and_x_writes_a_file(
    run: Path, terminals: Any, tmp_path: Path
) -> None:
    terminal = terminals.open(["whet", "view", run], cwd=tmp_path, columns=100, rows=30)
    terminal.wait_for("3 rollouts")
    terminal.send("y")
    terminal.wait_for("copied")
    sent = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", terminal.raw)
    assert sent is not None
    assert "question 0" in base64.b64decode(sent[1]).decode()
    terminal.send("x")
    terminal.wait_for("all 3 listed, as they stand in the file")
    terminal.send("4")
    terminal.wait_for("one-rollouts.jsonl")
    terminal.send("\r")
    terminal.wait_for("left out", 20)
    rows = [json.loads(line) for line in (tmp_path / "one-rollouts.jsonl").read_text().splitlines()]
    assert [row["example_id"] for row in rows] == [0, 1]
    terminal.send("q")
    assert terminal.wait() == 0
