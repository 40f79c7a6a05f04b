"""A conversation in pieces, and rows that no program of ours wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.records.entries import RowToolCall
from whet.records.heads import Head
from whet.records.rollout_text import arguments_text, pieces
from whet.viewer.rollout import CUT, KEPT, conversation, detail_lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
FIELDS = ["prompt", "completion", "metrics", "error", "error_chain", "timing", "token_usage", "info", "tool_defs", "x"]
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"]), JSON
)
HEAD = Head(
    number=0, part="step_000003", line=1, size=10, environment="calculator", example_id=3, group=1, place=0, reward=0.5,
    advantage=None, error=None, stop_condition=None, truncated=False, input_tokens=None, output_tokens=None, turns=1,
    duration=None, step=3, question="", problem=None,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(MESSAGE, max_size=3)), st.integers(4, 60))
def test_a_row_of_any_shape_is_shown(row: dict[str, Any], width: int) -> None:
    shown = conversation(pieces(row), width, set(), "a") + detail_lines(row, HEAD, 0.5, width)
    assert [line for line in shown if not line.plain.isprintable()] == []


def test_arguments_are_one_a_line_and_long_text_under_its_name() -> None:
    assert (
        arguments_text(RowToolCall("f", json.dumps({"code": "a\nb", "n": [1, 2]})))
        == "code:\n    a\n    b\nn: [\n  1,\n  2\n]"
    )
    assert arguments_text(RowToolCall("f", "{not json")) == "{not json"


def test_a_piece_that_is_too_long_is_cut_and_counted() -> None:
    row = {"completion": [{"role": "assistant", "content": "\n".join(["x"] * (CUT + 1))}]}
    lines = conversation(pieces(row), 40, set())
    assert len(lines) == 1 + KEPT + 1
    assert lines[-1].plain.strip() == f"show all {2 * CUT + 1} characters"
    assert len(conversation(pieces(row), 40, {"completion.0"})) == 1 + CUT + 1


def test_what_was_searched_for_is_neither_folded_nor_cut() -> None:
    message = {"role": "assistant", "content": "x\n" * 100 + "needle", "reasoning_content": "a needle too"}
    lines = conversation(pieces({"completion": [message]}), 40, set(), "NEEDLE")
    assert sum(span.style == "match" for line in lines for span in line.spans) == 2


@pytest.mark.parametrize("completion", ["just text", [{"role": "assistant", "content": "just text"}]])
def test_a_completion_that_is_text_is_the_model_s(completion: Any) -> None:
    assert [(piece.title, piece.text) for piece in pieces({"completion": completion})] == [("assistant", "just text")]
