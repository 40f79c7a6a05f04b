"""Lines too long to be looked at whole: cut, and still JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whet.records.files as lines_module
from whet.records.files import parse_row, shortened

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text('aé😀"\\\n\ud800', max_size=60),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=4),
    max_leaves=60,
)


def kinds(value: Any) -> Any:
    """The shape of a value, texts and lists without their length."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return type(value).__name__


@settings(max_examples=80, deadline=None, derandomize=True)
@given(value=st.dictionaries(st.sampled_from("ab"), VALUES), ascii=st.booleans(), longest=st.integers(8, 64))
def test_what_is_cut_is_json_of_the_same_shape(value: dict[str, Any], ascii: bool, longest: int) -> None:
    line = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "replace")
    assert kinds(json.loads(shortened(line, longest))) == kinds(value)


def test_a_line_whose_texts_and_lists_are_short_stays_as_it_is() -> None:
    line = json.dumps({"a": ["xy" * 10] * 1000, "b": [[1, 2, 3]] * 1000}).encode()
    assert shortened(line, 64) == line


def test_cut_text_ends_with_the_number_of_missing_bytes() -> None:
    (text,) = json.loads(shortened(b'["' + b"\\u00e9" * 100 + b'"]', 63))
    assert text == "é" * 10 + "… [540 bytes more]"
    (text,) = json.loads(shortened(("[" + json.dumps("é" * 100, ensure_ascii=False) + "]").encode(), 64))
    assert text == "é" * 31 + "… [138 bytes more]"


def test_a_cut_list_has_its_first_numbers_and_what_is_no_number() -> None:
    assert json.loads(shortened(json.dumps([*range(100), "end"]).encode(), 20)) == [*range(7), "end"]
    assert json.loads(shortened(json.dumps([-1.5e-7] * 100).encode(), 20)) == [-1.5e-7, -1.5e-7]


def test_a_row_of_many_small_values_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONG", 1000)
    monkeypatch.setattr(lines_module, "TOO_MUCH", 2000)
    with pytest.raises(ValueError, match=r"not read: .* bytes in many small values"):
        parse_row(json.dumps({"a": [{"b": "c"}] * 1000}).encode())
