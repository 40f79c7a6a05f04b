"""Tools: their definitions for the model, how calls are answered, and what is counted."""

import asyncio
import json
from typing import Literal

import pytest
from pydantic import BaseModel

import whet
from whet.envs.tool_schemas import read_docstring, tool_from_function

TASK = [{"question": "2+3", "answer": "5"}]


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Carefully.

    Args:
        a: the first number,
            which comes first
        b (int): the second

    Returns:
        their sum
    """
    return a + b


async def fetch(name: str) -> str:
    """Fetch a page."""
    await asyncio.sleep(0)
    return f"page {name}"


def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


def call(name, arguments, call_id="1"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "name": name, "arguments": text}


def rollout(script, **kwargs):
    env = whet.ToolEnv(tools=[add, fetch, divide], dataset=TASK, **kwargs)
    states = asyncio.run(
        whet.ToolEnv.rollout(env, env.get_dataset()[0], whet.ScriptedClient(script), "m", {}),
    )
    return env, states


def answers(state):
    return [message.content for message in state["completion"] if message.role == "tool"]


def test_a_tools_schema_comes_from_signature_hints_and_docstring():
    tool = tool_from_function(add)
    assert (tool.name, tool.description) == ("add", "Add two numbers.\n\nCarefully.")
    assert tool.parameters == {
        "title": "add_args",
        "type": "object",
        "properties": {
            "a": {"title": "A", "type": "integer", "description": "the first number, which comes first"},
            "b": {"title": "B", "type": "integer", "description": "the second", "default": 2},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }


def test_nested_types_optional_values_and_models_are_described():
    class Point(BaseModel):
        x: float

    def plot(points: list[Point], label: str | None = None, *rest: int, **more: str) -> None: ...

    parameters = tool_from_function(plot).parameters
    assert parameters["properties"]["points"]["items"] == {"$ref": "#/$defs/Point"}
    assert parameters["$defs"]["Point"]["additionalProperties"] is False
    assert parameters["properties"]["label"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "default" not in parameters["properties"]["label"]
    assert parameters["properties"]["rest"]["items"] == {"type": "integer"}


def test_a_function_without_hints_or_docstring_takes_anything():
    def same(x):
        return x

    tool = tool_from_function(same)
    assert tool.description == ""
    assert tool.parameters["properties"] == {"x": {"title": "X"}}


def test_a_parameter_that_json_cannot_express_is_refused():
    class Socket: ...

    def send(socket: Socket) -> None: ...

    with pytest.raises(whet.WhetError, match="tool 'send' has a parameter"):
        tool_from_function(send)


@pytest.mark.parametrize(
    "text",
    [
        "Do.\n\nArgs:\n    x: the x\n    y: the y\n",
        "Do.\n\n:param x: the x\n:param int y: the y\n:returns: nothing\n",
        "Do.\n\nParameters\n----------\nx : int\n    the x\ny : int\n    the y\n\nReturns\n-------\nint\n",
    ],
)
def test_docstrings_are_read_in_three_styles(text):
    assert read_docstring(text) == ("Do.", {"x": "the x", "y": "the y"})


def move(
    steps: int,
    pace: float = 1.0,
    loud: bool = False,
    label: str | None = None,
    way: Literal["up", "down"] = "up",
    over: list[int] | None = None,
    more: dict[str, int] | None = None,
) -> str:
    """Move."""
    return repr((steps, pace, loud, label, way, over, more))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ('{"steps": "1"}', "(1, 1.0, False, None, 'up', None, None)"),
        ('{"steps": 2.0, "pace": 3}', "(2, 3, False, None, 'up', None, None)"),
        ('{"steps": 1, "pace": "0.5", "loud": "True"}', "(1, 0.5, True, None, 'up', None, None)"),
        ('{"steps": 1, "label": 5, "over": "[1, 2]"}', "(1, 1.0, False, '5', 'up', [1, 2], None)"),
        (
            '{"steps": 1, "label": "5", "over": ["1"], "more": {"a": "1"}}',
            "(1, 1.0, False, '5', 'up', [1], {'a': 1})",
        ),
        ('{"steps": 1, "over": "null", "label": "null"}', "(1, 1.0, False, 'null', 'up', None, None)"),
        ('"{\\"steps\\": 4}"', "(4, 1.0, False, None, 'up', None, None)"),
        ('{"steps": "two"}', "'steps' should be an integer, not 'two'"),
        ('{"steps": 1.5}', "'steps' should be an integer, not 1.5"),
        ('{"steps": true}', "'steps' should be an integer, not True"),
        ('{"steps": 1, "way": "left"}', "'way' should be one of [\"up\", \"down\"], not 'left'"),
        ('{"steps": 1, "loud": "maybe"}', "'loud' should be true or false, not 'maybe'"),
    ],
)
def test_arguments_are_of_the_types_in_the_schema(arguments, answer):
    env = whet.ToolEnv(tools=[move], dataset=TASK)
    script = whet.ScriptedClient([{"tool_calls": [call("move", arguments)]}, "done"])
    state = asyncio.run(env.rollout(env.get_dataset()[0], script, "m", {}))
    assert answers(state) == [answer]


@pytest.mark.parametrize("arguments", ["", "null", "{}", '""', '"{}"', '"null"'])
def test_no_arguments_are_an_empty_object(arguments):
    def now() -> str:
        """Tell the time."""
        return "noon"

    env = whet.ToolEnv(tools=[now], dataset=TASK)
    script = whet.ScriptedClient([{"tool_calls": [call("now", arguments)]}, "done"])
    assert answers(asyncio.run(env.rollout(env.get_dataset()[0], script, "m", {}))) == ["noon"]


def test_calls_are_answered_in_order_and_the_rollout_ends_without_one():
    _, state = rollout([{"tool_calls": [call("add", {"a": 2, "b": 3}, "x"), call("fetch", {"name": "n"}, "y")]}, "5"])
    assert answers(state) == ["5", "page n"]
    assert [message.tool_call_id for message in state["completion"][1:3]] == ["x", "y"]
    assert state["stop_condition"] == "no_tools_called"


def test_turns_are_limited():
    _, state = rollout([{"tool_calls": [call("add", {"a": 1})]}] * 3, max_turns=2)
    assert state["stop_condition"] == "max_turns_reached"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (call("divide", {"a": 1, "b": 0}), "division by zero"),
        (call("add", "{broken"), "Expecting property name"),
        (call("add", "[1]"), "should be a JSON object"),
        (call("add", {"c": 1}), "unexpected keyword argument"),
    ],
)
def test_a_failing_call_is_told_to_the_model(made, says):
    _, state = rollout([{"tool_calls": [made]}, "done"])
    assert says in answers(state)[0]
    assert state["error"] is None


def test_the_error_text_is_the_authors():
    _, state = rollout(
        [{"tool_calls": [call("divide", {"a": 1, "b": 0})]}, "done"],
        error_formatter=lambda error: f"failed: {type(error).__name__}",
    )
    assert answers(state) == ["failed: ZeroDivisionError"]


@pytest.mark.parametrize(
    ("made", "stops", "error"),
    [
        (call("divide", {"a": 1, "b": 0}), ZeroDivisionError, whet.ToolCallError),
        (call("add", "{broken"), json.JSONDecodeError, whet.ToolParseError),
        (call("nothing", {}), KeyError, whet.ToolCallError),
    ],
)
def test_a_stop_error_ends_the_rollout(made, stops, error):
    _, state = rollout([{"tool_calls": [made]}], stop_errors=[stops])
    assert type(state["error"]) is error
    assert isinstance(state["error"].__cause__, stops)
    assert state["stop_condition"] == "has_error"


def test_content_parts_stay_as_they_are_and_all_else_becomes_text():
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]

    def look() -> list:
        """Look."""
        return parts

    def count() -> dict:
        """Count."""
        return {"n": 1}

    env = whet.ToolEnv(tools=[look, count], dataset=TASK)
    script = [{"tool_calls": [call("look", {}), call("count", {})]}, "done"]
    state = asyncio.run(env.rollout(env.get_dataset()[0], whet.ScriptedClient(script), "m", {}))
    assert answers(state) == [parts, "{'n': 1}"]


def test_calls_are_counted_in_all_and_by_tool():
    env = whet.ToolEnv(tools=[add, fetch], dataset=TASK)
    script = [{"tool_calls": [call("add", {"a": 1}), call("add", {"a": 2})]}, "done"]
    metrics = env.evaluate_sync(whet.ScriptedClient(script), "m")["outputs"][0]["metrics"]
    assert metrics == {"num_turns": 2.0, "total_tool_calls": 2.0, "add_calls": 2.0, "fetch_calls": 0.0}


def test_tools_come_and_go():
    env = whet.ToolEnv(tools=[add], dataset=TASK)
    env.add_tool(divide)
    env.remove_tool(add)
    assert [tool.name for tool in env.tool_defs] == ["divide"]
    metrics = env.evaluate_sync(whet.ScriptedClient(["done"]), "m")["outputs"][0]["metrics"]
    assert metrics == {"num_turns": 1.0, "total_tool_calls": 0.0, "divide_calls": 0.0}


def test_the_client_is_told_of_the_tools():
    told = []
    env = whet.ToolEnv(tools=[add], dataset=TASK)
    env.evaluate_sync(whet.ScriptedClient(lambda tools: told.append(tools) or "done"), "m")
    assert [tool.name for tool in told[0]] == ["add"]


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"type": "function", "function": {"name": "x"}}, "OpenAI form"),
        ({"name": "x", "parameters": {}}, "no description"),
    ],
)
def test_tool_defs_that_make_no_sense_are_refused(tool, problem):
    with pytest.raises(whet.WhetError, match=problem):
        whet.SingleTurnEnv(dataset=TASK, tool_defs=[tool])


def test_what_is_said_of_a_parameter_stands_beside_its_model_written_out():
    class Point(BaseModel):
        x: int

    def move(to: Point) -> str:
        """Move.

        Args:
            to: where
        """
        return ""

    to = tool_from_function(move)["parameters"]["properties"]["to"]
    assert (to["description"], to["type"], list(to["properties"])) == ("where", "object", ["x"])
    assert "$ref" not in to


def test_an_empty_list_of_a_tool_is_content_without_parts():
    def find() -> list:
        """Find."""
        return []

    env = whet.ToolEnv(tools=[find], dataset=TASK)
    client = whet.ScriptedClient([{"tool_calls": [{"id": "1", "name": "find", "arguments": "{}"}]}, "done"])
    (row,) = env.evaluate_sync(client, "m")["outputs"]
    assert row["completion"][1] == {"role": "tool", "content": [], "tool_call_id": "1"}
