"""`NemoGymEnv` against a server of its protocol that misbehaves; the real servers are in `test_nemo_gym.py`."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import whet
from whet.errors import ConfigError, DatasetError

TOOL = {
    "type": "function", "name": "add", "description": "", "strict": True,
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}  # fmt: skip
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "count"}], "tools": [TOOL]}, "goal": 3}


class Server(ThreadingHTTPServer):
    """Counts in sessions of its own cookies; `answers[route]` overrides: (status, text), seconds to wait, or None."""

    def __init__(self, **answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.counts, self.verified = answers, {}, []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, route = self.server, self.path[1:]
        cookie = self.headers.get("Cookie", "")
        if route == "seed_session":
            cookie = f"session={len(server.counts)}"
            server.counts[cookie] = 0
        reply = server.answers.get(route, "")
        if isinstance(reply, float):
            time.sleep(reply)
        if reply is None or isinstance(reply, float):
            self.close_connection = True
            return
        status, text = reply or (200, self.honest(server, route, cookie, body))
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def honest(self, server, route, cookie, body):
        if route == "add":
            server.counts[cookie] += body["n"]
        if route == "verify":
            server.verified.append(body)
            right = server.counts[cookie] == body["goal"]
            return json.dumps({**body, "reward": float(right), "right": right, "note": "text"})
        return json.dumps({"count": server.counts[cookie]})


@pytest.fixture
def served():
    servers = []

    def start(**answers):
        servers.append(Server(**answers))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"

    def write(*lines):
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return str(path)

    return write


def adding(n, name="add"):
    return whet.AssistantMessage("", tool_calls=[whet.ToolCall(f"c{n}", name, json.dumps({"n": n}))])


def play(server, dataset, answers, **kwargs):
    env = whet.load_environment(f"nemo:{server.url}", dataset=dataset, **kwargs)
    return env.evaluate_sync(whet.ScriptedClient(answers), "m")["outputs"]


def test_each_rollout_has_a_session_and_the_reward_of_verify(served, rows):
    server = served()
    outputs = play(server, rows(ROW, {**ROW, "goal": 4}), [adding(1), adding(2), "done"])
    assert [(row["reward"], row["metrics"]["right"], row["error"]) for row in outputs] == [(1, 1, None), (0, 0, None)]
    verified = next(body for body in server.verified if body["goal"] == 3)
    output = verified["response"]["output"]
    kinds = ["function_call", "function_call_output"] * 2 + ["message"]
    assert [item["type"] for item in output] == kinds
    assert output[3] == {"type": "function_call_output", "call_id": "c2", "output": '{"count": 3}'}
    assert {name: verified[name] for name in ROW} == ROW


def test_a_rollout_that_runs_out_of_turns_is_verified(served, rows):
    (row,) = play(served(), rows(ROW), [adding(3)], max_turns=1)
    assert (row["reward"], row["stop_condition"]) == (1.0, "max_turns_reached")


@pytest.mark.parametrize("name", ["verify", "../verify", "seed_session"])
def test_the_model_calls_only_the_tools_of_its_row(served, rows, name):
    (row,) = play(served(), rows(ROW), [adding(1, name), adding(3), "done"])
    assert (row["reward"], row["completion"][1]["content"]) == (1.0, f"Error: there is no tool '{name}'")


def test_an_error_of_a_tool_is_for_the_model_to_read(served, rows):
    (row,) = play(served(add=(500, "KeyError")), rows(ROW), [adding(1), adding("x"), "done"])
    answers = [message["content"] for message in row["completion"] if message["role"] == "tool"]
    assert answers[0] == "KeyError"
    assert "should be an integer" in answers[1]
    assert row["error"] is None


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"verify": None}, "cannot be reached"),
        ({"add": None}, "cannot be reached"),
        ({"verify": 0.5}, "did not answer in 0.2 s"),
        ({"verify": (200, "junk")}, "what is no JSON"),
        ({"verify": (200, "[" * 5000)}, "what is no JSON"),
        ({"verify": (200, "[]")}, "answered no object"),
        ({"verify": (200, "{}")}, "without a finite reward"),
        ({"verify": (200, '{"reward": NaN}')}, "without a finite reward"),
        ({"verify": (200, '{"reward": "1"}')}, "without a finite reward"),
        ({"verify": (200, b"x" * (17 << 20))}, "more than 16 MiB"),
        ({"verify": (422, "goal is missing")}, "answered 422 to /verify: goal is missing"),
        ({"verify": (500, "judge")}, "answered 500 to /verify: judge"),
        ({"add": (503, "busy")}, "answered 503"),
        ({"seed_session": (404, "")}, "has no /seed_session"),
    ],
)
def test_a_server_that_fails_is_an_error_of_the_rollout(served, rows, answers, error):
    (row,) = play(served(**answers), rows(ROW), [adding(3), "done"], message_timeout=0.2 if "0.2" in error else 30)
    assert row["reward"] is None
    assert error in row["error"]["message"]


def test_tools_on_an_mcp_server_alone_are_refused(served, rows):
    row = {**ROW, "responses_create_params": {"input": "count"}}
    (row,) = play(served(seed_session=(200, '{"mcp": {"url_path": "/mcp"}}')), rows(row), ["done"])
    assert "MCP server" in row["error"]["message"]


def test_a_server_that_comes_back_answers_the_retry(served, rows):
    server = served(verify=None)

    def answer(turn):
        if turn == 1 and len(server.counts) > 1:
            server.answers.clear()
        return adding(3) if turn == 0 else "done"

    env = whet.load_environment(f"nemo:{server.url}", dataset=rows(ROW))
    outputs = env.evaluate_sync(whet.ScriptedClient(answer), "m", max_retries=2)["outputs"]
    assert [(row["reward"], row["error"]) for row in outputs] == [(1.0, None)]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("junk", "line 2, is no row of NeMo-Gym"),
        ("[]", "line 2, is no row"),
        ({"goal": 1}, "responses_create_params"),
        ({"responses_create_params": {"input": []}}, "at least one message"),
        ({"responses_create_params": {"input": "x", "tools": [{"type": "web_search"}]}}, "only 'function'"),
    ],
)
def test_a_row_that_is_none_is_named_by_its_line(rows, line, error):
    with pytest.raises(DatasetError, match=error):
        whet.load_environment("nemo:http://localhost:1", dataset=rows(ROW, line))


@pytest.mark.parametrize(
    ("target", "arguments", "error"),
    [
        ("http://localhost:1", {}, "needs its rows"),
        ("ftp://localhost", {"dataset": "x"}, "should be nemo:http"),
        ("mcqa", {}, "the folder resources_servers/NAME"),
        ("http://localhost:1", {"dataset": "nowhere.jsonl"}, "cannot be read"),
        ("http://localhost:1", {"dataset": "x", "python": "python3"}, "takes no python"),
        ("http://localhost:1", {"dataset": "x", "message_timeout": 0}, "a number above 0"),
    ],
)
def test_a_wrong_argument_is_refused(target, arguments, error):
    with pytest.raises((ConfigError, DatasetError), match=error):
        whet.load_environment(f"nemo:{target}", **arguments)


def test_a_python_without_nemo_gym_is_named(tmp_path):
    folder = tmp_path / "resources_servers" / "counter"
    (folder / "data").mkdir(parents=True)
    (folder / "app.py").write_text("")
    (folder / "data" / "example.jsonl").write_text(json.dumps(ROW))
    env = whet.load_environment(f"nemo:{folder}")
    with pytest.raises(ConfigError, match=r"nemo-gym is not installed in .*; whet works with nemo-gym 0.4 or later"):
        env.evaluate_sync(whet.ScriptedClient(["done"]), "m")
