"""`whet service up`: parts are started, started again, and end with it, however it ends; runs do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx

from whet.runs.process import began

pytestmark = pytest.mark.parts
OPTIONS = ("--port", "0", "--no-actions", "--isolation", "none", "--deployments-port", "0")
PATIENCE_S = 120.0


class Up:
    """A running `whet service up`; `lines` are what it said."""

    def __init__(self, data: Path, *more: str) -> None:
        command = [sys.executable, "-m", "whet.cli.main", "service", "up", "--data", str(data), *OPTIONS, *more]
        self.data = data
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def said(self, text: str, times: int = 1) -> str:
        """Wait for a line; returns it."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._with(text)) >= times, PATIENCE_S), self.lines
            return self._with(text)[times - 1]

    def _with(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]

    @property
    def address(self) -> str:
        return self.said("service at ").split()[2].rstrip(";")

    @property
    def token(self) -> str:
        return self.said("shown only now").split()[-1]

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, f"{self.address}/api/v1{path}", headers=headers, timeout=PATIENCE_S, **more)

    def parts(self) -> dict[str, int]:
        """The processes that it started, by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                words = _words(entry)
                if str(self.data) in words and "service" in words and "up" not in words:
                    found[words[words.index("service") + 1]] = int(entry.name)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def _words(entry: Path) -> list[str]:
    try:
        return entry.joinpath("cmdline").read_text().split("\0")
    except OSError:
        return []


def until(condition: Callable[[], Any]) -> Any:
    """The value of a condition as soon as it has one."""
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.1)):
        if found := condition():
            return found
        tick.wait(0.1)
    raise AssertionError("it did not happen")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts `whet service up` on the test's folder; none is left in the end."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("processes are looked for in /proc, which is not here")
    started = []

    def start(*more: str) -> Up:
        started.append(Up(tmp_path / "service", *more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)
    for one in started:
        until(lambda one=one: not one.parts())


def test_parts_start_are_started_again_and_end_with_a_signal(up: Any) -> None:
    first = up()
    assert httpx.get(f"{first.address}/login").status_code == 200
    first.said("runner ")
    assert first.ask("GET", "/runners").json()["items"][0]["state"] == "alive"
    again = subprocess.run(first.process.args, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (again.returncode, "runs on" in again.stderr) == (2, True)
    parts = first.parts()
    assert sorted(parts) == ["api", "runner"]
    os.kill(parts["api"], signal.SIGKILL)
    assert first.ask("GET", "/whoami").status_code == 200  # the connection waits for the next one
    first.said("api ended (code -9)")
    os.kill(parts["runner"], signal.SIGKILL)
    first.said("runner ended (code -9)")
    first.said("Ctrl-C stops it, its runs go on", times=2)
    assert first.end(signal.SIGINT) == 0
    assert first.parts() == {}
    assert not any("Traceback" in line for line in first.lines)
    second = up()
    assert httpx.get(f"{second.address}/login").status_code == 200
    assert not any("shown only now" in line for line in second.lines)
    assert second.end() == 0


def test_kill_of_up_leaves_no_part(up: Any) -> None:
    first = up()
    assert first.address
    first.said("runner ")
    parts = first.parts()
    assert sorted(parts) == ["api", "runner"]
    began_at = {pid: began(pid) for pid in parts.values()}
    assert first.end(signal.SIGKILL) == -9
    until(lambda: all(began(pid) != at for pid, at in began_at.items()))
    second = up()
    assert httpx.get(f"{second.address}/login").status_code == 200


def test_port_that_is_taken_and_data_of_another_api_are_refused(up: Any, tmp_path: Path) -> None:
    first = up()
    port = first.address.rpartition(":")[2]
    command = [sys.executable, "-m", "whet.cli.main", "service", "up", "--data", str(tmp_path / "other")]
    taken = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (taken.returncode, "Choose another --port" in taken.stderr) == (2, True)
    api = [sys.executable, "-m", "whet.cli.main", "service", "api", "--data", str(first.data), "--port", "0"]
    done = subprocess.run(api, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, "another hub runs on" in done.stderr) == (2, True)


def test_sample_run_finishes_and_outlives_the_service(up: Any) -> None:
    first = up("--sample")
    first.said("the sample run is in the queue")
    [run] = first.ask("GET", "/runs").json()["items"]
    identity = first.data / "runs" / run["id"] / "attempts" / "1" / "attempt.json"
    until(identity.exists)
    token, process = first.token, json.loads(identity.read_text())
    assert first.end() == 0
    assert process
    second = up()
    second.lines.append(f"administrator's token, shown only now: {token}\n")
    until(lambda: second.ask("GET", f"/runs/{run['id']}").json()["state"] == "finished")
    found = second.ask("GET", f"/runs/{run['id']}").json()
    assert (found["attempt"], found["step"], len(found["attempts"])) == (1, 8, 1)
    assert second.ask("GET", "/audit/verification").json()["intact"] is True
