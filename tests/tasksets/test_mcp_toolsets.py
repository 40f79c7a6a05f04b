"""MCP servers in toolsets: real servers, started as processes."""

import asyncio
import sys
from pathlib import Path

import pytest

import whet
from whet.errors import ConfigError
from whet.rollouts.groups import run_group

pytest.importorskip("mcp")

SERVER = str(Path(__file__).parents[1] / "envs/mcp_servers/plain.py")


def server() -> whet.MCPTool:
    return whet.MCPTool(command=sys.executable, args=[SERVER])


def names(state) -> list[str]:
    return [tool["name"] for tool in state["tool_defs"]]


def local() -> str:
    """A tool of its own."""
    return "local"


@pytest.mark.parametrize(("settings", "servers"), [({}, 1), ({"write": True}, 2)], ids=["shared", "one per rollout"])
def test_the_tools_of_a_server_are_offered_and_called(rows, roll, call, settings, servers) -> None:
    toolset = whet.Toolset(tools=[server(), local], show=["pid", "local"], **settings)
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[toolset]))
    states = roll(env, [call("pid"), call("local"), "done"], size=2)
    assert [state["error"] for state in states] == [None, None]
    assert [names(state) for state in states] == [["pid", "local"]] * 2
    answers = [[message["content"] for message in state["completion"] if message["role"] == "tool"] for state in states]
    assert [said for _, said in answers] == ["local", "local"]
    assert len({int(pid) for pid, _ in answers}) == servers


def test_a_server_s_own_error_is_the_tool_s_answer(rows, roll, call) -> None:
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[server()])), [call("fail"), "done"])
    assert (state["error"], "the drawer is locked" in state["completion"][1]["content"]) == (None, True)


def test_a_server_that_is_lost_fails_the_rollout_that_waited_for_it(rows, roll, call) -> None:
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[server()])), [call("die"), "done"])
    assert isinstance(state["error"], whet.InfraError)


def test_a_program_calls_them_too_and_a_config_names_them(rows, roll) -> None:
    async def program(state):
        state["answer"] = await state.get_tools()["add"](a=2, b=3)

    config = {"toolsets": {"plain": {"tools": [{"command": sys.executable, "args": [SERVER]}]}}}
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), config=config), whet.Harness(program=program)), [])
    assert state["answer"] == "5"


def test_a_server_that_does_not_start_ends_the_run_with_the_reason(rows, roll) -> None:
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[whet.MCPTool(command="no-such-program-anywhere")]))
    with pytest.raises(ConfigError, match="no-such-program-anywhere"):
        roll(env, ["x"])


def test_a_name_that_is_taken_is_refused(rows, roll) -> None:
    def pid() -> str:
        """Its number."""
        return ""

    with pytest.raises(ConfigError, match="two tools 'pid'"):
        roll(whet.Env(whet.Taskset(source=rows(), toolsets=[server(), pid])), ["x"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: whet.Toolset(tools=[{"args": ["x"]}]), "no command"),
        (lambda: whet.Toolset(tools=[{"command": "x", "arg": ["x"]}]), "Did you mean 'args'"),
        (
            lambda: whet.Env(whet.Taskset(source=[], toolsets=[whet.Toolset(tools=[server()], scope="group")])),
            "of a group",
        ),
    ],
)
def test_a_server_that_makes_no_sense_is_refused_when_it_is_given(make, said) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert said in str(caught.value)


def test_a_row_brings_no_server(rows, roll) -> None:
    row = {"toolsets": {"own": {"tools": [{"command": sys.executable, "args": [SERVER]}]}}}
    with pytest.raises(ConfigError, match="give servers to taskset or harness"):
        roll(whet.Env(whet.Taskset(source=rows(1, **row))), ["x"])


def test_servers_stay_where_a_metric_is_added(rows, call) -> None:
    taskset = whet.Taskset(source=rows(), toolsets=[server()])
    env = whet.Env(taskset)

    async def pid() -> str:
        (state,) = await run_group(env, [env.get_dataset()[0]], whet.ScriptedClient([call("pid"), "done"]), "m", {})
        assert state["error"] is None
        return state["completion"][1]["content"]

    async def before_and_after() -> tuple[str, str]:
        before = await pid()
        taskset.add_metric(lambda task: 1.0)
        after = await pid()
        await env.close()
        return before, after

    before, after = asyncio.run(before_and_after())
    assert before == after
