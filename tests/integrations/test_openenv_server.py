"""`whet env serve`: an environment of whet by OpenEnv's protocol; with openenv's own client in the last test."""

import contextlib
import json
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import whet
from whet.errors import ConfigError
from whet.integrations import openenv_server

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-openenv"


class Echo(whet.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if messages[-1]["content"] == "raise":
            raise RuntimeError("broken")
        return [whet.UserMessage(f"again, {messages[-1]['content']}")]


def environment():
    rows = [{"question": name, "answer": name} for name in "ab"]

    def right(completion, answer):
        return float(completion[-1]["content"] == answer)

    return Echo(dataset=rows, rubric=whet.Rubric(funcs=[right]), max_turns=2)


@pytest.fixture
def web():
    with TestClient(openenv_server.OpenEnvApp(environment(), sessions=2).app) as client:
        yield client


@contextlib.contextmanager
def session(web):
    """A session that the server has ended when the block is left."""
    with web.websocket_connect("/ws") as socket:
        yield socket
        socket.send_text('{"type": "close"}')
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()


def ask(socket, kind, data=None):
    socket.send_text(json.dumps({"type": kind, "data": data}))
    return socket.receive_json()


def test_an_episode_ends_with_the_reward_of_the_rubric(web):
    with session(web) as one, session(web) as two:
        first, other = ask(one, "reset", {"seed": 2, "episode_id": "x"})["data"], ask(two, "reset", {"seed": 1})["data"]
        assert [first["observation"]["messages"][-1]["content"], other["observation"]["messages"][-1]["content"]] == [
            "a",
            "b",
        ]
        assert (first["reward"], first["done"]) == (None, False)
        second = ask(one, "step", {"message": "hi"})["data"]
        assert [message["content"] for message in second["observation"]["messages"]] == ["again, hi"]
        assert ask(one, "step", {"message": "a"})["data"] == {
            "observation": {"messages": [], "tools": [], "metadata": {}}, "reward": 1.0, "done": True
        }  # fmt: skip
        assert ask(one, "state")["data"]["step_count"] == 2
        assert ask(one, "reset", {"seed": 1})["data"]["observation"]["messages"][-1]["content"] == "b"


def test_more_sessions_than_there_are_is_an_error(web):
    with session(web), session(web), web.websocket_connect("/ws") as third:
        assert third.receive_json()["data"]["code"] == "CAPACITY_REACHED"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("junk", "INVALID_JSON"),
        ("[" * 9000, "INVALID_JSON"),
        ("[]", "UNKNOWN_TYPE"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"message": "too early"}}', "EXECUTION_ERROR"),
        ('{"type": "step", "data": {"move": 1}}', "VALIDATION_ERROR"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"split": "all"}}', "VALIDATION_ERROR"),
    ],
)
def test_what_is_no_message_is_answered_and_the_session_goes_on(web, text, code):
    with session(web) as socket:
        socket.send_text(text)
        assert socket.receive_json()["data"]["code"] == code
        assert ask(socket, "reset")["type"] == "observation"


def test_a_rollout_that_fails_is_an_error_and_no_reward(web):
    with session(web) as socket:
        ask(socket, "reset")
        answer = ask(socket, "step", {"message": "raise"})
        assert (answer["type"], answer["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert "broken" in answer["data"]["message"]


def test_a_page_of_a_browser_gets_no_session(web):
    with pytest.raises(WebSocketDisconnect), web.websocket_connect("/ws", headers={"origin": "http://elsewhere"}):
        pass


def test_an_address_open_to_others_is_refused():
    with pytest.raises(ConfigError, match="open to other machines"):
        openenv_server.serve(openenv_server.OpenEnvApp(environment()).app, "0.0.0.0", 0, print)


@pytest.mark.parts
def test_the_client_of_openenv_drives_it():
    if not (VENV / "OpenEnv").exists():
        pytest.skip("no environments in .venv-openenv (not made yet); make it with: make openenv")
    with subprocess.Popen(
        [ROOT / ".venv" / "bin" / "whet", "env", "serve", "calculator", "--port", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        timer = threading.Timer(120, server.kill)
        timer.start()
        try:
            url = server.stdout.readline().split()[-1]
            command = [VENV / "bin" / "python", Path(__file__).with_name("openenv_drive.py"), url]
            results = json.loads(subprocess.check_output(command, text=True))
        finally:
            timer.cancel()
            server.kill()
    first, begun, called, right, wrong = results
    assert first[0]["messages"] != begun[0]["messages"]
    assert called[0]["messages"][0]["role"] == "tool"
    assert [result[1:] for result in (first, called, right, wrong)] == [
        [None, False], [None, False], [1.0, True], [0.0, True]
    ]  # fmt: skip
