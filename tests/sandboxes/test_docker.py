"""What docker is asked for, with a scripted program in its place, and the same with a real engine where one is given.

Set WHET_TEST_IMAGE to the name of an image that is on this machine, with a shell and tar in it, to run the latter:
tests download nothing. WHET_TEST_ENGINE is the program, docker or podman.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet.errors import SandboxError, SandboxFileError, SandboxUnavailableError
from whet.sandboxes import docker
from whet.sandboxes.docker import DockerBackend, DockerSandbox, exec_arguments, run_arguments
from whet.sandboxes.protocol import SandboxSpec

linux = pytest.mark.skipif(sys.platform != "linux", reason="the loopback of a container is served on Linux alone")


def scripted(folder: Path, script: str) -> str:
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{script}\n')
    program.chmod(0o755)
    return str(program)


def test_a_container_gets_every_limit() -> None:
    spec = SandboxSpec(
        image="img",
        cpus=0.5,
        memory_bytes=100,
        processes=7,
        disk_bytes=200,
        file_bytes=50,
        read_only={"/in": "/out"},
        writable=["/app"],
    )
    words = " ".join(run_arguments("box", spec))
    for wanted in (
        "--name box",
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--user 0:0",
        "--cpus 0.5",
        "--memory 100 --memory-swap 100",
        "--pids-limit 7",
        "--ulimit fsize=50",
        "--tmpfs /app:rw,nosuid,nodev,exec,size=200",
        "--volume /out:/in:ro",
        "--entrypoint sh img",
    ):
        assert wanted in words


def test_a_command_is_passed_word_by_word() -> None:
    args = exec_arguments("box", ["sh", "-c", "echo $X; rm -rf /"], "/tmp", {"X": "a b"})
    assert args == [
        "exec",
        "--interactive",
        "--user",
        "1000:1000",
        "--workdir",
        "/tmp",
        "--env",
        "X=a b",
        "box",
        "sh",
        "-c",
        "echo $X; rm -rf /",
    ]


def test_a_daemon_that_does_not_answer_says_how_to_start_it(tmp_path: Path) -> None:
    program = scripted(tmp_path, "echo 'Cannot connect to the daemon.' >&2; exit 1")
    with pytest.raises(SandboxUnavailableError, match=r"Cannot connect to the daemon\. Start it with: sudo systemctl"):
        asyncio.run(DockerBackend(program).check())


def test_unstarted_container_is_a_host_failure_and_removed(tmp_path: Path) -> None:
    program = scripted(tmp_path, 'if [ "$1" = run ]; then echo "no space left" >&2; exit 125; fi')
    with pytest.raises(SandboxError, match="did not start: no space left"):
        asyncio.run(DockerBackend(program).create(SandboxSpec()))
    assert "rm --force" in (tmp_path / "asked").read_text()


def test_commands_use_exec_and_close_removes_the_container(tmp_path: Path) -> None:
    program = scripted(tmp_path, 'if [ "$1" = exec ]; then cat; echo out; exit 3; fi')

    async def run() -> tuple[str, int | None]:
        async with await DockerBackend(program).create(SandboxSpec()) as sandbox:
            result = await sandbox.exec("anything", stdin=b"in ")
        return result.stdout, result.exit_code

    assert asyncio.run(run()) == ("in out\n", 3)
    assert [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == [
        "version",
        "ps",
        "run",
        "exec",
        "rm",
    ]


@pytest.mark.parametrize(
    ("user", "state", "limit"), [("", "false true", "memory"), ("root", "false false", "processes")]
)
def test_a_container_that_its_code_has_ended_is_a_code_failure(
    tmp_path: Path, user: str, state: str, limit: str
) -> None:
    dead = f'if [ "$1" = exec ]; then exit 137; fi; if [ "$1" = inspect ]; then echo "{state}"; fi'

    async def run() -> list[str | None]:
        async with await DockerBackend(scripted(tmp_path, dead)).create(SandboxSpec(user=user)) as sandbox:
            return [(await sandbox.exec("anything")).limit for _ in range(2)]

    assert asyncio.run(run()) == [limit, limit]
    assert "rm --force" in (tmp_path / "asked").read_text()


def test_only_containers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    names = f"whet-docker-{os.getpid()}-1 whet-docker-{2**22 + 1}-1 somebody-elses"
    program = scripted(tmp_path, f'if [ "$1" = ps ]; then printf "%s\\n" {names}; fi')
    asyncio.run(DockerBackend(program).check())
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line for line in asked if line.startswith("rm")] == [f"rm --force --volumes whet-docker-{2**22 + 1}-1"]
    assert f"label=whet.host={socket.gethostname()}" in asked[1]
    assert f"--label whet.host={socket.gethostname()}" in " ".join(run_arguments("box", SandboxSpec()))


def test_missing_container_is_a_host_failure(tmp_path: Path) -> None:
    script = 'case "$1" in exec) echo "Error: no such container" >&2; exit 125;; inspect) echo gone >&2; exit 1;; esac'
    program = scripted(tmp_path, script)

    async def run() -> None:
        async with await DockerBackend(program).create(SandboxSpec()) as sandbox:
            with pytest.raises(SandboxError, match="its container does not run any more"):
                await sandbox.exec("anything")

    asyncio.run(run())


def test_code_that_exits_like_an_engine_is_still_the_codes_failure(tmp_path: Path) -> None:
    script = 'case "$1" in exec) echo "Error: no such container" >&2; exit 125;; inspect) echo true;; esac'
    program = scripted(tmp_path, script)

    async def run() -> tuple[int | None, str | None]:
        async with await DockerBackend(program).create(SandboxSpec()) as sandbox:
            result = await sandbox.exec("anything")
            return result.exit_code, result.failed_by

    assert asyncio.run(run()) == (125, "code")


def test_names_of_files_cannot_pass_for_changed_paths(tmp_path: Path) -> None:
    lines = ["C /app", "A /app/x", "A usr/bin/bash", "/etc", "A /opt/tool/lib/deep", "no end" * 99]
    answer = f"printf '%s\\n' {' '.join(map(repr, lines))}"
    program = scripted(tmp_path, f'case "$1" in diff) {answer};; inspect) echo 0;; esac')

    async def run() -> set[str]:
        async with await DockerBackend(program).create(SandboxSpec(image="img", user="root")) as sandbox:
            return await sandbox.changed_paths()

    assert asyncio.run(run()) == {"/app", "/app/x", "/opt/tool"}


def test_paths_too_long_to_be_listed_are_the_codes_failure(tmp_path: Path) -> None:
    program = scripted(tmp_path, 'case "$1" in diff) echo "Error: lstat /d/d: file name too long" >&2; exit 125;; esac')

    async def run() -> None:
        async with await DockerBackend(program).create(SandboxSpec(image="img", user="root")) as sandbox:
            with pytest.raises(SandboxFileError, match="is too long to list"):
                await sandbox.changed_paths()

    asyncio.run(run())


@pytest.mark.parametrize("said", ["true 0", "true -1", "true 201"])
def test_a_disk_that_is_full_or_cannot_be_measured_ends_the_container(
    tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "DISK_CHECK_S", 0.01)
    program = scripted(tmp_path, f'case "$*" in "inspect --size"*) echo {said};; inspect*) echo "true false";; esac')

    async def run() -> None:
        spec = SandboxSpec(image="img", user="root", disk_bytes=200)
        async with await DockerBackend(program).create(spec) as sandbox:
            async with asyncio.timeout(30):
                while not sandbox.closed:
                    await asyncio.sleep(0.01)
            assert (await sandbox.exec("true")).limit == "file_size"

    asyncio.run(run())


@pytest.mark.parametrize("said", ["true 200", "false 0", "what"])
def test_a_disk_with_room_ends_nothing(tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "DISK_CHECK_S", 0.01)
    program = scripted(tmp_path, f'case "$*" in "inspect --size"*) echo {said};; esac')

    async def run() -> None:
        spec = SandboxSpec(image="img", user="root", disk_bytes=200)
        async with await DockerBackend(program).create(spec) as sandbox:
            while (tmp_path / "asked").read_text().count("inspect --size") < 3:
                await asyncio.sleep(0.01)
            assert not sandbox.closed

    asyncio.run(run())


@pytest.fixture
def web() -> Iterator[str]:
    """Address and port of a server of this machine that answers `here`."""

    class Here(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Here) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


@linux
def test_a_socket_that_a_second_container_opens_is_served_by_the_proxy(
    tmp_path: Path, web: str, held_port: int
) -> None:
    # The engine runs what it is asked for on this machine, where the port and the folder have other names.
    script = """case "$*" in
    *--rm*)
        while [ $# -gt 2 ]; do case "$2" in *:/channel) folder=${2%:/channel};; esac; shift; done
        python3 -c "$(printf %s "$2" | sed "s#/channel/#$folder/#; s#3128#PORT#")";;
    exec*) for last; do :; done; exec python3 -c 'FETCH' "$last";;
    esac"""
    program = scripted(tmp_path, script.replace("PORT", str(held_port)).replace("FETCH", FETCH))

    async def run() -> tuple[str, str, int]:
        spec = SandboxSpec(image="img", origin=web)
        async with await DockerBackend(program).create(spec) as sandbox:
            answers = [(await sandbox.exec([f"http://127.0.0.1:{held_port}{path}"])) for path in ("/", "/x")]
            assert sandbox.network is not None
            return answers[0].stdout, answers[1].stdout, sandbox.network.requests

    assert asyncio.run(run()) == ("here\n", "here\n", 2)
    asked = (tmp_path / "asked").read_text()
    assert "run --rm --name whet-docker-" in asked
    assert "--network none" in asked
    assert "--env HTTP_PROXY=http://127.0.0.1:3128" in asked


def test_a_socket_that_cannot_be_passed_is_a_host_failure(tmp_path: Path) -> None:
    program = scripted(tmp_path, 'case "$*" in *--rm*) echo "no such image" >&2; exit 125;; esac')
    with pytest.raises(SandboxError, match="its loopback cannot be served: no such image"):
        asyncio.run(DockerBackend(program).create(SandboxSpec(network=["pypi.org"])))
    assert "rm --force" in (tmp_path / "asked").read_text()


IMAGE = os.environ.get("WHET_TEST_IMAGE")
needs_engine = pytest.mark.skipif(IMAGE is None, reason="WHET_TEST_IMAGE names no image")
REAL = SandboxSpec(
    image=IMAGE, memory_bytes=64 << 20, disk_bytes=8 << 20, processes=20, output_bytes=10_000, lifetime_s=300
)


def inside(use: Callable[[DockerSandbox], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with await DockerBackend(os.environ.get("WHET_TEST_ENGINE")).create(REAL) as sandbox:
            return await use(sandbox)

    return asyncio.run(run())


@needs_engine
def test_a_real_container_outlives_the_commands_that_have_to_be_ended() -> None:
    async def use(sandbox: DockerSandbox) -> list[str | None]:
        limits = [(await sandbox.exec("sleep 123 & sleep 123", timeout_s=1)).limit, (await sandbox.exec("yes")).limit]
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        assert "123" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout
        return limits

    assert inside(use) == ["time", "output"]


@needs_engine
def test_a_real_container_keeps_to_its_limits_and_has_no_network() -> None:
    async def use(sandbox: DockerSandbox) -> None:
        assert (await sandbox.exec("id -u; cat /proc/net/dev | grep -c :")).stdout == "1000\n1\n"
        assert not (await sandbox.exec("touch /intruder || touch /etc/intruder")).ok
        assert "No space" in (await sandbox.exec("cat /dev/zero > $HOME/big; rm $HOME/big")).stderr
        assert not (await sandbox.exec("x=$(cat /dev/zero | tr '\\0' x | head -c 300000000)")).ok
        assert "fork" in (await sandbox.exec("i=0; while [ $i -lt 60 ]; do sleep 2 & i=$((i+1)); done")).stderr

    inside(use)


@needs_engine
def test_files_and_folders_go_into_a_real_container_and_come_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("data")

    async def use(sandbox: DockerSandbox) -> tuple[str, ...]:
        await sandbox.upload(tmp_path / "source", "folder")
        await sandbox.exec("ln -s /etc/passwd link", cwd="/home/user/folder")
        assert await sandbox.read("folder/file") == b"data"
        return await sandbox.download("folder", tmp_path / "copy")

    assert inside(use) == ("link",)
    assert (tmp_path / "copy" / "file").read_text() == "data"


@needs_engine
def test_a_real_container_reaches_the_hosts_that_are_named_and_its_origin(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "IMAGE", IMAGE)
    spec = replace(REAL, origin=web, network=(f"named.test={web}",), memory_bytes=256 << 20)

    async def run() -> list[str]:
        async with await DockerBackend(os.environ.get("WHET_TEST_ENGINE")).create(spec) as sandbox:
            limit = (await sandbox.exec("sleep 60", timeout_s=1)).limit
            addresses = ("http://127.0.0.1:3128/", f"http://named.test:{web.split(':')[1]}/", "http://other.test/")
            answers = [await sandbox.exec(["python3", "-c", FETCH, address]) for address in addresses]
            assert sandbox.network is not None
            return [str(limit), *((one.stdout or one.stderr).split()[-1] for one in answers)]

    assert asyncio.run(run()) == ["time", "here", "here", "Forbidden"]
