"""`nemo:` against NeMo-Gym's own resources servers, and its agent against `whet env serve` (`make nemo`)."""

import contextlib
import json
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
import uvicorn

import whet
from whet.gateway.app import Gateway
from whet.gateway.serve import address_of, listen
from whet.integrations.nemo_server import NemoGymApp

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-nemo"
PYTHON = str(VENV / "bin" / "python")

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def nemo_gym(need):
    need("nemo", "nemo-gym")


def folder_of(name):
    (folder,) = VENV.glob(f"lib/python*/site-packages/resources_servers/{name}")
    return folder


def play(name, answer):
    env = whet.load_environment(f"nemo:{folder_of(name)}", python=PYTHON)
    return env.evaluate_sync(whet.ScriptedClient(answer), "m")["outputs"]


def calls(*given):
    made = [whet.ToolCall(f"c{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(given)]
    return whet.AssistantMessage("", tool_calls=made)


def test_a_stateful_counter_keeps_its_sessions_apart():
    both = calls(("increment_counter", {"count": 1}), ("increment_counter", {"count": 2}))
    rows = play("example_session_state_mgmt", [both, calls(("get_counter_value", {})), "done"])
    assert [(row["reward"], row["error"]) for row in rows] == [(1.0, None)] + [(0.0, None)] * 4
    counts = [json.loads(row["completion"][4]["content"])["count"] for row in rows]
    assert counts == [6, 9, 12, 15, 18]


def test_a_question_of_choice_is_verified():
    rows = play("mcqa", ["it is \\boxed{B}"])
    lines = (folder_of("mcqa") / "data" / "example.jsonl").read_text().splitlines()
    expected = [float(json.loads(line)["expected_answer"] == "B") for line in lines]
    assert [row["reward"] for row in rows] == expected
    assert sum(expected) > 0


def test_tools_of_several_turns_have_the_metrics_of_verify():
    lines = (folder_of("example_multi_step") / "data" / "example.jsonl").read_text().splitlines()
    expected = {
        str(row["responses_create_params"]["input"]): row["expected_synonyms"] for row in map(json.loads, lines)
    }

    def answer(prompt, turn):
        if turn == 0:
            terms = expected[str([{"role": m["role"], "content": m["content"]} for m in prompt])]
            return calls(*[("get_synonym_value", {"synonym": term}) for term in terms])
        if turn == 2:
            return "done"
        values = [json.loads(message["content"])["synonym_value"] for message in prompt if message["role"] == "tool"]
        return calls(("extract_synonym_values", {"synonym_values": values}))

    rows = play("example_multi_step", answer)
    assert [(row["reward"], row["error"]) for row in rows] == [(1.0, None)] * len(lines)
    assert [row["metrics"]["set_overlap"] for row in rows] == [1.0] * len(lines)


def test_servers_of_other_agents_are_refused():
    for name, reason in (("blackjack", "has no /seed_session"), ("example_mcp_weather", "MCP server")):
        rows = play(name, ["stand"])
        assert all(row["reward"] is None and reason in row["error"]["message"] for row in rows)


@contextlib.contextmanager
def serving(app):
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address_of(listening)
        server.should_exit = True
        thread.join()


def calculated(prompt, tools):
    """A model that calls its tool twice at once, and answers with what it returned."""
    results = [message["content"] for message in prompt if message["role"] == "tool"]
    if results:
        return results[-1]
    question = prompt[-1]["content"].split("What is ")[1].rstrip("?")
    for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*")):
        question = question.replace(word, sign)
    name = tools[0]["name"]
    return calls((name, {"expression": "0"}), (name, {"expression": question}))


def test_the_gymnasium_agent_of_nemo_gym_plays_an_environment():
    env = whet.load_environment("calculator", num_train=8)
    gateway = Gateway({"scripted": whet.ScriptedClient(calculated)})
    with serving(NemoGymApp(env).app) as url, serving(gateway.app) as model:
        rows = httpx.get(f"{url}/rows/train.jsonl").text
        command = [PYTHON, Path(__file__).with_name("nemo_drive.py"), url, model]
        output = subprocess.run(command, input=rows, capture_output=True, text=True, timeout=300)
    assert output.returncode == 0, output.stderr
    kinds = ["function_call", "function_call", "function_call_output", "function_call_output", "message"]
    assert [json.loads(line) for line in output.stdout.splitlines()] == [[1.0, True, kinds, 1.0]] * 8
