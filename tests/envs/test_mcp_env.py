"""MCPEnv against real servers, over stdio and over HTTP: tools, results, options. Faults are in test_mcp_faults.py."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import whet
from whet.envs.mcp.content import MAX_IMAGE_BYTES
from whet.envs.mcp.transport import free_port
from whet.envs.mcp_env import MCPServerConfig, MCPToolError

SERVERS = Path(__file__).parent / "mcp_servers"
TASKS = [{"question": f"task {i}", "answer": str(i)} for i in range(4)]
PLAIN = {"name": "plain", "command": sys.executable, "args": [SERVERS / "plain.py"]}
MODERN = {"name": "modern", "command": sys.executable, "args": [SERVERS / "modern.py"]}
MODERN_HTTP = {
    "name": "modern",
    "command": sys.executable,
    "args": [SERVERS / "modern.py", "{port}"],
    "url": "http://127.0.0.1:{port}/mcp",
}
MODERN_2025 = {**MODERN_HTTP, "args": [*MODERN_HTTP["args"], "2025"]}
EVERY_KIND = pytest.mark.parametrize(
    "server",
    [PLAIN, MODERN, MODERN_2025, MODERN_HTTP],
    ids=["stdio-2025", "stdio-2026", "http-2025", "http-2026"],
)


def call(name, **arguments):
    return {"tool_calls": [{"id": name, "name": name, "arguments": json.dumps(arguments)}]}


def env_with(*servers, **kwargs):
    return whet.MCPEnv(mcp_servers=list(servers), dataset=TASKS, **kwargs)


def run(env, *calls, rollouts=1):
    """Result rows of the first task, whose model makes these calls; the environment is closed."""

    async def go():
        outputs = await evaluate(env, *calls, rollouts=rollouts)
        await env.close()
        return outputs

    return asyncio.run(go())


async def evaluate(env, *calls, rollouts=1, **kwargs):
    results = await env.evaluate(
        whet.ScriptedClient([*calls, "done"]), "m", num_examples=1, rollouts_per_example=rollouts, **kwargs
    )
    return results["outputs"]


def answers(output):
    assert output["error"] is None
    return [message["content"] for message in output["completion"] if message["role"] == "tool"]


def answer_to(*calls, server=PLAIN, **kwargs):
    return answers(run(env_with(server, **kwargs), *calls)[0])[-1]


@EVERY_KIND
def test_the_tools_of_a_server_are_told_to_the_model_called_and_counted(server):
    output = run(env_with(server), call("add", a=2, b=3), call("add", a=1, b=1))[0]
    assert answers(output) == ["5", "2"]
    assert output["metrics"]["add_calls"] == output["metrics"]["total_tool_calls"] == 2
    assert output["metrics"]["pid_calls"] == 0
    assert output["stop_condition"] == "no_tools_called"
    assert "add" in [tool["name"] for tool in output["tool_defs"]]


def test_the_model_is_told_what_the_server_says_of_a_tool():
    tools = {tool["name"]: tool for tool in run(env_with(MODERN), call("pid"))[0]["tool_defs"]}
    assert tools["add"]["description"] == "Add two numbers."
    assert tools["add"]["parameters"]["properties"]["a"] == {"title": "A", "type": "integer"}
    assert tools["add"]["parameters"]["required"] == ["a", "b"]


def test_all_rollouts_of_a_run_share_one_server():
    outputs = run(env_with(PLAIN), call("count"), rollouts=5)
    assert sorted(answers(output)[0] for output in outputs) == ["1", "2", "3", "4", "5"]


def test_calls_of_several_rollouts_are_in_flight_at_once():
    def script(prompt, state):
        if len(state["trajectory"]) == 1:
            return "done"
        return call("let_go") if state["example_id"] == 3 else call("wait")

    async def go():
        env = env_with(MODERN)
        results = await env.evaluate(whet.ScriptedClient(script), "m")
        await env.close()
        return results["outputs"]

    assert [answers(output)[0] for output in asyncio.run(go())] == ["released", "released", "released", "done"]


def test_one_environment_serves_several_event_loops_one_after_another():
    env = env_with(PLAIN)
    client = whet.ScriptedClient([call("add", a=1, b=1), "done"])
    for _ in range(2):
        assert answers(env.evaluate_sync(client, "m", num_examples=1)["outputs"][0]) == ["2"]
    asyncio.run(env.close())


def test_two_event_loops_at_once_have_a_server_each():
    env = env_with(PLAIN)

    async def go():
        here = await evaluate(env, call("count"))
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(evaluate(env, call("count"))))
        again = await evaluate(env, call("count"))
        await env.close()
        return [answers(outputs[0])[0] for outputs in (here, elsewhere, again)]

    assert asyncio.run(go()) == ["1", "1", "2"]


def test_an_environment_can_be_made_on_any_thread_and_starts_nothing_there():
    made = []
    thread = threading.Thread(target=lambda: made.append(env_with({"name": "x", "command": "no-such-program"})))
    thread.start()
    thread.join()
    assert made[0].tool_defs == []


def test_connect_brings_the_tools_before_any_rollout():
    async def go():
        env = env_with(PLAIN)
        await env.connect()
        names = [tool["name"] for tool in env.tool_defs]
        await env.close()
        return names

    assert "add" in asyncio.run(go())


def test_python_functions_stand_beside_servers():
    def shout(word: str) -> str:
        """Shout."""
        return word.upper()

    output = run(env_with(PLAIN, tools=[shout]), call("shout", word="hi"), call("add", a=1, b=2))[0]
    assert answers(output) == ["HI", "3"]
    assert [tool["name"] for tool in output["tool_defs"]][:2] == ["shout", "pid"]
    assert output["metrics"]["shout_calls"] == output["metrics"]["add_calls"] == 1


def test_a_server_per_rollout_shares_nothing():
    outputs = run(env_with({**PLAIN, "per_rollout": True}), call("count"), call("count"), rollouts=3)
    assert [answers(output) for output in outputs] == [["1", "2"]] * 3


def test_tool_names_may_carry_a_prefix_and_then_two_servers_have_the_same_tools():
    servers = [{**PLAIN, "name": f"{n}", "tool_prefix": f"{n}_"} for n in ("one", "two")]
    assert answers(run(env_with(*servers), call("one_count"), call("two_count"))[0]) == ["1", "1"]


@pytest.mark.parametrize("tools", [None, [lambda: None]], ids=["two-servers", "a-function"])
def test_two_tools_of_one_name_are_refused(tools):
    def add() -> None: ...

    servers = [PLAIN] if tools else [PLAIN, {**PLAIN, "name": "other"}]
    with pytest.raises(whet.WhetError, match=r"both have a tool 'add|both have a tool 'pid'.*tool_prefix"):
        run(env_with(*servers, tools=[add] if tools else None), "done")


@pytest.mark.parametrize("server", [PLAIN, MODERN, MODERN_HTTP], ids=["stdio-2025", "stdio-2026", "http-2026"])
def test_tools_that_a_server_adds_are_known_to_rollouts_that_begin_later(server):
    async def go():
        env = env_with(server)
        first = (await evaluate(env, call("grow")))[0]
        while "grown" not in env.tool_map:
            await asyncio.sleep(0)
        second = (await evaluate(env, call("grown")))[0]
        await env.close()
        return first, second

    first, second = asyncio.run(go())
    assert "grown" not in [tool["name"] for tool in first["tool_defs"]]
    assert "grown" in [tool["name"] for tool in second["tool_defs"]]
    assert answers(second)[0]


def test_an_image_reaches_the_model_as_an_image():
    (part,) = answer_to(call("image"))
    assert part["type"] == "image_url"
    assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


def test_what_cannot_be_shown_is_named():
    assert answer_to(call("mixed")).splitlines() == [
        "first",
        "[sound, audio/wav, 3 bytes: not shown]",
        "inside",
        "[file:///b.zip, application/zip, 3 bytes: not shown]",
        "c: file:///c (third)",
    ]


def test_structured_content_alone_is_shown_as_json():
    assert answer_to(call("structured")) == '{"total": 3}'


def test_a_result_without_content_says_so():
    assert answer_to(call("nothing")) == "No result returned from tool"


def test_a_huge_result_is_cut_and_says_by_how_much():
    assert (
        answer_to(call("big", size=5_000_000), max_result_chars=10) == "xxxxxxxxxx\n[4999990 more characters left out]"
    )


def test_an_image_too_large_is_left_out():
    from mcp.types import CallToolResult, ImageContent, TextContent

    from whet.envs.mcp.content import content_of

    huge = ImageContent(type="image", data="A" * (MAX_IMAGE_BYTES + 1), mime_type="image/png")
    content = content_of(CallToolResult(content=[TextContent(type="text", text="see"), huge]), 100)
    assert content.startswith("see\n[image of 2")
    assert content.endswith("too large, left out]")


def test_a_tools_own_error_is_the_models_to_read():
    assert answer_to(call("fail")) == "the drawer is locked"


def test_a_refused_call_is_the_models_to_read():
    assert answer_to(call("refuse")) == "Error: no such method"


def test_a_tool_that_there_is_not_is_answered_with_those_there_are():
    assert answer_to(call("delete")).startswith("Error: there is no tool 'delete'; there are: pid, ")


def test_errors_can_be_formatted():
    assert answer_to(call("fail"), error_formatter=lambda error: f"<{error}>") == "<the drawer is locked>"


def test_a_tools_error_can_end_the_rollout():
    output = run(env_with(PLAIN, stop_errors=[MCPToolError]), call("fail"))[0]
    assert output["error"]["error"] == "ToolCallError"
    assert "the drawer is locked" in output["error"]["error_chain_repr"]
    assert output["stop_condition"] == "has_error"


def test_a_server_sees_nothing_of_the_environment_but_what_it_is_given(monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hush")
    monkeypatch.setenv("WANTED", "yes")
    seen = json.loads(answer_to(call("environment"), server={**PLAIN, "env": {"MODE": "x"}, "pass_env": ["WANTED"]}))
    assert seen["MODE"] == "x"
    assert seen["WANTED"] == "yes"
    assert "PATH" in seen
    assert "HOST_SECRET" not in seen


def test_a_server_is_started_in_its_cwd(tmp_path):
    (tmp_path / "server.py").write_text((SERVERS / "plain.py").read_text())
    server = {"name": "plain", "command": sys.executable, "args": ["server.py"], "cwd": tmp_path}
    assert answer_to(call("add", a=1, b=1), server=server) == "2"


def test_headers_are_sent_to_an_http_server():
    server = {**MODERN_HTTP, "headers": {"Authorization": "Bearer 123456"}}
    assert answer_to(call("authorization"), server=server) == "Bearer 123456"


def test_a_server_that_runs_already_is_reached_by_its_url(free_tcp_port):
    url = f"http://127.0.0.1:{free_tcp_port}/mcp"

    async def go():
        outer = env_with({**MODERN_HTTP, "args": [SERVERS / "modern.py", str(free_tcp_port)], "url": url})
        await outer.connect()
        inner = env_with({"name": "there", "url": url})
        outputs = await evaluate(inner, call("add", a=2, b=2))
        await inner.close()
        again = await evaluate(outer, call("add", a=3, b=3))
        await outer.close()
        return answers(outputs[0]) + answers(again[0])

    assert asyncio.run(go()) == ["4", "6"]


def test_a_row_may_bring_its_own_description_of_the_tools():
    own = [{"name": "add", "description": "adds", "parameters": {}}]
    env = whet.MCPEnv(mcp_servers=[PLAIN], dataset=[{"question": "?", "answer": "", "info": {"tool_defs": own}}])
    output = run(env, call("add", a=1, b=1))[0]
    assert output["tool_defs"] == own
    assert answers(output) == ["2"]


def test_in_a_group_of_environments_the_tools_come_along():
    group = whet.EnvGroup([env_with(PLAIN), whet.SingleTurnEnv(dataset=TASKS)], env_names=["mcp", "plain"])
    output = run(group, call("add", a=1, b=1))[0]
    assert answers(output) == ["2"]
    assert output["metrics"]["add_calls"] == 1


def test_a_server_config_object_is_as_good_as_a_dict():
    assert answer_to(call("add", a=1, b=1), server=MCPServerConfig(**PLAIN)) == "2"


def test_an_environment_written_for_verifiers_runs_as_it_is(tmp_path):
    (tmp_path / "old_env.py").write_text(
        "import sys\n"
        "import verifiers as vf\n"
        "from verifiers.envs.experimental.mcp_env import MCPEnv, MCPServerConfig, MCPToolWrapper\n"
        "assert vf.MCPEnv is MCPEnv\n"
        "def load_environment(server):\n"
        "    config = MCPServerConfig(name='plain', command=sys.executable, args=[server], env=None, description='x')\n"
        "    return MCPEnv(mcp_servers=[config], dataset=[{'question': '1+1', 'answer': '2'}], rubric=vf.Rubric())\n"
    )
    code = (
        "import sys, whet\n"
        "env = whet.load_environment(sys.argv[1], server=sys.argv[2])\n"
        "call = {'id': '1', 'name': 'add', 'arguments': '{\"a\": 1, \"b\": 1}'}\n"
        "row = env.evaluate_sync(whet.ScriptedClient([{'tool_calls': [call]}, 'done']), 'm')['outputs'][0]\n"
        "print(row['completion'][1]['content'])\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "old_env.py", SERVERS / "plain.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ([{"name": "x", "comand": "y"}], r"mcp_servers\[0\]: unknown key 'comand'. Did you mean 'command'\?"),
        ([{"command": "y"}], "'name' is missing"),
        ([{"name": "x"}], "give a command to start .* or a url"),
        ([{"name": "x", "url": "localhost:80"}], "should begin with http"),
        ([{"name": "x", "url": "http://h/mcp", "args": ["a"]}], "'args' is for a server that is started"),
        ([{"name": "x", "command": "y", "headers": {"a": "b"}}], "'headers' are for"),
        ([{"name": "x", "url": "http://h:{port}/mcp"}], "there is no command"),
        ([{"name": "x", "command": "y", "args": ["{port}"]}], "there is no url"),
        ([{"name": "x", "command": "y"}, {"name": "x", "command": "z"}], "two servers of mcp_servers are called 'x'"),
        ({"x": {"command": "y"}}, "should be a list of dicts"),
        (["python server.py"], r"mcp_servers\[0\] should be a dict"),
    ],
)
def test_servers_that_make_no_sense_are_refused(servers, problem):
    with pytest.raises(whet.WhetError, match=problem):
        whet.MCPEnv(mcp_servers=servers, dataset=TASKS)


@pytest.mark.parametrize("name", ["timeout_per_call_seconds", "start_timeout_seconds", "max_result_chars"])
def test_a_limit_that_makes_no_sense_is_refused(name):
    with pytest.raises(whet.WhetError, match=f"{name} of MCPEnv must be more than 0"):
        env_with(PLAIN, **{name: 0})


def test_a_misspelt_argument_suggests_the_right_one():
    with pytest.raises(whet.WhetError, match="Did you mean 'mcp_servers'"):
        whet.MCPEnv(mcp_server=[], dataset=TASKS)


def test_a_missing_package_is_one_line():
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "import whet\n"
        "try: whet.MCPEnv(mcp_servers=[], dataset=[{'question': 'q'}])\n"
        "except whet.WhetError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "MCPEnv needs the 'mcp' extra. Install it with: pip install 'whet[mcp]'\n"


def test_a_package_too_old_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.30.0")
    with pytest.raises(whet.WhetError, match=r"needs mcp 2 or newer, and 1.30.0 is installed. Run: pip install"):
        env_with(PLAIN)


def test_constructing_loads_no_mcp():
    code = (
        "import whet, sys; whet.MCPEnv(mcp_servers=[], dataset=[{'question': 'q'}]); print('mcp.client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_servers_that_start_at_once_have_ports_of_their_own() -> None:
    with contextlib.ExitStack() as starting:
        ports = [starting.enter_context(free_port()) for _ in range(400)]
    assert len(set(ports)) == 400
