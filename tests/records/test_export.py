"""Rollouts as Markdown, in files and on the clipboard."""

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
from whet.records.directory import RESULTS
from whet.records.export import LONGEST, markdown, save, save_instead, suggested_name, visible, why_not
from whet.records.store import open_store

ROW: dict[str, Any] = {
    "example_id": 3,
    "prompt": [{"role": "user", "content": "What is 2 + 2?"}],
    "completion": [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I could use a tool.",
            "tool_calls": [json.dumps({"id": "1", "name": "add", "arguments": '{"a": 2}'})],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "assistant", "content": "4"},
    ],
    "reward": 1.0,
    "metrics": {"exact": 1.0},
    "error": None,
}


def test_markdown_has_every_message_in_order() -> None:
    text = markdown(ROW)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Rollout", "## user", "## assistant, reasoning", "## assistant calls add", "## tool add", "## assistant",
    ]  # fmt: skip
    assert "- reward: `1.0`\n- metric exact: `1.0`" in text
    assert "```text\na: 2\n```" in text
    assert text.endswith("\n")


def test_a_text_cannot_leave_its_fence() -> None:
    text = markdown({"prompt": "before\n```\n````\n# not a heading", "completion": None})
    opened = text.index("`````text\n")
    assert text.index("# not a heading") > opened
    assert text.rstrip().endswith("`````")


def test_what_could_steer_a_terminal_is_shown_as_an_escape() -> None:
    hostile = "\x1b]0;title\x07 \u202eright to left \x9b31m\rback"
    call = json.dumps({"name": hostile, "arguments": hostile})
    message = {"role": hostile, "content": hostile, "reasoning_content": hostile, "tool_calls": [call]}
    row = {"completion": [message], "error": {"error_chain_repr": hostile}, "metrics": {hostile: 1}, "answer": hostile}
    text = markdown(row)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b]0;title\\x07 \\u202eright to left \\x9b31m\\rback" in text


def test_names_that_a_model_chose_are_no_marks() -> None:
    name = "x](javascript:1) <b> `y`\n# heading"
    row = {"completion": [{"role": "assistant", "tool_calls": [json.dumps({"name": name, "arguments": "{}"})]}]}
    lines = markdown(row).splitlines()
    assert not any(line.startswith("# heading") for line in lines)
    assert "## assistant calls ``x](javascript:1) <b> `y`\\n# heading``" in lines


@pytest.mark.parametrize("row", [{}, {"prompt": 3, "completion": [None, 1, {}], "metrics": [], "error": "x"}])
def test_rows_of_other_shapes_are_exported_as_far_as_they_go(row: dict[str, Any]) -> None:
    assert markdown(row).endswith("\n")


def test_lines_and_tabs_stay_where_a_text_has_several_lines() -> None:
    assert visible("a\tb\r\nc\u2028", lines=True) == "a\tb\nc\\u2028"
    assert visible("a\tb\nc") == "a\\tb\\nc"


Fixture = Callable[..., Any]


@pytest.fixture
def run(evaluation: Fixture, rollout: Fixture) -> Path:
    path: Path = evaluation([rollout(0, 1.0, "one"), rollout(1, 0.0, "two")])
    with (path / RESULTS).open("a") as file:
        file.write("no row\n")
    return path


def test_lines_are_exported_as_they_stand_in_the_file(run: Path, tmp_path: Path) -> None:
    with open_store(run) as store:
        assert save(store, [1, 0, 2], tmp_path / "x.jsonl") == (2, 1)
    lines = (run / RESULTS).read_text().splitlines()
    assert (tmp_path / "x.jsonl").read_text().splitlines() == [lines[1], lines[0]]


def test_markdown_has_every_rollout(run: Path, tmp_path: Path) -> None:
    with open_store(run) as store:
        assert save(store, [0, 1], tmp_path / "x.md") == (2, 0)
    assert re.findall(r"# Rollout|one|two", (tmp_path / "x.md").read_text()) == ["# Rollout", "one", "# Rollout", "two"]


def test_a_file_that_exists_is_never_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("mine")
    with open_store(run) as store, pytest.raises(RunError, match="exists already; give another name"):
        save(store, [0], tmp_path / "x.md")
    assert (tmp_path / "x.md").read_text() == "mine"


def test_a_file_of_another_kind_is_refused(run: Path, tmp_path: Path) -> None:
    with open_store(run) as store, pytest.raises(RunError, match=r"ends in .md .* or in .jsonl"):
        save(store, [0], tmp_path / "x.csv")


def test_an_export_that_is_stopped_or_fails_leaves_nothing(run: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with open_store(run) as store:
        assert save(store, [0, 1], tmp_path / "x.md", stopped=lambda: True) == (0, 0)
        with pytest.raises(RunError, match="cannot be written"):
            save(store, [0], tmp_path / "nowhere" / "x.md")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_suggested_name_is_good_for_every_file_system(evaluation: Fixture, rollout: Fixture) -> None:
    path = evaluation([rollout(0, 1.0)], name="who's: it?")
    with open_store(path) as store:
        assert suggested_name(store, [0]) == "who-s-it-rollout-1.md"
        assert suggested_name(store, [0, 1]) == "who-s-it-rollouts.jsonl"


def test_text_too_long_for_the_clipboard_goes_to_a_private_file() -> None:
    assert why_not("short", {"TERM": "xterm-256color"}) is None
    assert why_not("short", {"TERM": "linux"}) == "this terminal has no clipboard for programs"
    assert why_not("x" * LONGEST, {"TERM": "xterm"}) == "too long for a terminal's clipboard"
    path = save_instead("text \ud800")
    try:
        assert path.read_text() == "text \\ud800"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        path.unlink()


def test_y_copies_to_the_clipboard_and_x_writes_a_file(run: Path, terminals: Any, tmp_path: Path) -> None:
    terminal = terminals.open(["whet", "view", run], cwd=tmp_path, columns=100, rows=30)
    terminal.wait_for("3 rollouts")
    terminal.send("y")
    terminal.wait_for("copied")
    sent = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", terminal.raw)
    assert sent is not None
    assert "question 0" in base64.b64decode(sent[1]).decode()
    terminal.send("x")
    terminal.wait_for("Write all 3 rollouts listed")
    terminal.wait_for("one-rollouts.jsonl")
    terminal.send("\r")
    terminal.wait_for("left out", 20)
    rows = [json.loads(line) for line in (tmp_path / "one-rollouts.jsonl").read_text().splitlines()]
    assert [row["example_id"] for row in rows] == [0, 1]
    terminal.send("q")
    assert terminal.wait() == 0
