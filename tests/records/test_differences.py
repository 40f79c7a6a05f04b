"""Differences of configs by path."""

from __future__ import annotations

from whet.records.differences import difference_lines, differences


def test_each_value_that_differs_is_named_by_its_path() -> None:
    before = {"env": [{"id": "a", "weight": 1.0}], "lora": {"rank": 8}, "stop": ["x"], "seed": 0}
    now = {"env": [{"id": "a", "weight": 3}, {"id": "b"}], "stop": ("x",), "seed": 0}
    assert differences(before, now, "absent") == {
        "env.0.weight": (1.0, 3),
        "env.1.id": ("absent", "b"),
        "lora.rank": (8, "absent"),
    }
    assert difference_lines(before, now)[0] == "env.0.weight: was 1.0, is 3"


def test_a_missing_value_equals_none_unless_it_is_called_otherwise() -> None:
    assert difference_lines({"dtype": None}, {}) == []
    assert differences({"dtype": None}, {}, "absent") == {"dtype": (None, "absent")}
