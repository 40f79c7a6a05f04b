"""`whet eval run` as a person meets it: the real command in a real terminal, an endpoint that answers when told to."""

from __future__ import annotations

import json
import re
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = """
import whet

def right(completion, answer):
    return float(completion[-1]["content"] == answer)

def load_environment():
    rows = [{"question": f"say {number}", "answer": str(number)} for number in range(4)]
    return whet.SingleTurnEnv(eval_dataset=rows, rubric=whet.Rubric(funcs=[right]))
"""


class Endpoint:
    """Speaks OpenAI's chat completions. Each answer waits until the test lets one go: `answer(count)`."""

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.waiting.acquire()
                said = request["messages"][-1]["content"].removeprefix("say ")
                message = {"role": "assistant", "content": said if said != "3" else "\x1b[31mthree"}
                body = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": request["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
                }
                data = json.dumps(body).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # who asked has been stopped meanwhile

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, count: int) -> None:
        self.waiting.release(count)

    def close(self) -> None:
        self.answer(1000)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    opened = Endpoint()
    yield opened
    opened.close()


@pytest.fixture
def command(tmp_path: Path, endpoint: Endpoint) -> list[str]:
    """Two environments, four tasks of two rollouts each."""
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.py").write_text(ENVIRONMENT)
    endpoint_options = ["-m", "a-model", "-b", endpoint.url, "-k", "WHET_TEST_KEY"]
    return ["whet", "eval", "run", "./alpha.py", "./beta.py", "-n", "4", "-r", "2", "-c", "8", *endpoint_options]


KEY = {"WHET_TEST_KEY": "sesame"}


def test_two_evaluations_are_watched_switched_between_and_end_in_a_summary_and_reports(
    terminals: Any, endpoint: Endpoint, command: list[str], tmp_path: Path
) -> None:
    terminal = terminals.open(command, fresh=True, columns=100, rows=30, cwd=tmp_path, env=KEY)
    endpoint.answer(3)
    screen = terminal.wait_for(re.compile(r"2 evaluations .* 3/16 .*s sample", re.DOTALL))
    assert re.search(r"▸ \S*alpha\S* +3/8", screen)
    assert "tokens     21 in, 6 out" in screen
    terminal.send("\x1b[C")
    screen = terminal.wait_for(re.compile(r"▸ \S*beta"))
    terminal.wait_for(re.compile(r"beta\S* with a-model, default sampling: 4 tasks x 2 rollouts"))
    endpoint.answer(13)
    assert terminal.wait() == 0
    text = terminal.text()
    assert "0.750" in text
    assert "2 evaluations ━" not in text  # the summary has taken the live view's place
    assert b"\x1b[31mthree" not in terminal.raw
    assert terminal.settings()[3] & termios.ECHO
    assert not terminal.screen.cursor.hidden
    assert len(list(tmp_path.glob("outputs/evals/*/*/report.html"))) == 2


def test_ctrl_c_keeps_what_has_finished_and_says_how_to_go_on(
    terminals: Any, endpoint: Endpoint, command: list[str], tmp_path: Path
) -> None:
    terminal = terminals.open(command, columns=100, rows=30, cwd=tmp_path, env=KEY)
    endpoint.answer(3)
    terminal.wait_for(re.compile(r"3/16 .*s sample", re.DOTALL))
    terminal.send("\x03")
    assert terminal.wait() == 130
    assert "--resume" in terminal.text()
    assert "Traceback" not in terminal.text()
    assert terminal.settings()[3] & termios.ECHO
    assert not terminal.screen.cursor.hidden
    (results,) = tmp_path.glob("outputs/evals/alpha--a-model/*/results.jsonl")
    assert len(results.read_text().splitlines()) == 3
