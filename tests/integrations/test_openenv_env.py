"""`OpenEnvEnv` against a server of its protocol that misbehaves; the real servers are in `test_openenv_servers.py`."""

import json
import threading
import time

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

import whet
from whet.envs.identity.ids import label_of, parse_id
from whet.errors import ConfigError, EnvironmentLoadError
from whet.integrations import openenv_client

MOVES = {
    "properties": {"metadata": {"type": "object"}, "move": {"$ref": "#/$defs/Move"}},
    "required": ["move"],
    "$defs": {"Move": {"enum": ["LEFT", "RIGHT"], "type": "string"}},
}
COUNT = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
PAIR = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}


def observation(reward=1.0, done=False, **fields):
    return {"type": "observation", "data": {"observation": {"metadata": {}, **fields}, "reward": reward, "done": done}}


def failure(code, **more):
    return {"type": "error", "data": {"message": "no", "code": code, **more}}


class Server:
    """Answers by `answer(message, session)`: a reply, raw text, seconds to wait, or None to hang up."""

    def __init__(self, answer, schema=COUNT, sessions=99):
        self.answer, self.schema, self.free, self.messages, self.opened = answer, schema, sessions, [], 0
        self.lock = threading.Lock()
        self.server = serve(self.session, "127.0.0.1", 0, process_request=self.request)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def request(self, connection, request):
        if request.path == "/ws":
            return None
        body = self.schema if isinstance(self.schema, bytes) else json.dumps({"action": self.schema}).encode()
        return Response(200, "OK", Headers({"Content-Length": str(len(body))}), body)

    def session(self, socket):
        with self.lock:
            self.opened += 1
            number, full = self.opened, self.free == 0
            self.free -= not full
        if full:
            socket.send(json.dumps(failure("CAPACITY_REACHED")))
            return
        try:
            for text in socket:
                message = json.loads(text)
                self.messages.append((number, message))
                reply = self.answer(message, number)
                if isinstance(reply, float):
                    time.sleep(reply)
                elif reply is None:
                    return
                else:
                    socket.send(reply if isinstance(reply, str) else json.dumps(reply))
        finally:
            with self.lock:
                self.free += 1


@pytest.fixture
def served():
    servers = []

    def start(answer, **kwargs):
        servers.append(Server(answer, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.server.shutdown()


def play(server, answers, n=1, **kwargs):
    env = whet.load_environment(
        f"openenv:{server.url}", **{"num_train_examples": n, "num_eval_examples": 0, "max_turns": 3, **kwargs}
    )
    return env.evaluate_sync(whet.ScriptedClient(answers), "m")["outputs"]


def plain(message, session):
    if message["type"] == "reset":
        return observation(0.0, text=f"seed {message['data']['seed']}")
    return observation(float(message["data"]["n"]), message["data"]["n"] == 9, text="next", kept=None)


def test_reward_is_the_sum_of_the_steps_with_that_of_the_last_turn(served):
    (row,) = play(served(plain), ["2", "I take 3", "4"], reset_args={"size": 5})
    assert (row["reward"], row["stop_condition"], row["error"]) == (9.0, "max_turns_reached", None)
    assert row["prompt"][-1]["content"] == "seed 0\n\nAnswer with the n (integer)."


def test_done_ends_the_episode_and_its_observation_is_kept(served):
    (row,) = play(served(plain), ["9"])
    assert (row["reward"], row["stop_condition"]) == (9.0, "is_done")
    assert [message["content"] for message in row["completion"]] == ["9", "next"]


def test_each_rollout_has_a_session_and_the_seed_of_its_row(served):
    server = served(plain)
    rows = play(server, ["9"], n=4, seed=7)
    assert [row["reward"] for row in rows] == [9.0] * 4
    resets = {session: message["data"]["seed"] for session, message in server.messages if message["type"] == "reset"}
    assert sorted(resets.values()) == [7, 8, 9, 10]
    assert len(resets) == 4


def test_rollouts_wait_for_a_session_of_a_full_server(served):
    rows = play(served(plain, sessions=1), ["1", "9"], n=5)
    assert [(row["reward"], row["error"]) for row in rows] == [(10.0, None)] * 5


def test_a_server_that_stays_full_fails_the_rollout(served):
    (row,) = play(served(plain, sessions=0), ["9"], session_timeout=0.1)
    assert row["reward"] is None
    assert "has no session free" in row["error"]["message"]


@pytest.mark.parametrize(
    ("schema", "text", "action"),
    [
        (MOVES, "I go RIGHT", {"move": "RIGHT"}),
        (COUNT, "first 1, then -2", {"n": -2}),
        (TEXT, " [crane] ", {"text": "[crane]"}),
        (PAIR, 'so {"a": "1", "b": "x"}.', {"a": 1, "b": "x"}),
    ],
)
def test_text_becomes_an_action_of_the_schema(served, schema, text, action):
    server = served(lambda message, _: observation(done=message["type"] == "step", x=1, y=2), schema=schema)
    (row,) = play(server, [text])
    assert server.messages[-1][1] == {"type": "step", "data": action}
    assert row["completion"][-1]["content"] == '{"x": 1, "y": 2}'


@pytest.mark.parametrize(("schema", "text"), [(MOVES, "UP"), (COUNT, "none"), (PAIR, "1"), (PAIR, "{}}")])
def test_text_that_is_no_action_is_answered_and_has_a_reward_of_its_own(served, schema, text):
    server = served(lambda message, _: observation(x=1), schema=schema)
    (row,) = play(server, [text, text], max_turns=2, invalid_reward=-1)
    assert (row["reward"], row["error"]) == (-2.0, None)
    assert row["completion"][1]["content"].startswith("This is not an action:")
    assert [message["type"] for _, message in server.messages] == ["reset"]


def test_an_action_that_the_server_refuses_is_answered(served):
    refusal = failure("VALIDATION_ERROR", errors=[{"msg": "between 0 and 3"}])
    (row,) = play(served(lambda m, _: observation(0.0) if m["type"] == "reset" else refusal), ["7", "8"], max_turns=2)
    assert (row["reward"], row["completion"][1]["content"]) == (0.0, "This is not an action: between 0 and 3")


def test_an_environment_that_raises_at_an_action_may_count_as_one_that_refuses_it(served):
    def answer(message, session):
        return observation(0.0) if message["type"] == "reset" else failure("EXECUTION_ERROR")

    (row,) = play(served(answer), ["7"], max_turns=1, step_errors_are_invalid=True, invalid_reward=-1)
    assert (row["reward"], row["error"]) == (-1.0, None)


def test_fields_of_an_observation_are_chosen(served):
    server = served(lambda message, _: observation(done=message["type"] == "step", x=1, y="b"))
    (row,) = play(server, ["1"], observation_fields=["y"], instructions="")
    assert [message["content"] for message in (*row["prompt"], *row["completion"])] == ["b", "1", "b"]


NAN = '{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": false}}'


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (failure("EXECUTION_ERROR"), "EnvError", "failed (EXECUTION_ERROR): no"),
        (None, "InfraError", "was lost"),
        (2.0, "InfraError", "did not respond in 0.5 s"),
        ("junk", "InfraError", "sent what is no JSON"),
        ("[" * 9000, "InfraError", "sent what is no JSON"),
        ("[]", "InfraError", "sent no message of its protocol"),
        (NAN, "InfraError", "sent no observation, reward and done"),
        (observation("high"), "InfraError", "sent no observation, reward and done"),
        (observation(done="yes"), "InfraError", "sent no observation, reward and done"),
        ({"type": "observation", "data": {}}, "InfraError", "sent no observation, reward and done"),
    ],
)
@pytest.mark.parametrize("when", ["reset", "step"])
def test_a_server_that_fails_is_an_error_of_the_rollout_and_no_reward(served, reply, error, words, when):
    server = served(lambda message, _: reply if message["type"] == when else observation(x=1))
    (row,) = play(server, ["5"], message_timeout=0.5)
    assert (row["reward"], row["error"]["error"]) == (None, error)
    assert words in row["error"]["message"]


def test_a_server_that_is_not_there_is_an_error_of_the_rollout(served):
    server = served(plain)
    server.server.shutdown()
    server.server.socket.close()
    (row,) = play(server, ["9"])
    assert (row["reward"], row["error"]["error"]) == (None, "InfraError")
    assert "cannot be reached" in row["error"]["message"]


@pytest.mark.parametrize("schema", [b"<html>", b"[1]", [], {"properties": 3}])
def test_another_server_is_named_with_the_versions_that_work(served, schema):
    with pytest.raises(ConfigError, match=r"/schema answered 200 and no schema of actions; .* openenv 0\.10"):
        play(served(plain, schema=schema), ["9"])


def test_a_package_without_openenv_is_named_with_the_versions_that_work(tmp_path):
    (tmp_path / "game" / "server").mkdir(parents=True)
    (tmp_path / "game" / "server" / "app.py").write_text("app = None")
    env = whet.load_environment(f"openenv:{tmp_path / 'game'}", num_train_examples=1, num_eval_examples=0)
    with pytest.raises(ConfigError, match=r"did not start: openenv is not installed in .*0\.10 or later"):
        env.evaluate_sync(whet.ScriptedClient(["1"]), "m")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("ftp://host", "should be openenv:http://HOST:PORT"),
        ("http://", "should be openenv:http://HOST:PORT"),
        ("not a package", "should be openenv:http://HOST:PORT"),
        ("./nowhere", "has no server/app.py"),
    ],
)
def test_a_malformed_target_is_refused(target, words):
    with pytest.raises(ConfigError, match=words):
        whet.load_environment(f"openenv:{target}")


def test_the_id_has_a_name_for_folders_and_is_none_of_a_hub():
    assert label_of("openenv:http://127.0.0.1:8000/a") == "127.0.0.1-8000-a"
    assert parse_id("openenv:./envs/echo_env").module == "whet.integrations.openenv_env"
    for text, of_hub in (("openenv:", False), ("openenv:http://host", True)):
        with pytest.raises(EnvironmentLoadError, match="openenv"):
            parse_id(text, of_hub=of_hub)


def test_tools_of_a_server_are_offered_and_called(served):
    tool = {"name": "add", "description": "Adds.", "input_schema": {"properties": {"n": {"type": "integer"}}}}
    schema = {"properties": {"type": {}, "tool_name": {}, "arguments": {}}}

    def answer(message, session):
        if message["type"] == "reset":
            return observation(0.0)
        if message["data"]["type"] == "list_tools":
            return observation(None, tools=[tool])
        return observation(2, result={"data": message["data"]["arguments"]["n"] + 1}, error=None)

    call = whet.AssistantMessage("", tool_calls=[whet.ToolCall(id="c", name="add", arguments='{"n": "4"}')])
    (row,) = play(served(answer, schema=schema), [call, call, "done"], max_turns=4)
    assert (row["reward"], row["stop_condition"]) == (4.0, "no_tools_called")
    assert row["completion"][1]["content"] == "5"


@pytest.mark.parametrize("tools", [None, [1], [{"name": "x"}]])
def test_a_list_of_tools_that_is_none_is_an_error(served, tools):
    server = served(lambda message, _: observation(tools=tools), schema={"properties": {}})
    (row,) = play(server, ["x"])
    assert (row["reward"], row["error"]["error"]) == (None, "InfraError")


def test_results_of_tools_become_text():
    assert openenv_client.tool_text({"error": {"message": "no such tool"}}) == "Error: no such tool"
    assert openenv_client.tool_text({"result": {"content": [{"text": "a"}, {"text": "b"}], "data": None}}) == "a\nb"
    assert openenv_client.tool_text({"result": [1, 2]}) == "[1, 2]"
