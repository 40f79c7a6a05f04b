"""A server of whet's own: it answers, says why it does not, and leaves nothing behind, however it or whet ends.

Most tests have a program in vLLM's place (`scripted_server.py`), since its processes are the subject.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from whet.errors import EngineError
from whet.inference.model_names import resolve_model
from whet.inference.vllm import guard
from whet.inference.vllm import server as server_module
from whet.inference.vllm.members import EXTENSION
from whet.inference.vllm.server import SERVED_NAME, VllmServer

pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(sys.platform != "linux", reason="whet starts vLLM servers on Linux alone"),
]
HERE = Path(__file__).parent
TINY = resolve_model("whet/tiny")
PATIENCE_S = 120.0
REAL_PATIENCE_S = 600.0
KINDS = ("server", "engine", "worker", "tracker", "all", "guard", "guard asked", "whet", "whet asked", "ctrl-c", "both")


PARENT_KINDS = ("whet", "whet asked", "ctrl-c", "both")
"""Kinds for which whet has to be another process."""


def wait(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


@dataclass
class Traces:
    """What there is of a running server, found without the code under test."""

    server: psutil.Process
    directory: Path
    shared: list[str]
    own_folders: bool = True  # whether a process is left that removes them

    @classmethod
    def of(cls, pid: int, directory: Path, shared: list[str]) -> Traces:
        assert shared
        assert all((guard.SHARED / name).exists() for name in shared)
        return cls(psutil.Process(pid), directory, shared)

    def __post_init__(self) -> None:
        self.guard = self.server.parent()
        self.tracker, self.engine = sorted(self.server.children(), key=lambda one: "spawn_main" in str(one.cmdline()))
        (self.worker,) = self.engine.children()
        self.processes = [self.guard, self.server, self.tracker, self.engine, self.worker]
        self.left: list[Any] = []

    def gone(self) -> bool:
        running = [one for one in self.processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        files = [name for name in self.shared if (guard.SHARED / name).exists()]
        self.left = [*running, *files, *(self.folders() if self.own_folders else [])]
        return not self.left

    def folders(self) -> list[str]:
        """What is in the server's directory but its log. It may be changing."""
        found = [[*folders, *files] for _, folders, files in os.walk(self.directory)]
        return [name for name in itertools.chain(*found) if not name.startswith("server.log")]


def is_of(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def shared_by(pid: int) -> list[str]:
    """Names of shared memory and semaphores that a real server's processes have mapped, by number."""
    numbers = set()
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            if f"{guard.SHARED}/" in line:
                numbers.add(int(line.split()[4]))
    return [entry.name for entry in os.scandir(guard.SHARED) if entry.inode() in numbers]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What takes the place of the Python that has vLLM."""
    program = tmp_path_factory.mktemp("scripted") / "python"
    program.write_text(f"#!{sys.executable}\n{(HERE / 'scripted_server.py').read_text()}")
    program.chmod(0o755)
    return program


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short of name."""
    return tmp_path_factory.mktemp("v") / "server"


@pytest.fixture
def started(scripted: Path, directory: Path) -> Iterator[Callable[..., VllmServer]]:
    """Starts a scripted server in this process: `started(FAIL="1")`."""
    servers = []

    def start(python: Path = scripted, ready_within_s: float = PATIENCE_S, **variables: str) -> VllmServer:
        environment = {"MADE": str(directory.parent / "made.json"), **variables}
        server = VllmServer(
            TINY,
            directory,
            name="engine-0",
            python=python,
            flags={},
            environment=environment,
            ready_within_s=ready_within_s,
        )
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def ready(server: VllmServer) -> Traces:
    """Its traces, once it answers."""
    asyncio.run(server.ready())
    assert server.pid is not None
    return Traces.of(server.pid, server.directory, json.loads((server.directory.parent / "made.json").read_text()))


def kill(kind: str, traces: Traces) -> None:
    """End a part of a server, or all of it but the guard."""
    parts = {"server": traces.server, "engine": traces.engine, "worker": traces.worker, "tracker": traces.tracker}
    if kind in parts:
        parts[kind].kill()
    elif kind == "all":
        os.killpg(traces.server.pid, signal.SIGKILL)
    elif kind == "guard":
        traces.guard.kill()
    elif kind == "guard asked":
        traces.guard.terminate()


class Parent:
    """Another process that starts a server, as whet does."""

    def __init__(self, directory: Path, python: Path, **arguments: Any) -> None:
        self.directory = directory
        given = {"model": str(TINY), "directory": str(directory), "python": str(python), **arguments}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "parent.py"), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        return json.loads(line)

    def traces(self, shared: Callable[[int], list[str]]) -> Traces:
        """Of its server, once that answers. `shared` finds names of shared memory."""
        pid = self.told()["server"]
        return Traces.of(pid, self.directory, shared(pid))

    def end(self, kind: str, traces: Traces | None = None) -> None:
        if kind == "both":  # whet and its guard: nothing is left that could remove folders
            assert traces is not None
            traces.own_folders = False
            self.process.kill()
            traces.guard.kill()
        elif kind == "ctrl-c":
            os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
        elif kind == "whet asked":
            self.process.terminate()
        else:
            self.process.kill()
        self.process.communicate()


def end_one(kind: str, scripted: Path, directory: Path, started: Callable[..., VllmServer]) -> None:
    """Start a scripted server, end it in this way, and wait until nothing of it is left."""
    if kind in PARENT_KINDS:
        made = directory.parent / "made.json"
        environment = {"MADE": str(made)}
        parent = Parent(directory, scripted, flags={}, environment=environment, extension=str(EXTENSION))
        traces = parent.traces(lambda pid: json.loads(made.read_text()))
        parent.end(kind, traces)
    else:
        server = started()
        traces = ready(server)
        wait(lambda: set(server.engine_pids) == {traces.engine.pid, traces.worker.pid})
        kill(kind, traces)
        if kind == "tracker":  # the server can do without it
            server.close()
        else:
            wait(lambda: not server.alive)
            assert server.failure()
    wait(traces.gone)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind(kind, scripted, directory, started) -> None:
    end_one(kind, scripted, directory, started)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind_twenty_times(kind, scripted, directory, started) -> None:
    for _ in range(20):
        end_one(kind, scripted, directory, started)


def test_a_server_that_is_stopped_has_not_failed_and_leaves_nothing(started) -> None:
    server = started()
    traces = ready(server)
    asyncio.run(server.stop())
    assert traces.gone(), traces.left
    assert not server.alive
    assert server.failure() is None


def test_a_server_that_is_deaf_to_sigterm_is_killed(started) -> None:
    server = started(IGNORE="1")
    traces = ready(server)
    server.close()
    assert traces.gone(), traces.left


def test_a_guard_that_stands_still_is_killed(started, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "STOP_S", 0.1)
    server = started()
    traces = ready(server)
    traces.guard.suspend()
    server.close()
    assert traces.gone(), traces.left


@pytest.mark.parametrize("part", ["server", "engine"])
def test_a_suspended_process_is_named(part, started, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "SUSPENDED_S", 0.2)
    server = started()
    traces = ready(server)
    process = getattr(traces, part)
    process.suspend()
    wait(lambda: server.failure() is not None)
    assert f"process {process.pid} of it" in (server.failure() or "")
    process.resume()
    wait(lambda: server.failure() is None)
    process.suspend()
    server.close()
    assert traces.gone(), traces.left


def test_a_server_cannot_do_without_its_engines_but_without_what_they_fork() -> None:
    names = {1: ("python", 0), 2: ("VLLM::EngineCor", 1), 3: ("VLLM::Worker_TP", 2), 4: ("VLLM::Worker_TP", 2)}
    forked = {5: ("VLLM::EngineCor", 2), 6: ("VLLM::Worker_TP", 4), 7: ("python", 3), 8: ("gcc", 2)}
    found = {pid: guard.ProcessLine(name, parent, 1, "0") for pid, (name, parent) in {**names, **forked}.items()}
    assert sorted(guard.engines(found)) == [2, 3, 4]


def test_a_failed_start_says_why_in_a_line_and_leaves_nothing(started, directory) -> None:
    server = started(FAIL="1")
    with pytest.raises(EngineError) as caught:
        asyncio.run(server.ready())
    assert "it exited with code 1: ValueError: 400 GiB are more than there is. Its output" in str(caught.value)
    assert os.listdir(directory) == ["server.log"]
    assert server.pid is not None
    assert not [one for one in psutil.process_iter() if is_of(one, server.pid)]
    made = json.loads((directory.parent / "made.json").read_text())
    assert not [name for name in made if (guard.SHARED / name).exists()]


def test_a_server_that_takes_too_long_is_named(started, tmp_path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 3600\n")
    sleeper.chmod(0o755)
    server = started(sleeper, ready_within_s=0.1)
    with pytest.raises(EngineError, match=r"engine-0: the vLLM server was not ready within 0\.1 s"):
        asyncio.run(server.ready())
    assert not server.alive
    assert server.pid is not None
    assert not psutil.pid_exists(server.pid)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be started: No such file"),
        (f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', "No module named 'vllm'"),
    ],
)
def test_a_python_without_vllm_is_named(started, tmp_path, content, words) -> None:
    python = tmp_path / "python"
    if content is not None:
        python.write_text(content)
        python.chmod(0o755)
    server = started(python)
    with pytest.raises(EngineError, match=words):
        asyncio.run(server.ready())


def test_a_path_too_long_for_sockets_is_refused(tmp_path, scripted) -> None:
    server = VllmServer(TINY, tmp_path / ("d" * 80), name="engine-0", python=scripted, flags={}, environment={})
    with pytest.raises(EngineError, match="too long a path"):
        server.start()


def test_only_this_user_can_connect_and_the_key_is_in_no_argument(started) -> None:
    server = started()
    traces = ready(server)
    for folder in (server.directory, server.socket.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.log.stat().st_mode) == 0o600
    assert not [one for one in traces.processes if server.key in " ".join(one.cmdline())]
    assert traces.server.environ()["VLLM_API_KEY"] == server.key


def test_shared_memory_of_others_stays(started, tmp_path) -> None:
    before = SharedMemory(create=True, size=4096)
    lent = guard.SHARED / f"whet-test-{os.getpid()}"
    lent.write_bytes(b"weights")
    try:
        server = started(LENT=str(lent))
        during = SharedMemory(create=True, size=4096)
        traces = ready(server)
        server.close()
        assert traces.gone(), traces.left
        for memory in (before, during):
            assert (guard.SHARED / memory.name).exists()
            memory.close()
            memory.unlink()
        assert lent.read_bytes() == b"weights"
    finally:
        lent.unlink()


def test_the_log_is_bounded(started, tmp_path) -> None:
    talker = tmp_path / "python"
    talker.write_text(f"#!/bin/sh\nhead -c {3 * guard.LOG_BYTES} /dev/zero\nexec sleep 3600\n")
    talker.chmod(0o755)
    server = started(talker)
    wait(lambda: Path(f"{server.log}.1").exists() and server.log.stat().st_size <= guard.LOG_BYTES)


def test_variables_of_whets_python_do_not_reach_the_servers(started, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "of another server")
    variables = ready(started()).server.environ()
    assert "PYTHONPATH" not in variables
    assert variables["VLLM_API_KEY"] != "of another server"
    assert variables["HF_HUB_OFFLINE"] == "1"


@pytest.fixture
def real_parent(vllm_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Parent]]:
    """Starts real servers in other processes."""
    parents = []

    def start(**flags: Any) -> Parent:
        parents.append(
            Parent(
                tmp_path_factory.mktemp("v") / "server",
                vllm_servers.python(),
                flags={**vllm_servers.FLAGS, **flags},
                environment=vllm_servers.ENVIRONMENT,
                extension=str(vllm_servers.EXTENSION),
                threads=1,
            )
        )
        return parents[-1]

    yield start
    for parent in parents:
        parent.end("whet")


@pytest.mark.timeout(2 * REAL_PATIENCE_S)
def test_nothing_of_a_real_server_is_left_behind(real_parent) -> None:
    """Of one whose whet is killed: a start takes 20 s of a core."""
    parent = real_parent()
    traces = parent.traces(shared_by)
    parent.end("whet")
    wait(traces.gone, REAL_PATIENCE_S)


@pytest.mark.long
@pytest.mark.timeout(10 * REAL_PATIENCE_S)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_real_server_is_left_behind_in_any_way(kind, real_parent) -> None:
    parent = real_parent()
    traces = parent.traces(shared_by)
    kill(kind, traces)
    if kind in ("tracker", *PARENT_KINDS):
        parent.end(kind, traces)
    wait(traces.gone, REAL_PATIENCE_S)


@pytest.mark.timeout(2 * REAL_PATIENCE_S)
def test_a_real_start_that_fails_names_the_cause(real_parent) -> None:
    parent = real_parent(**{"kv-cache-memory-bytes": "4000G"})
    why = parent.told()["error"]
    assert "kv cache" in why
    assert "4000" in why
    assert os.listdir(parent.directory) == ["server.log"]


def test_a_real_server_asks_for_its_key(vllm_server) -> None:
    transport = httpx.HTTPTransport(uds=str(vllm_server.socket))
    with httpx.Client(transport=transport, base_url="http://vllm") as client:
        assert client.get("/v1/models").status_code == 401
        answer = client.get("/v1/models", headers={"Authorization": f"Bearer {vllm_server.key}"})
    assert answer.json()["data"][0]["id"] == SERVED_NAME
    assert vllm_server.key not in vllm_server.log.read_text()
