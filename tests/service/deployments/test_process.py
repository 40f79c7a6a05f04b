"""`whet service deployments` as a process: the SDKs of OpenAI and Anthropic, the commands, kills."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from whet.system.children import began

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

COMMAND = (sys.executable, "-m", "whet.cli.main", "service", "deployments", "--port", "0", "--threads", "1", "--data")
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
CLAUDE_TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def database_url() -> None:
    """SQLite: what differs on PostgreSQL is in the tests of this folder that start no process."""


class Process:
    """`whet service deployments` on a service's folder."""

    def __init__(self, service: Any) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*COMMAND, str(service.data)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "deployments at" in line:
                break
        self.url = self.lines[-1].split()[2].removesuffix(";").removesuffix("/v1")
        assert self.url.startswith("http://127.0.0.1:"), self.lines
        self.reading = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self.reading.start()

    def wait_for(self, service: Any, deployment: str, state: str = "ready") -> dict[str, Any]:
        """Until the API shows the deployment in a state; a test that waits in vain is ended by its time limit."""
        while True:
            found: dict[str, Any] = service.hub.ok("GET", f"/deployments/{deployment}", "ann")
            if found["state"] == state:
                return found
            assert self.process.poll() is None
            self.pause()

    def pause(self) -> None:
        threading.Event().wait(0.05)

    def children(self) -> list[tuple[int, str | None]]:
        """What it has started, each by its number and when it began."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        text = listed.read_text() if listed.exists() else ""  # Linux alone has it
        return [(int(pid), began(int(pid))) for pid in text.split()]

    def end(self, number: int = 15) -> int:
        """Send a signal, and wait until it and all that it started are gone; its exit code."""
        children = self.children()
        self.process.send_signal(number)
        code = self.process.wait(600)
        while any(started is not None and began(pid) == started for pid, started in children):
            self.pause()
        self.reading.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def process(service: Any) -> Iterator[Any]:
    """Starts the process, as often as it is called; none is left in the end."""
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(service))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(9)


@pytest.mark.parts
def test_sdks_of_openai_and_anthropic_work_unchanged(service: Any, deploying: Any, process: Any) -> None:
    made = service.deploy("ann", service.run(), name="a")
    running = process()
    shown = running.wait_for(service, made["id"])
    assert shown["url"] == f"{running.url}/v1"
    model, token = "whet/tiny:a", service.hub.tokens["ann"]
    hi: Any = deploying.QUESTION
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=token, max_retries=0) as client:
        assert [one.id for one in client.models.list()] == [model]
        greedy: dict[str, Any] = {"model": model, "max_tokens": 12, "temperature": 0}
        whole = client.chat.completions.create(messages=hi, **greedy)
        chunks = list(client.chat.completions.create(messages=hi, stream=True, **greedy))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == whole.choices[0].message.content
        assert whole.usage.completion_tokens > 0
        tools = client.chat.completions.create(messages=hi, tools=[TOOL], **greedy)
        assert tools.choices[0].message.role == "assistant"
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        used = [*hi, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "2"}]
        assert client.chat.completions.create(messages=used, tools=[TOOL], **greedy).model == model
        assert client.completions.create(prompt="abc", **greedy).choices[0].text is not None
        answer = client.responses.create(
            model=model, input="Reverse the text: abc", max_output_tokens=12, temperature=0
        )
        assert answer.output_text == whole.choices[0].message.content
    with anthropic.Anthropic(base_url=running.url, api_key=token, max_retries=0) as claude:
        asked: dict[str, Any] = {"model": model, "max_tokens": 12, "messages": hi, "extra_body": {"temperature": 0}}
        message = claude.messages.create(**asked)
        assert message.content[0].text == whole.choices[0].message.content
        with claude.messages.stream(**asked, tools=[CLAUDE_TOOL]) as stream:
            assert stream.get_final_message().usage.output_tokens > 0
    for key, model_asked, error in (
        ("whet_none", model, openai.AuthenticationError),
        (service.hub.tokens["eve"], model, openai.NotFoundError),
        (token, "whet/tiny:b", openai.NotFoundError),
    ):
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) as client, pytest.raises(error):
            client.chat.completions.create(messages=hi, model=model_asked)
    for key, claude_error in (
        ("whet_none", anthropic.AuthenticationError),
        (service.hub.tokens["eve"], anthropic.NotFoundError),
    ):
        with (
            anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0) as claude,
            pytest.raises(claude_error),
        ):
            claude.messages.create(**asked)
    assert running.end() == 0
    row = service.row(made["id"])
    assert row.requests == 8  # written at the end: nothing is lost where the process ends by itself
    assert service.hub.ok("GET", f"/deployments/{made['id']}", "ann")["url"] is None


@pytest.mark.parts
def test_a_second_process_on_the_same_folder_is_refused(service: Any, process: Any) -> None:
    process()
    second = subprocess.run([*COMMAND, str(service.data)], capture_output=True, text=True, check=False, timeout=600)
    assert second.returncode == 2
    assert "another process is serving the deployments of it" in second.stderr


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.parts), pytest.param(10, marks=pytest.mark.long)])
def test_after_kills_during_requests_all_is_ready_again_and_use_is_counted_at_most_once(
    kills: int, service: Any, deploying: Any, checkpoints: Path, process: Any
) -> None:
    run = service.run()
    ids = [service.deploy("ann", run, step=step)["id"] for step in (2, 4)]
    expected = {"whet/tiny:words-2": "merged_2", "whet/tiny:words-4": "merged_4"}
    right = {model: deploying.ids_of(checkpoints / name) for model, name in expected.items()}
    answered = 0
    for number in range(kills):
        running = process()
        if number == 1:  # a kill during an export
            ids.append(service.deploy("ann", service.run(kind="full"), name="whole")["id"])
        if number == kills - 1:
            service.hub.ok("DELETE", f"/deployments/{ids.pop(0)}", "ann")
            right.pop("whet/tiny:words-2")
        if number != 1:
            for deployment in ids:
                running.wait_for(service, deployment)
        answered += ask_until_killed(running, service.hub.tokens["ann"], right, number + 1, deploying.QUESTION)
        assert service.row(ids[0]).requests >= 0
    running = process()
    for deployment in ids:
        running.wait_for(service, deployment)
    shown = httpx.get(f"{running.url}/v1/models", headers={"x-api-key": service.hub.tokens["ann"]}, timeout=600).json()
    assert {one["id"] for one in shown["data"]} == {"whet/tiny:words-4", "whet/tiny:whole"}
    while {path.name for path in (service.data / "deployments").iterdir() if path.is_dir()} != set(ids):
        running.pause()  # what a kill kept from being removed is removed now
    assert running.end() == 0
    with service.database.read() as session:
        from sqlalchemy import select

        from whet.service.storage.tables import DeploymentRow, UsageDay

        rows = session.scalars(select(DeploymentRow)).all()
        days = session.scalars(select(UsageDay)).all()
    counted = sum(row.requests for row in rows)
    assert counted == sum(day.requests for day in days)
    assert 0 <= counted <= answered + 8 * kills  # those whose answers a kill cut off may be counted
    assert all(row.input_tokens >= 0 <= row.output_tokens for row in rows)
    assert not [
        path for one in ids for path in (service.data / "deployments" / one).iterdir() if path.name.startswith(".")
    ]


def ask_until_killed(running: Process, token: str, right: dict[str, list[int]], after: int, messages: Any) -> int:
    """Eight programs ask; the process is killed after some answers. How many were answered, all of them right."""
    done, wrong, lock, enough = 0, list[Any](), threading.Lock(), threading.Event()

    def work(number: int) -> None:
        nonlocal done
        models = list(right)
        with httpx.Client(base_url=running.url, headers={"x-api-key": token}, timeout=600) as client:
            for turn in itertools.count():
                model = models[(number + turn) % len(models)]
                body = {
                    "model": model,
                    "messages": messages,
                    "temperature": 0,
                    "max_tokens": 12,
                    "return_token_ids": True,
                }
                try:
                    answer = client.post("/v1/chat/completions", json=body)
                except httpx.TransportError:
                    return
                if answer.status_code == 503:  # it is not loaded yet
                    running.pause()
                    continue
                with lock:
                    done += 1
                    if answer.status_code != 200 or answer.json()["choices"][0]["token_ids"] != right[model]:
                        wrong.append(answer.text)
                    if done >= after:
                        enough.set()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    assert enough.wait(600)
    running.end(9)
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return done


def whet(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "whet.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)


@pytest.mark.parts
def test_commands_create_list_evaluate_and_delete(service: Any, process: Any, tmp_path: Path) -> None:
    running_module = sys.modules["hub_running"]
    run = service.run()
    process()
    with running_module.listening(service.hub.app) as hub:
        variables = {
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "WHET_HUB": hub,
            "WHET_HUB_TOKEN": service.hub.tokens["ann"],
        }
        made = whet("deployments", "create", run, "--name", "a", "--wait", **variables)
        assert made.returncode == 0, made.stderr
        url = next(line.split()[1] for line in made.stdout.splitlines() if line.startswith("base_url"))
        curl = next(line for line in made.stdout.splitlines() if line.startswith("curl"))
        assert f"{url}/chat/completions" in curl
        listed = json.loads(whet("deployments", "list", "--json", **variables).stdout)["deployments"]
        assert [(one["model"], one["state"]) for one in listed] == [("whet/tiny:a", "ready")]
        options = ("-n", "2", "-r", "1", "-T", "0", "-t", "12", "-o", str(tmp_path / "evals"), "--json")
        endpoint = ("-m", "whet/tiny:a", "-b", url, "-k", "WHET_HUB_TOKEN")
        evaluated = whet("eval", "run", "reverse-text", *endpoint, *options, **variables)
        assert evaluated.returncode == 0, evaluated.stderr
        assert json.loads(evaluated.stdout)["reward"] is not None
        deleted = whet("deployments", "delete", "whet/tiny:a", "-y", **variables)
        assert (deleted.returncode, deleted.stdout) == (0, "deleted whet/tiny:a\n")
        again = whet("deployments", "delete", "whet/tiny:a", "-y", **variables)
        assert again.returncode == 2
        assert "there is no deployment" in again.stderr
