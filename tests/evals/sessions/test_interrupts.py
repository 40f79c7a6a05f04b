"""Ctrl-C, SIGTERM and SIGKILL, as the system sends them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whet.errors import EndpointError
from whet.evals.sessions.session import EvaluationsInterrupted


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_what_has_finished_is_saved_and_can_be_gone_on_with(
    room: Any, model: Any, workers: int, number: signal.Signals
) -> None:
    say, asked = model.script, []

    async def interrupt(**offered: Any) -> str:
        asked.append(offered)
        if len(asked) == 5:
            os.kill(os.getpid(), number)
        if len(asked) >= 5:
            await asyncio.sleep(3600)
        answer: str = say(**offered)
        return answer

    model.script = interrupt
    config = room.config(workers=workers, max_concurrent=workers, env_args={"tasks": 30})
    with pytest.raises(EvaluationsInterrupted) as interrupted:
        room.run(config, room.config(temperature=0.5))
    first, second = interrupted.value.unfinished
    assert interrupted.value.exit_code == 128 + number
    assert (first.saved, second.saved, second.directory) == (len(room.rows()), 0, None)
    assert first.saved == 4 if workers == 1 else 2 <= first.saved <= 4  # some were on their way from a worker
    assert room.metadata()["state"] == "interrupted"
    said = str(interrupted.value)
    assert f"{first.saved} of 10 rollouts of {room.environment} with whet/tiny are saved in {first.directory}" in said
    assert f"{room.environment} with whet/tiny had not begun" in said
    assert said.endswith("continue with the same command and --resume")
    model.script = say
    room.begun()
    (summary,) = room.run(config.model_copy(update={"resume": first.directory}))
    assert (summary.rollouts, len(room.begun())) == (10, 10 - first.saved)
    assert room.metadata()["state"] == "finished"


def test_an_endpoint_that_turns_us_away_ends_the_session_and_what_was_paid_for_is_kept(room: Any, model: Any) -> None:
    say = model.script

    def refuse(prompt: Any, **offered: Any) -> str:
        if prompt[-1]["content"] == "say 2":
            raise EndpointError("no quota left")
        return say(prompt=prompt, **offered)

    model.script = refuse
    with pytest.raises(EndpointError, match="no quota left"):
        room.run(room.config(max_concurrent=1))
    assert len(room.rows()) == 4
    assert room.metadata()["state"] == "interrupted"
    assert room.seen.notes[1:] == [
        f"4 of 6 rollouts of {room.environment} with whet/tiny are saved in {room.directory()}",
        f"continue with the same command and --resume={room.directory()}",
    ]


PROGRAM = """
import sys
import whet.inference.loading
from whet.clients.scripted import ScriptedClient

class Engine:
    async def close(self): ...

class Policy:
    client, engine = ScriptedClient(lambda prompt: prompt[-1]["content"][4:]), Engine()

whet.inference.loading.load_policy = lambda model, **settings: Policy()
from whet.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Command:
    """`whet eval run` in a process group of its own, as a shell starts it."""

    def __init__(self, room: Any, workers: int) -> None:
        config = room.config(env_args={"tasks": 8})
        arguments = ["eval", "run", str(room.environment), "-n", "8", "-r", "1", "-c", "4", "-w", str(workers)]
        arguments += ["-a", str(config.env_args).replace("'", '"'), "-o", str(config.output_directory)]
        self.room = room
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
        )  # fmt: skip

    def wait_for(self, begun: int) -> None:
        file = self.room.folder / "begun"
        until = time.monotonic() + 120
        while not file.exists() or len(file.read_text().split()) < begun:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.01)

    def wait_for_rows(self, count: int) -> None:
        until = time.monotonic() + 120
        while len(self.room.rows()) < count:
            assert time.monotonic() < until
            time.sleep(0.01)

    def workers(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [
            int(pid) for pid in text.split() if b"whet.rollouts.workers" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, said


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + 120
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ctrl_c_says_how_to_go_on_without_a_traceback_and_leaves_no_worker_behind(room: Any) -> None:
    room.order("wait", 2, 5)
    command = Command(room, workers=2)
    command.wait_for(begun=8)
    command.wait_for_rows(6)
    workers = command.workers()
    assert len(workers) == 2
    command.ctrl_c()
    code, said = command.end()
    assert code == 130
    assert "Traceback" not in said
    assert f"6 of 8 rollouts of {room.environment} with whet/tiny are saved in {room.directory()}" in said
    assert f"continue with the same command and --resume={room.directory()}" in said
    assert not any(map(is_running, workers))
    assert len(room.rows()) == 6


def test_a_second_ctrl_c_ends_at_once(room: Any) -> None:
    room.order("wait", 2)
    room.order("wait_at_the_end", 2)
    command = Command(room, workers=1)
    command.wait_for(begun=8)
    command.ctrl_c()
    until = time.monotonic() + 120
    while not (room.folder / "waiting_at_the_end").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    command.ctrl_c()
    code, said = command.end()
    assert code == 130
    assert "Traceback" not in said


def test_workers_end_when_their_session_is_killed_and_nothing_that_was_saved_is_lost(room: Any) -> None:
    room.order("wait", 2, 5)
    command = Command(room, workers=2)
    command.wait_for(begun=8)
    command.wait_for_rows(6)
    workers = command.workers()
    command.process.kill()
    command.end()
    wait_until_gone(workers)
    assert room.metadata()["state"] == "running"
    room.order("wait")
    room.begun()
    config = room.config(
        env_args={"tasks": 8}, num_examples=8, rollouts_per_example=1, resume=room.directory(), workers=1
    )
    (summary,) = room.run(config)
    assert (summary.rollouts, summary.errors, sorted(room.begun())) == (8, 0, [2, 5])
