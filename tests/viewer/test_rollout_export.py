"""One rollout as text that can be pasted anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whet.viewer.export import export, visible

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
    text = export(ROW, "markdown")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Rollout", "## user", "## assistant, reasoning", "## assistant calls add", "## tool", "## assistant",
    ]  # fmt: skip
    assert "- reward: `1.0`\n- metric exact: `1.0`" in text
    assert '```text\n{"a": 2}\n```' in text
    assert text.endswith("\n")


def test_plain_text_has_every_message_in_order() -> None:
    text = export(ROW, "text")
    assert text.startswith("example_id: 3\nreward: 1.0\nmetric exact: 1.0\n\n--- user ---\nWhat is 2 + 2?\n\n")
    assert '--- assistant calls add ---\n{"a": 2}\n' in text


def test_json_is_the_row_on_a_line_that_any_reader_takes() -> None:
    text = export({**ROW, "reward": float("nan"), "note": "\x1b\ud800"}, "json")
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text) == {**ROW, "reward": None, "note": "\x1b\ud800"}


def test_a_text_cannot_leave_its_fence() -> None:
    text = export({"prompt": "before\n```\n````\n# not a heading", "completion": None}, "markdown")
    opened = text.index("`````text\n")
    assert text.index("# not a heading") > opened
    assert text.rstrip().endswith("`````")


@pytest.mark.parametrize("format", ["markdown", "text"])
def test_what_could_steer_a_terminal_is_shown_as_an_escape(format: Any) -> None:
    hostile = "\x1b]0;title\x07 \u202eright to left \x9b31m\rback"
    call = json.dumps({"name": hostile, "arguments": hostile})
    message = {"role": hostile, "content": hostile, "reasoning_content": hostile, "tool_calls": [call]}
    row = {"completion": [message], "error": {"error_chain_repr": hostile}, "metrics": {hostile: 1}, "answer": hostile}
    text = export(row, format)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b]0;title\\x07 \\u202eright to left \\x9b31m\\rback" in text


@pytest.mark.parametrize("format", ["markdown", "text"])
def test_names_that_a_model_chose_are_no_marks(format: Any) -> None:
    name = "x](javascript:1) <b> `y`\n# heading"
    row = {"completion": [{"role": "assistant", "tool_calls": [json.dumps({"name": name, "arguments": "{}"})]}]}
    lines = export(row, format).splitlines()
    assert not any(line.startswith("# heading") for line in lines)
    if format == "markdown":
        assert "## assistant calls ``x](javascript:1) <b> `y`\\n# heading``" in lines


@pytest.mark.parametrize("format", ["markdown", "text", "json"])
@pytest.mark.parametrize("row", [{}, {"prompt": 3, "completion": [None, 1, {}], "metrics": [], "error": "x"}])
def test_rows_of_other_shapes_are_exported_as_far_as_they_go(format: Any, row: dict[str, Any]) -> None:
    assert export(row, format).endswith("\n")


def test_lines_and_tabs_stay_where_a_text_has_several_lines() -> None:
    assert visible("a\tb\r\nc\u2028", lines=True) == "a\tb\nc\\u2028"
    assert visible("a\tb\nc") == "a\\tb\\nc"
