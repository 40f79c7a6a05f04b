"""Commands as programs: real processes in real sandboxes, whose requests are the turns of an ordinary rollout."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import whet
from whet.errors import ConfigError
from whet.sandboxes.bubblewrap.command import PATH

_spec = importlib.util.spec_from_file_location("commands", Path(__file__).parent / "commands.py")
_commands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_commands)
AGENT, ASK, env_of, roll = _commands.AGENT, _commands.ASK, _commands.env_of, _commands.roll

OUT = {"out": {"path": "out.txt"}}


pytestmark = pytest.mark.usefixtures("bubblewrap")


def writes(text: str) -> dict:
    return {"tool_calls": [{"id": "c1", "name": "write", "arguments": json.dumps({"text": text})}]}


def wrote(task, state) -> float:
    return float(state["artifacts"]["out"] == "hello")


def test_an_agent_with_a_tool_loop_is_a_rollout_that_is_scored() -> None:
    states = roll(env_of(AGENT, artifacts=OUT, rewards=[wrote]), [writes("hello"), "ok"], size=2)
    for state in states:
        assert (state["error"], state["reward"], state["stop_condition"]) == (None, 1.0, "program_completed")
        assert [message["role"] for message in state["completion"]] == ["assistant", "tool", "assistant"]
        assert state["trajectory"][1]["prompt"][0]["content"] == "Write."
        program = state["program"]
        assert (program["exit_code"], program["stdout"], program["limit"]) == (0, "done\n", None)


def test_the_task_s_answer_is_not_shown_to_the_program() -> None:
    (state,) = roll(env_of("import os; print(open(os.environ['WHET_TASK']).read())"), [])
    assert "Write." in state["program"]["stdout"]
    assert "secret" not in state["program"]["stdout"]


def test_raw_http_reaches_the_model_too() -> None:
    raw = """
import json, os, socket
from urllib.parse import urlsplit
base = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
proxy = urlsplit(os.environ["HTTP_PROXY"])
body = json.dumps({"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})
with socket.create_connection((proxy.hostname, proxy.port)) as wire:
    wire.sendall((f"POST {base.geturl()}/v1/messages HTTP/1.1\\r\\nHost: {base.netloc}\\r\\n"
        f"x-api-key: {os.environ['ANTHROPIC_API_KEY']}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}").encode())
    answer = b"".join(iter(lambda: wire.recv(4096), b""))
print(json.loads(answer.partition(b"\\r\\n\\r\\n")[2])["content"][0]["text"])
"""
    (state,) = roll(env_of(raw), ["well said"])
    assert (state["program"]["stdout"], len(state["trajectory"])) == ("well said\n", 1)


ASKED = '{"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'
KNOW_NO_PROXY = {
    "python3": f"""
import http.client, json, os
from urllib.parse import urlsplit
base = urlsplit(os.environ["OPENAI_BASE_URL"])
wire = http.client.HTTPConnection(base.hostname, base.port)
for turn in range(2):
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
    wire.request("POST", base.path + "/chat/completions", {ASKED!r}, headers)
    print(json.load(wire.getresponse())["choices"][0]["message"]["content"])
""",
    "curl": f"""
for turn in 1 2; do
    curl -sS --noproxy '*' "$ANTHROPIC_BASE_URL/v1/messages" -H "x-api-key: $ANTHROPIC_API_KEY" -d '{ASKED}' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["content"][0]["text"])'
done
""",
    "node": f"""
const http = require("http")
const headers = {{Authorization: "Bearer " + process.env.OPENAI_API_KEY}}
const ask = () => new Promise(done => {{
    const url = process.env.OPENAI_BASE_URL + "/chat/completions"
    const request = http.request(url, {{method: "POST", headers, agent: false}}, async response => {{
        let text = ""
        for await (const part of response) text += part
        console.log(JSON.parse(text).choices[0].message.content)
        done()
    }})
    request.end({ASKED!r})
}})
ask().then(ask)
""",
}


@pytest.mark.parametrize("program", KNOW_NO_PROXY)
def test_a_program_that_knows_no_proxy_reaches_its_model_too(program) -> None:
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is not on this machine")
    command = ["sh" if program == "curl" else program, "agent.py"]
    (state,) = roll(env_of(KNOW_NO_PROXY[program], command=command), ["well", "said"])
    assert state["error"] is None, state["error"]
    assert (state["program"]["stdout"], len(state["trajectory"])) == ("well\nsaid\n", 2), state["program"]["stderr"]


def test_values_of_the_task_are_arguments_files_and_variables() -> None:
    source = "import os, sys; print(sys.argv[1:], open('data/in.txt').read(), os.environ['LEVEL'], os.getcwd())"
    env = env_of(
        source,
        rows=[{"question": "q; rm -rf $HOME", "info": {"text": "some data"}}],
        args=["task.question", "--plain"],
        files={"data/in.txt": "task.info.text"},
        env={"LEVEL": lambda task: len(task["question"])},
        setup=["test -f data/in.txt"],
        sandbox={"workdir": "/home/user/work"},
    )
    (state,) = roll(env, [])
    assert state["error"] is None
    assert state["program"]["stdout"] == "['q; rm -rf $HOME', '--plain'] some data 15 /home/user/work\n"


def test_a_value_that_a_task_does_not_have_fails_its_rollout() -> None:
    (state,) = roll(env_of("", args=["task.level"]), [])
    assert isinstance(state["error"], whet.EnvError)
    assert "task.level" in str(state["error"])


@pytest.mark.parametrize(
    ("source", "said"),
    [("import nothing_of_the_kind", "nothing_of_the_kind"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")],
)
def test_program_failing_before_first_answer_is_env_error(source, said) -> None:
    (state,) = roll(env_of(source), [])
    assert isinstance(state["error"], whet.EnvError)
    assert said in str(state["error"])
    assert state["reward"] is None


def test_a_program_that_never_asks_is_a_rollout_without_turns() -> None:
    (state,) = roll(env_of("print('no need')"), ["never"])
    assert (state["error"], state["trajectory"], state["stop_condition"]) == (None, [], "program_completed")


@pytest.mark.parametrize(
    ("then", "limit"),
    [
        ("sys.exit(3)", None),
        ("import time; time.sleep(60)", "time"),
        ("while True: print('x' * 1000000)", "output"),
    ],
)
def test_a_program_that_fails_after_its_model_answered_is_scored(then, limit) -> None:
    def failed(state) -> float:
        return float(state["program"]["exit_code"] != 0)

    seconds = 5 if limit == "time" else 60
    env = env_of(f"{ASK}\nsaid(prompt())\n{then}", rewards=[failed], sandbox={"command_timeout": seconds})
    (state,) = roll(env, ["a"])
    assert (state["error"], state["reward"], state["stop_condition"]) == (None, 1.0, "program_failed")
    assert (state["program"]["limit"], len(state["trajectory"])) == (limit, 1)


def test_an_artifact_that_is_missing_or_of_another_format_is_none() -> None:
    env = env_of(
        f"{ASK}\nsaid(prompt())\nopen('a.json', 'w').write('no json')\nopen('b.json', 'w').write('[7]')",
        artifacts={
            "a": {"path": "a.json", "format": "json"},
            "b": {"path": "b.json", "format": "json"},
            "c": {"path": "c.txt", "optional": True},
        },
    )
    (state,) = roll(env, ["x"])
    assert state["artifacts"] == {"a": None, "b": [7], "c": None}
    assert (state["program"]["missing"], state["stop_condition"]) == (["a"], "program_failed")


def test_the_limit_of_turns_ends_the_program_and_keeps_its_files() -> None:
    env = env_of(AGENT, artifacts=OUT, harness={"max_turns": 2}, rewards=[wrote])
    (state,) = roll(env, lambda: writes("he"))
    assert (state["stop_condition"], len(state["trajectory"])) == ("max_turns_reached", 2)
    assert state["artifacts"]["out"].startswith("he")
    assert state["program"]["exit_code"] is None


def test_a_rollout_s_time_limit_ends_a_program_that_hangs() -> None:
    env = env_of(f"{ASK}\nsaid(prompt())\nimport time; time.sleep(60)", harness={"timeout_seconds": 1})
    (state,) = roll(env, ["a"])
    assert (state["stop_condition"], state["error"]) == ("timeout_reached", None)


def test_rewards_see_program_and_artifacts_after_early_end() -> None:
    def looked(state) -> float:
        return float(state["program"]["exit_code"] is None and state["artifacts"] == {"out": None})

    env = env_of(AGENT, setup="sleep 60", artifacts=OUT, rewards=[looked], harness={"timeout_seconds": 1})
    (state,) = roll(env, [])
    assert (state["stop_condition"], state["error"], state["reward"]) == ("timeout_reached", None, 1.0)


def test_a_model_that_fails_is_the_rollout_s_error_and_others_go_on() -> None:
    failing = iter([whet.ModelError("down"), "a"])
    states = roll(env_of(f"{ASK}\nsaid(prompt())"), lambda: next(failing), size=2)
    assert sorted(type(state["error"]).__name__ for state in states) == ["ModelError", "NoneType"]


def test_two_environments_share_one_server_which_ends_with_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from whet.gateway.rollouts import RolloutGateway
    from whet.rollouts.groups import run_group

    opened, make = [], RolloutGateway.open
    monkeypatch.setattr(RolloutGateway, "open", lambda self, session: opened.append(make(self, session)) or opened[-1])

    async def attempt():
        envs = [env_of(f"{ASK}\nsaid(prompt())") for _ in range(2)]
        for env in envs:
            await run_group(env, [env.get_dataset()[0]], whet.ScriptedClient(lambda: "a"), "m", {})
        first, second = (session.port for session in opened)
        assert first == second
        await envs[0].close()
        _, writer = await asyncio.open_connection("127.0.0.1", first)
        writer.close()
        await envs[1].close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", first)
        return len(asyncio.all_tasks())

    assert asyncio.run(attempt()) == 1


@pytest.mark.parametrize(
    ("program", "harness", "said"),
    [
        ({"command": ["agent"], "fn": "math:sqrt"}, {}, "give one of"),
        ({"command": ["agent"], "file": {}}, {}, "Did you mean 'files'"),
        ({"command": ["agent"], "sandbox": False}, {}, "in a sandbox only"),
        ({"command": ["agent"], "sandbox": {"cpu_core": 1}}, {}, "Did you mean 'cpu_cores'"),
        ({"command": ["agent"], "sandbox": {"scope": "group"}}, {}, "a sandbox for each rollout"),
        ({"command": ["agent"], "sandbox": {}}, {"sandbox": {}}, "give one"),
        ({"command": ["agent"], "tools": "mcp"}, {}, "it brings its own"),
        ({"command": ["agent"], "bindings": {"f.x": 1}}, {}, "bindings"),
        ({"command": ["agent"], "artifacts": {"a": {"paths": "x"}}}, {}, "Did you mean 'artifacts.a.path'"),
        ({"command": 7}, {}, "command"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_when_it_is_given(program, harness, said) -> None:
    with pytest.raises(ConfigError) as caught:
        whet.Harness(program=program, **harness)
    assert said in str(caught.value)


def test_tools_of_this_process_are_refused_for_a_command() -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    with pytest.raises(ConfigError, match="cannot be shown tools"):
        whet.Env(whet.Taskset(source=[{"question": "x"}], toolsets=[add]), whet.Harness(program={"command": ["a"]}))


def test_the_packages_of_openai_and_anthropic_work_as_they_are(monkeypatch) -> None:
    """In the backend that is no boundary, where what is installed here is there."""
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    monkeypatch.setenv("WHET_SANDBOX_BACKEND", "subprocess")
    source = """
import anthropic, openai
messages = [{"role": "user", "content": "hi"}]
client = openai.OpenAI()
one = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
two = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
    model="any", messages=messages, stream=True) if c.choices)
three = client.responses.create(model="any", input="hi").output_text
with anthropic.Anthropic().messages.stream(model="any", max_tokens=9, messages=messages) as stream:
    four = "".join(stream.text_stream)
print(one, two, three, four)
"""
    (state,) = roll(env_of(source, command=[sys.executable, "agent.py"]), list("abcd"))
    assert state["error"] is None, state["error"]
    assert (state["program"]["stdout"], len(state["trajectory"])) == ("a b c d\n", 4)
