"""Tools with hidden arguments: what the model sees, what the tool gets, and whose fault an error is."""

import asyncio
import json
import threading

import pytest

import whet

TASK = [{"question": "q", "answer": "a"}]


def read(path: str, workspace: dict, lock: threading.Lock) -> str:
    """Read a file.

    Args:
        path: which one
        workspace: the files there are
    """
    return workspace[path]


class Files(whet.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(dataset=TASK, **kwargs)
        self.seen = []
        self.add_tool(read, args_to_skip=["workspace", "lock"])

    async def setup_state(self, state):
        state["workspace"] = {"a.txt": f"hello {len(self.seen)}"}

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        self.seen.append((tool_name, dict(tool_args), messages[-1].role))
        return {**tool_args, "workspace": state["workspace"], "lock": None}


def call(name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"tool_calls": [{"id": "1", "name": name, "arguments": text}]}


def rollout(env, script):
    return asyncio.run(env.rollout(env.get_dataset()[0], whet.ScriptedClient(script), "m", {}))


def answers(state):
    return [message.content for message in state["completion"] if message.role == "tool"]


def test_hidden_arguments_are_not_in_the_schema_whatever_their_type():
    (tool,) = Files().tool_defs
    assert tool.parameters == {
        "title": "read_args",
        "type": "object",
        "properties": {"path": {"title": "Path", "type": "string", "description": "which one"}},
        "required": ["path"],
        "additionalProperties": False,
    }


def test_the_environment_fills_them_in_from_the_state():
    env = Files()
    state = rollout(env, [call("read", {"path": "a.txt"}), "done"])
    assert answers(state) == ["hello 0"]
    assert env.seen == [("read", {"path": "a.txt"}, "assistant")]
    assert (state["stop_condition"], state["error"]) == ("no_tools_called", None)


def test_what_the_model_writes_for_a_hidden_argument_is_dropped():
    env = Files()
    rollout(env, [call("read", {"path": "a.txt", "workspace": {"a.txt": "forged"}}), "done"])
    assert env.seen == [("read", {"path": "a.txt"}, "assistant")]


def test_a_failing_tool_and_malformed_arguments_are_the_models_to_deal_with():
    env = Files()
    state = rollout(env, [call("read", {"path": "b.txt"}), call("read", "{"), call("nope", {}), "done"])
    missing, malformed, unknown = answers(state)
    assert missing == "'b.txt'"
    assert malformed.startswith("Expecting")
    assert "there is no tool 'nope'; there are: read" in unknown
    assert [name for name, _, _ in env.seen] == ["read", "nope"]


def test_stop_errors_end_the_rollout():
    state = rollout(Files(stop_errors=[KeyError]), [call("read", {"path": "b.txt"})])
    assert isinstance(state["error"], whet.ToolCallError)


def test_an_error_in_update_tool_args_is_the_environments():
    class Broken(Files):
        def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            raise ValueError("no workspace")

    state = rollout(Broken(), [call("read", {"path": "a.txt"})])
    assert isinstance(state["error"], whet.EnvError)
    assert "no workspace" in str(state["error"])


def test_update_tool_args_may_be_async():
    class Async(Files):
        async def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            await asyncio.sleep(0)
            return super().update_tool_args(tool_name, tool_args, messages, state)

    assert answers(rollout(Async(), [call("read", {"path": "a.txt"}), "done"])) == ["hello 0"]


def test_a_hidden_argument_that_the_tool_has_not_is_refused():
    with pytest.raises(whet.WhetError, match=r"'read' has no argument 'workspce'\. Did you mean 'workspace'"):
        Files().add_tool(read, args_to_skip=["workspce"])


def test_a_removed_tool_is_gone_from_schema_and_metrics():
    env = Files()
    env.remove_tool(read)
    assert (env.tool_defs, env.skipped_args, env.tool_monitor_rubric.tool_names) == ([], {}, [])


def test_update_tool_args_has_to_be_written():
    with pytest.raises(TypeError, match="update_tool_args"):
        whet.StatefulToolEnv(dataset=TASK)
