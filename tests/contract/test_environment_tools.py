"""Contract of the environment library: tools, and several environments as one.

1. `ToolEnv(tools, max_turns=10, error_formatter, stop_errors)`.
2. A tool's schema comes from its signature, type hints and docstring.
3. Tools may be plain or async; what they return is sent as text, and content parts as they are.
4. The rollout ends with `no_tools_called` when the model answers without calling one.
5. `total_tool_calls` and `{tool}_calls` are metrics.
6. A failing tool and malformed arguments are the model's to deal with: `error_formatter` makes the text.
7. Errors listed in `stop_errors` end the rollout, as ToolCallError or ToolParseError.
8. Arguments that are not JSON, however malformed, stay to the letter in the rows.
9. A tool that leaves by SystemExit, and arguments too deep to be read, are reported to the model as well.
10. `add_tool` and `remove_tool` change what the model is offered, what is called and what is counted.
11. `StatefulToolEnv.add_tool(tool, args_to_skip)` hides arguments from the schema.
12. `update_tool_args(tool_name, tool_args, messages, state)` fills them in, plain or async.
13. `SandboxEnv` and `PythonEnv` take docker_image, start_command, cpu_cores, memory_gb, disk_size_gb, timeout_minutes,
    timeout_per_command_seconds, environment_vars and labels; `PythonEnv` also pip_install_packages. Their tools are
    `bash` and `python`.
14. `MCPEnv` takes `mcp_servers`: name, command, args and env, or name, url and headers.
15. `EnvGroup` puts datasets one after another, with new example_ids and `info["env_id"]`.
16. A rollout of a group is its environment's: prompt, tools, turns, rubric.
17. Rows of a group have the union of all metrics, zero where a metric is another environment's.
18. Setters reach every environment of a group.
"""

import inspect
import json

import pytest

import whet

ROW = {"question": "q", "answer": "a"}


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def fetch(name: str) -> list:
    """Fetch."""
    return [{"type": "text", "text": name}]


def fail(how: str) -> str:
    """Fail."""
    if how == "exit":
        raise SystemExit(2)
    raise {"value": ValueError, "key": KeyError}[how](how)


def call(name, arguments, call_id="1"):
    return {
        "id": call_id,
        "name": name,
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }


def run(*calls, tools=(add, fetch, fail), **kwargs):
    env = whet.ToolEnv(tools=list(tools), dataset=[ROW], **kwargs)
    (output,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": list(calls)}, "done"]), "m")["outputs"]
    return output


def answers(output):
    return [message["content"] for message in output["completion"] or [] if message["role"] == "tool"]


def test_1_the_arguments_of_tool_env():
    parameters = inspect.signature(whet.ToolEnv.__init__).parameters
    assert list(parameters)[1:5] == ["tools", "max_turns", "error_formatter", "stop_errors"]
    assert (parameters["max_turns"].default, parameters["error_formatter"].default(ValueError("x"))) == (10, "x")


def test_2_the_schema_of_a_tool():
    (tool,) = whet.ToolEnv(tools=[add], dataset=[ROW]).tool_defs
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    properties = tool.parameters["properties"]
    assert {name: (schema["type"], schema["description"]) for name, schema in properties.items()} == {
        "a": ("integer", "the first"),
        "b": ("integer", "the second"),
    }
    assert tool.parameters["required"] == ["a", "b"]


def test_3_tools_may_be_async_and_return_parts():
    output = run(call("add", {"a": 1}), call("fetch", {"name": "x"}, "2"))
    assert answers(output) == ["3", [{"type": "text", "text": "x"}]]
    assert [message["tool_call_id"] for message in output["completion"][1:3]] == ["1", "2"]


def test_4_no_tools_called():
    output = run(call("add", {"a": 1}))
    assert (output["stop_condition"], output["completion"][-1]["content"]) == ("no_tools_called", "done")


def test_5_calls_are_counted():
    metrics = run(call("add", {"a": 1}), call("add", {"a": 1}), call("nothing", {}))["metrics"]
    assert (metrics["total_tool_calls"], metrics["add_calls"], metrics["fetch_calls"]) == (3.0, 2.0, 0.0)


def test_6_failures_are_told_to_the_model():
    output = run(call("fail", {"how": "value"}), call("add", "{torn"), error_formatter=lambda error: f"oh: {error}")
    assert answers(output)[0] == "oh: value"
    assert answers(output)[1].startswith("oh: Expecting property name")
    assert output["error"] is None


@pytest.mark.parametrize(
    ("made", "stops", "error"),
    [
        (call("fail", {"how": "value"}), [ValueError], "ToolCallError"),
        (call("fail", {"how": "key"}), [ValueError], None),
        (call("add", "{torn"), [json.JSONDecodeError], "ToolParseError"),
        (call("add", "[1]"), [ValueError], "ToolParseError"),
    ],
)
def test_7_stop_errors(made, stops, error):
    output = run(made, stop_errors=stops)
    assert (output["error"] or {}).get("error") == error


@pytest.mark.parametrize("arguments", ["", "{", "nil", '{"a": 1,}', "{'a': 1}", '{"a": "\ud800"', "\x00"])
def test_8_malformed_arguments_stay_to_the_letter(arguments):
    output = run(call("add", arguments))
    (kept,) = output["completion"][0]["tool_calls"]
    assert json.loads(kept)["arguments"] == arguments
    assert (output["error"], len(answers(output)), output["stop_condition"]) == (None, 1, "no_tools_called")


def test_9_whatever_a_call_does_the_model_is_told():
    output = run(call("fail", {"how": "exit"}), call("add", "[" * 100_000), call("add", {"a": 1}))
    assert answers(output)[0] == "SystemExit: 2"
    assert "recursion" in answers(output)[1]
    assert answers(output)[2] == "3"


def test_10_tools_come_and_go():
    env = whet.ToolEnv(tools=[fetch], dataset=[ROW])
    env.add_tool(add)
    env.remove_tool(fetch)
    assert [tool.name for tool in env.tool_defs] == ["add"]
    (output,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call("add", {"a": 1})]}, "done"]), "m")[
        "outputs"
    ]
    assert answers(output) == ["3"]
    assert "fetch_calls" not in output["metrics"]
    assert output["metrics"]["add_calls"] == 1.0


class Bank(whet.StatefulToolEnv):
    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "account": f"{state['answer']} {messages[-1].role} {tool_name}"}


class LaterBank(whet.StatefulToolEnv):
    async def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "account": "later"}


def spend(amount: int, account: object) -> str:
    """Spend."""
    return f"{amount} from {account}"


def test_11_hidden_arguments():
    env = Bank(dataset=[ROW])
    env.add_tool(spend, args_to_skip=["account"])
    assert list(env.tool_defs[0].parameters["properties"]) == env.tool_defs[0].parameters["required"] == ["amount"]


@pytest.mark.parametrize(("cls", "account"), [(Bank, "a assistant spend"), (LaterBank, "later")])
def test_12_hidden_arguments_are_filled_in(cls, account):
    env = cls(dataset=[ROW])
    env.add_tool(spend, args_to_skip=["account"])
    script = [{"tool_calls": [call("spend", {"amount": 5})]}, "done"]
    (output,) = env.evaluate_sync(whet.ScriptedClient(script), "m")["outputs"]
    assert answers(output) == [f"5 from {account}"]


@pytest.mark.parametrize("cls", [whet.SandboxEnv, whet.PythonEnv])
def test_13_the_arguments_of_sandboxes(cls):
    taken = {
        name for base in cls.__mro__ if "__init__" in vars(base) for name in inspect.signature(base.__init__).parameters
    }
    assert taken >= {
        "docker_image",
        "start_command",
        "cpu_cores",
        "memory_gb",
        "disk_size_gb",
        "timeout_minutes",
        "timeout_per_command_seconds",
        "environment_vars",
        "labels",
    }
    assert ("pip_install_packages" in taken) is (cls is whet.PythonEnv)

    assert [tool.name for tool in cls(dataset=[ROW]).tool_defs][-1] == ("bash" if cls is whet.SandboxEnv else "python")


def test_14_the_arguments_of_mcp_env():
    servers = [
        {"name": "files", "command": "no-such-command", "args": ["-x"], "env": {"LEVEL": "1"}},
        {"name": "web", "url": "http://127.0.0.1:1/mcp", "headers": {"X-Level": "1"}},
    ]
    assert whet.MCPEnv(mcp_servers=servers, dataset=[ROW]).get_dataset()  # connects to nothing yet
    with pytest.raises(whet.WhetError, match="comand"):
        whet.MCPEnv(mcp_servers=[{"name": "files", "comand": "x"}], dataset=[ROW])


def group():
    first = whet.ToolEnv(
        tools=[add],
        dataset=[{"question": "f0", "answer": "0"}, {"question": "f1", "answer": "1"}],
        rubric=whet.Rubric([lambda: 0.5]),
        system_prompt="use tools",
    )
    second = whet.SingleTurnEnv(
        dataset=[{"question": "s0", "info": {"n": 1}, "example_id": 77}], rubric=whet.Rubric([lambda: 0.25])
    )
    return whet.EnvGroup([first, second], env_names=["first", "second"])


def test_15_the_datasets_of_a_group():
    rows = group().get_dataset()
    assert [(row["example_id"], row["question"], row["info"]["env_id"]) for row in rows] == [
        (0, "f0", "first"),
        (1, "f1", "first"),
        (2, "s0", "second"),
    ]
    assert rows[2]["info"] == {"n": 1, "env_id": "second"}


def test_16_a_rollout_of_a_group_is_its_environments():
    told = []

    def answer(prompt, tools, turn):
        told.append((prompt[0]["content"], [tool["name"] for tool in tools or []]))
        return {"tool_calls": [call("add", {"a": 1})]} if tools and turn == 0 else "x"

    outputs = group().evaluate_sync(whet.ScriptedClient(answer), "m")["outputs"]
    assert sorted(told) == [("s0", [])] + [("use tools", ["add"])] * 4
    assert [len(output["completion"]) for output in outputs] == [3, 3, 1]
    assert [output["reward"] for output in outputs] == [0.5, 0.5, 0.25]


def test_17_the_metrics_of_a_group():
    outputs = group().evaluate_sync(whet.ScriptedClient(lambda: "x"), "m")["outputs"]
    assert {tuple(sorted(output["metrics"])) for output in outputs} == {tuple(sorted(outputs[0]["metrics"]))}
    assert outputs[2]["metrics"]["add_calls"] == 0.0


def test_18_setters_reach_every_environment():
    one = group()
    outer = whet.EnvGroup([one, whet.SingleTurnEnv(dataset=[ROW])])
    outer.set_max_seq_len(5)
    outer.set_score_rollouts(False)
    outer.set_concurrency(3)
    outer.set_max_total_completion_tokens(9)
    outer.set_kwargs(timeout_seconds=4.0, max_turns=2)
    for env in (*one.envs, outer.envs[1]):
        assert (env.max_seq_len, env.score_rollouts, env.concurrency) == (5, False, 3)
        assert (env.max_total_completion_tokens, env.timeout_seconds, env.max_turns) == (9, 4.0, 2)
