"""A real service with a real run that leaks its secrets wherever it can: they are found nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.parts
LEAKY = Path(__file__).parents[2] / "security" / "leaky.py"
OWNER_SECRET = "canary-of-the-owner-3d1f"
RUN_SECRETS = {"LEAKY_FILE": 'canary-"of the run\\-77aa', "LEAKY_SERVICE": "canary-line-one-91c3\ncanary-line-two-91c3"}
FORMS = ("canary-of-the-owner", 'canary-"of', 'canary-\\"of', "of the run\\", "canary-line-one", "canary-line-two",
         "canary-&#34;of", "canary-&quot;of", "canary-%22of", "-77aa", "-91c3", "-3d1f")  # fmt: skip
CONFIG = """\
max_steps = 2
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-3
[sampling]
max_tokens = 6
[[env]]
id = "ann/leaky@1.0.0"
[env.args]
fails = {fails}
[eval]
num_examples = 2
before = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""
DEADLINE_S = 900.0


def found_in(data: bytes) -> list[str]:
    return [form for form in FORMS if form.encode() in data]


class Up:
    """`whet service up`, and requests of its users."""

    def __init__(self, folder: Path, asking: Any) -> None:
        self.data = folder / "service"
        command = [sys.executable, "-m", "whet.cli.main", "service", "up", "--data", str(self.data), "--port", "0"]
        command += ["--deployments-port", "0", "--isolation", "none", "--webhook-allow", "127.0.0.0/8", "--no-actions"]
        self.log = folder / "service.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)
        address = self._wait_for(r"service at ([^;\s]+)")
        self.address = address
        self.asking = asking(httpx.Client(base_url=address, timeout=600.0), self._wait_for(r"token.*: (whet_\S+)"))

    def _wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.log.read_text()):
                return match[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def submit(self, fails: bool) -> str:
        config = CONFIG.format(fails=str(fails).lower())
        body = {"key": secrets.token_hex(8), "owner": "ann", "name": "leaky", "kind": "training", "config": config}
        body |= {"environments": ["ann/leaky@1.0.0"], "secrets": RUN_SECRETS}
        return str(self.asking.ok("POST", "/runs", "ann", json=body)["id"])

    def ended(self, run: str) -> dict[str, Any]:
        """A run, waited for."""
        found: dict[str, Any] = {"state": ""}
        deadline = time.monotonic() + DEADLINE_S
        while found["state"] not in ("finished", "failed", "stopped") and time.monotonic() < deadline:
            time.sleep(0.1)
            found = self.asking.ok("GET", f"/runs/{run}", "ann")
            for process in self.processes():
                with contextlib.suppress(OSError):
                    assert found_in(process.read_bytes()) == [], (process.parent / "cmdline").read_bytes()
        return found

    def processes(self) -> list[Path]:
        """Command lines and variables of the service's processes, and of no run."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = not words[0].startswith(
                    str(self.data / "environments")
                )  # a run has the Python of its environments
                if str(self.data) in " ".join(words) and ours:
                    found += [path for path in (process / "cmdline", process / "environ") if os.access(path, os.R_OK)]
        return found

    def pages(self) -> dict[str, str]:
        """A session's cookie."""
        origin = {"Origin": self.address}
        form = {"token": self.asking.tokens["ann"]}
        answer = self.asking.client.post("/login", data=form, headers=origin, follow_redirects=False)
        assert answer.status_code == 303
        return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}

    def end(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


@pytest.fixture
def up(tmp_path: Path, serving: Any) -> Iterator[Up]:
    found = Up(tmp_path, serving.Asking)
    yield found
    found.end()


def everything(up: Up, run: str, app: Any, fuzzing: Any) -> Iterator[tuple[str, httpx.Response]]:
    """Every answer to a GET that is about the run, by token and by session."""
    named = {"owner": "ann", "user": "ann", "name": "leaky", "package": "leaky", "version": "1.0.0", "path": "leaky.py"}
    values = {**named, "run": run, "number": "0", "step": "1", "key": "K", "kind": "wheel"}
    cookie = up.pages()
    token = {"Authorization": f"Bearer {up.asking.tokens['ann']}"}
    for route in fuzzing.routes_of(app):
        if route.method != "GET" or route.path.endswith("/events"):
            continue
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: values.get(match[1], "0" * 16), route.path)
        query = "?owner=ann" if "owner" in route.queries else ""
        credentials = token if path.startswith(("/api", "/index", "/files")) else cookie
        yield path, up.asking.client.get(path + query, headers=credentials, follow_redirects=False)


def test_secrets_of_a_run_are_nowhere_but_in_the_run(
    up: Up, tmp_path: Path, serving: Any, packages: Any, fuzzing: Any, receive: Any
) -> None:
    receiver = receive()
    asking = up.asking
    asking.user("ann")
    wheel = packages.Wheel(name="leaky", code=LEAKY.read_text())
    assert asking.push("ann", "ann", wheel).status_code == 201
    asking.ok("PUT", "/secrets/ann/LEAKY_API_KEY", "ann", json={"value": OWNER_SECRET})
    hook = {"owner": "ann", "url": f"http://127.0.0.1:{receiver.port}/", "events": ["run.finished", "run.failed"]}
    signing = asking.ok("POST", "/webhooks", "ann", json=hook)["secret"]
    refused = serving.CONFIG + f"# {RUN_SECRETS['LEAKY_SERVICE'].splitlines()[0]}\n"
    body = {"key": secrets.token_hex(8), "owner": "ann", "name": "x", "kind": "training", "config": refused,
            "secrets": {"KEY": RUN_SECRETS["LEAKY_SERVICE"].splitlines()[0]}}  # fmt: skip
    answer = asking.ask("POST", "/runs", "ann", json=body)
    assert (answer.status_code, found_in(answer.content)) == (422, [])
    submitted = [up.submit(fails=False), up.submit(fails=True)]
    finished, failed = map(up.ended, submitted)
    assert (finished["state"], failed["state"]) == ("finished", "failed"), (finished, failed, up.log.read_text())
    assert found_in(json.dumps([finished, failed]).encode()) == []
    texts = (up.data / "runs" / finished["id"] / "run" / "rollouts" / "step_000001.jsonl").read_text()
    for name in (*RUN_SECRETS, "LEAKY_API_KEY"):  # they were there, and are named
        assert f"[{name}]" in texts
    deadline = time.monotonic() + DEADLINE_S
    while len({one.body for one in receiver.requests}) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {json.loads(one.body)["event"] for one in receiver.requests} == {"run.finished", "run.failed"}
    for one in receiver.requests:
        assert found_in(one.body.encode() + str(one.headers).encode()) == []
    statuses: dict[int, int] = {}
    with serving.running_service(tmp_path / "routes") as other:
        for run in (finished["id"], failed["id"]):
            for path, answer in everything(up, run, other.app, fuzzing):
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                told = answer.content + str(answer.headers).encode()
                assert found_in(told) == [], path
                assert signing.encode() not in told, path
    assert statuses[200] > 20
    assert asking.ok("GET", "/audit/verification", "hub-admin")["intact"] is True
    up.end()
    kept = [path for path in up.data.rglob("*") if path.is_file()]
    assert len(kept) > 30
    for path in (*kept, up.log):
        data = path.read_bytes()
        assert found_in(data) == [], path
        assert signing.encode() not in data, path
    memory = Path("/dev/shm")
    if memory.is_dir():
        left = [path for path in memory.glob("whet-secrets-*") if path.is_file() and os.access(path, os.R_OK)]
        assert [path for path in left if found_in(path.read_bytes())] == []
