"""What MCPEnv does when a server will not start, dies, hangs or floods, and when this process ends.

Nothing is left behind and no call waits for ever. Servers are real processes; `held` has ended when its holders have.
"""

import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import whet
from whet.envs.mcp import connection, links, process
from whet.envs.mcp.connection import Connection
from whet.envs.mcp.links import pause_seconds

pytestmark = pytest.mark.parts

SERVERS = Path(__file__).parent / "mcp_servers"
PLAIN = {"name": "plain", "command": sys.executable, "args": [SERVERS / "plain.py"]}
MODERN = {"name": "modern", "command": sys.executable, "args": [SERVERS / "modern.py"]}
HTTP = {
    "name": "modern",
    "command": sys.executable,
    "args": [SERVERS / "modern.py", "{port}", "2025"],
    "url": "http://127.0.0.1:{port}/mcp",
}


def call(name, **arguments):
    return {"tool_calls": [{"id": name, "name": name, "arguments": json.dumps(arguments)}]}


def env_with(server, tasks=1, **kwargs):
    dataset = [{"question": str(i), "answer": ""} for i in range(tasks)]
    return whet.MCPEnv(mcp_servers=[server], dataset=dataset, **{"start_timeout_seconds": 120, **kwargs})


def plain(*args, **keys):
    return {**PLAIN, "args": [*PLAIN["args"], *args], **keys}


async def rows(env, script, **kwargs):
    return (await env.evaluate(whet.ScriptedClient(script), "m", **kwargs))["outputs"]


def run(env, script, **kwargs):
    async def go():
        outputs = await rows(env, script, **kwargs)
        await env.close()
        return outputs

    return asyncio.run(go())


def tool_texts(output):
    assert output["error"] is None, output["error"]
    return [message["content"] for message in output["completion"] if message["role"] == "tool"]


def error_of(output):
    assert output["error"]["error"] == "InfraError"
    return output["error"]["error_chain_repr"]


def why_not(server, **kwargs):
    with pytest.raises(whet.WhetError) as told:
        run(env_with(server, **kwargs), ["done"])
    return str(told.value)


class Held:
    """A pipe that servers hold open; `ended` returns once none of them lives any more."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.env = {"FIFO": str(path)}

    def ended(self):
        os.set_blocking(self.reader, True)
        return os.read(self.reader, 1) == b""


@pytest.fixture
def held(tmp_path):
    held = Held(tmp_path / "held")
    yield held
    os.close(held.reader)


@pytest.fixture(autouse=True)
def _quick_ends(monkeypatch):
    """Servers that will not end by themselves are not waited for as long as usual."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)


# Starting


def test_a_server_that_exits_at_once_says_how_and_what_it_said_last():
    told = why_not(plain("exit", "3"))
    assert "plain.py exit 3) did not start: it exited with code 3." in told
    assert told.endswith("Its stderr ends with: plain server, at your service\nno such cupboard")


def test_a_server_that_never_answers_is_given_up_and_ended(held):
    told = why_not(plain("hang", env=held.env), start_timeout_seconds=0.5)
    assert "it did not answer within 0.5 seconds. Does it speak MCP over stdio?" in told
    assert held.ended()


def test_a_server_that_prints_only_garbage_is_told_where_it_belongs(held):
    told = why_not(plain("endless", env=held.env), start_timeout_seconds=10.0)
    assert "It printed to stdout, which is for MCP messages alone: yyy" in told
    assert held.ended()


def test_a_program_that_there_is_not_is_named():
    assert "there is no program 'no-such-server'. Install it" in why_not({"name": "x", "command": "no-such-server"})


def test_a_program_that_is_no_mcp_server_is_given_up():
    assert "it exited with code 0" in why_not({"name": "x", "command": "true"})


def test_a_cwd_that_there_is_not_is_named():
    assert "its cwd /no/such/place is no directory" in why_not(plain(cwd="/no/such/place"))


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert "is to be given SOME_KEY (pass_env), not set here" in why_not(plain(pass_env=["SOME_KEY"]))


def test_nobody_at_a_url_says_so():
    assert "nothing answers there; start the server" in why_not({"name": "x", "url": "http://127.0.0.1:9/mcp"})


@pytest.mark.parametrize(("status", "hint"), [(404, "is the path right"), (401, "in headers"), (503, "HTTP 503")])
def test_an_http_server_that_refuses_says_why(status, hint):
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever).start()
        told = why_not({"name": "x", "url": f"http://127.0.0.1:{server.server_port}/mcp"})
        server.shutdown()
    assert "could not be reached" in told
    assert hint in told


def test_what_a_url_carries_besides_the_place_is_left_out_of_messages():
    told = why_not({"name": "x", "url": "http://me:password@127.0.0.1:9/mcp?key=secret"})
    assert "(http://127.0.0.1:9/mcp) could not be reached" in told


def test_secrets_are_left_out_of_messages(monkeypatch):
    monkeypatch.setenv("PASSED", "second-secret")
    script = "import os, sys; sys.exit(os.environ['API_KEY'] + ' ' + os.environ['PASSED'])"
    server = {"name": "x", "command": sys.executable, "args": ["-c", script]}
    told = why_not({**server, "env": {"API_KEY": "first-secret"}, "pass_env": ["PASSED"]})
    assert told.endswith("Its stderr ends with: *** ***")


# Dying and hanging


def test_a_server_killed_during_a_call_fails_that_rollout_alone_and_is_started_again():
    def script(prompt, state):
        if len(state["trajectory"]) == 1:
            return "done"
        return call("die") if state["example_id"] == 1 else call("add", a=1, b=1)

    before, during, after = run(env_with(PLAIN, tasks=3), script, max_concurrent=1)
    assert tool_texts(before) == tool_texts(after) == ["2"]
    told = error_of(during)
    assert "MCP server 'plain'" in told
    assert "was lost during 'die': it was killed by SIGKILL." in told
    assert "out of paper" in told


def test_a_rollout_whose_server_died_is_attempted_again_where_retries_are_allowed(monkeypatch):
    monkeypatch.setattr("whet.rollouts.groups.LONGEST_PAUSE_S", 0.0)
    deaths = iter([call("die")])
    script = lambda state: "done" if state["trajectory"] else next(deaths, call("add", a=2, b=2))  # noqa: E731
    (output,) = run(env_with(PLAIN), script, max_retries=1)
    assert tool_texts(output) == ["4"]


def test_a_server_killed_between_two_calls_is_started_again_unnoticed(monkeypatch):
    made = []
    monkeypatch.setattr(links, "Connection", lambda *parts: made.append(Connection(*parts)) or made[-1])

    async def script(prompt, state):
        if len(state["trajectory"]) == 0:
            return call("pid")
        if len(state["trajectory"]) == 1:
            os.kill(int(prompt[-1]["content"]), signal.SIGKILL)
            while made[-1].is_open:
                await asyncio.sleep(0)
            return call("count")
        return "done"

    env = env_with(PLAIN)
    assert tool_texts(run(env, script)[0])[1] == "1"


def test_everyone_who_waits_for_a_server_that_dies_is_told():
    script = lambda state: call("die") if state["example_id"] == 2 else call("wait")  # noqa: E731
    outputs = run(env_with(MODERN, tasks=3), script)
    assert all("it exited with code 7" in error_of(output) for output in outputs)


def test_an_http_server_that_dies_fails_the_rollout_and_is_started_again():
    script = lambda state: "done" if state["trajectory"] else next(calls)  # noqa: E731
    calls = iter([call("die"), call("add", a=1, b=1)])
    died, after = run(env_with(HTTP, tasks=2), script, max_concurrent=1)
    assert "it exited with code 7" in error_of(died)
    assert tool_texts(after) == ["2"]


def test_an_http_server_restarted_by_another_process_is_reached_again(free_tcp_port):
    url = f"http://127.0.0.1:{free_tcp_port}/mcp"
    first = {**HTTP, "args": [HTTP["args"][0], str(free_tcp_port), "2025"], "url": url}

    async def go():
        outer = env_with(first)
        await outer.connect()
        inner = env_with({"name": "there", "url": url})
        script = [call("add", a=1, b=1), "done"]
        before = await rows(inner, script)
        await outer.close()
        outer = env_with(first)
        await outer.connect()
        during = await rows(inner, script)
        after = await rows(inner, script)
        await inner.close()
        await outer.close()
        return before[0], during[0], after[0]

    before, during, after = asyncio.run(go())
    assert tool_texts(before) == tool_texts(after) == ["2"]
    assert "was lost during 'add'" in error_of(during)


def test_a_server_that_hangs_in_a_call_is_ended_and_started_again(monkeypatch, held):
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.1)
    calls = iter([call("hang"), call("add", a=1, b=1)])
    script = lambda state: "done" if state["trajectory"] else next(calls)  # noqa: E731
    env = env_with(plain(env=held.env), tasks=2, timeout_per_call_seconds=5)
    hung, after = run(env, script, max_concurrent=1)
    assert "was lost during 'hang': it no longer answers (nothing in 5 seconds" in error_of(hung)
    assert tool_texts(after) == ["2"]
    assert held.ended()


def test_a_call_that_takes_too_long_is_told_to_the_model_while_the_server_answers():
    (output,) = run(env_with(MODERN, timeout_per_call_seconds=5), [call("wait"), call("add", a=1, b=1), "done"])
    assert tool_texts(output) == ["Error: 'wait' took longer than 5 seconds and was given up", "2"]


def test_a_message_without_end_ends_the_server(monkeypatch, held):
    monkeypatch.setattr(process, "MAX_MESSAGE_BYTES", 1 << 20)
    (output,) = run(env_with(plain(env=held.env)), [call("flood")])
    assert "it wrote a message of more than 1 MiB" in error_of(output)
    assert held.ended()


def test_garbage_between_messages_is_ignored_with_one_warning(caplog):
    (output,) = run(env_with(plain("noise")), [call("noise"), call("noise"), "done"])
    assert tool_texts(output) == ["found", "found"]
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("whet")]
    assert [warning.rpartition(": ")[2] for warning in warnings] == ["Welcome!"]


def test_a_server_that_was_there_and_will_not_start_again_fails_rollouts_and_not_the_run(tmp_path):
    program = tmp_path / "server.py"
    program.write_text((SERVERS / "plain.py").read_text())

    def script(state):
        program.write_text("import sys; sys.exit('gone for good')")
        return call("die")

    env = env_with({"name": "x", "command": sys.executable, "args": [program]}, tasks=2)
    _, second = run(env, script, max_concurrent=1)
    assert "did not start: it exited with code 1. Its stderr ends with: gone for good" in error_of(second)


def test_a_program_that_is_gone_when_it_should_start_again_fails_rollouts_and_not_the_run(tmp_path):
    program = tmp_path / "server"
    program.write_text(f"#!{sys.executable}\n" + (SERVERS / "plain.py").read_text())
    program.chmod(0o755)

    def script(state):
        program.unlink(missing_ok=True)
        return call("die")

    _, second = run(env_with({"name": "x", "command": program}, tasks=2), script, max_concurrent=1)
    assert "there is no program" in error_of(second)


def test_pauses_before_a_server_is_started_again_double_up_to_half_a_minute():
    assert [pause_seconds(losses) for losses in range(5)] == [0, 0.25, 0.5, 1, 2]
    assert pause_seconds(50) == 30


def test_a_rollout_that_times_out_in_a_call_leaves_the_server_to_the_others():
    async def go():
        env = env_with(MODERN, tasks=2, timeout_seconds=8.0)
        await env.connect()  # a start on a busy machine could take those seconds
        late, _ = await rows(env, [call("wait"), "done"])
        pids = [tool_texts(output) for output in await rows(env, [call("pid"), "done"])]
        await env.close()
        return late, pids

    late, pids = asyncio.run(go())
    assert late["stop_condition"] == "timeout_reached"
    assert pids[0] == pids[1]


def test_a_server_of_one_rollout_that_dies_fails_only_that_rollout():
    script = lambda state: (  # noqa: E731
        "done" if state["trajectory"] else call("die") if state["example_id"] else call("count")
    )
    fine, died = run(env_with(plain(per_rollout=True), tasks=2), script)
    assert tool_texts(fine) == ["1"]
    assert "SIGKILL" in error_of(died)


# Ending


def test_closing_ends_a_server_and_whatever_it_started(held):
    run(env_with(plain(env=held.env)), [call("stubborn_child"), "done"])
    assert held.ended()


def test_the_end_of_the_event_loop_ends_a_server(held):
    env = env_with(plain(env=held.env))
    env.evaluate_sync(whet.ScriptedClient([call("stubborn_child"), "done"]), "m")
    assert held.ended()
    asyncio.run(env.close())


def test_the_end_of_a_rollout_ends_its_own_server(held):
    async def go():
        env = env_with(plain(env=held.env, per_rollout=True))
        await rows(env, [call("count"), "done"])
        ended = await asyncio.to_thread(held.ended)
        await env.close()
        return ended

    assert asyncio.run(go())


@pytest.mark.parametrize("closed", [False, True])
def test_closing_ends_the_servers_of_a_loop_that_was_left_as_it_was(held, closed):
    env = env_with(plain(env=held.env))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(env.connect())
    left = asyncio.all_tasks(loop)
    if closed:
        loop.close()
    asyncio.run(env.close())
    assert held.ended()
    if not closed:
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


OUTSIDE = """
import asyncio, json, os, sys, whet
env = whet.MCPEnv(mcp_servers=[json.loads(sys.argv[1])], dataset=[{"question": "q"}])
call = {"tool_calls": [{"id": "1", "name": sys.argv[2], "arguments": "{}"}]}
loop = asyncio.new_event_loop()
client = whet.ScriptedClient([call, "done"])
if sys.argv[2] != "deaf":
    loop.run_until_complete(env.evaluate(client, "m"))
    print("ready", flush=True)
    sys.stdin.read()
else:
    loop.create_task(env.connect()).add_done_callback(lambda task: print("ready", flush=True))
    loop.run_until_complete(env.evaluate(client, "m"))
"""


def outside(held, tool):
    """Another process with a server that runs."""
    server = {**PLAIN, "args": [str(SERVERS / "plain.py")], "env": held.env}
    other = subprocess.Popen(
        [sys.executable, "-c", OUTSIDE, json.dumps(server), tool],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert other.stdout.readline() == b"ready\n"
    return other


@pytest.mark.parametrize("tool", ["count", "stubborn_child", "deaf"])
def test_a_server_ends_when_its_parent_is_killed(held, tool):
    other = outside(held, tool)
    other.kill()
    other.communicate()
    assert held.ended()


def test_a_server_ends_when_its_parent_exits_without_closing(held):
    other = outside(held, "stubborn_child")
    _, stderr = other.communicate(b"")
    assert other.returncode == 0
    assert b"Traceback" not in stderr
    assert held.ended()
