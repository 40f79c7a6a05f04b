"""Jobs whose states are awaited, in real worker processes: permits, cancellation, deaths."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.clients.client import Client
from whet.rl.loop.group_runner import TrainingEnv, environment_workers
from whet.rl.plan import training_env
from whet.rl.sections.training import TrainingEnvConfig
from whet.rollouts.jobs import RolloutJob, RolloutRecipe
from whet.rollouts.limits import SharedLimit
from whet.rollouts.workers.pool import WorkerPool
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.system import cancellation
from whet.types import Response, ResponseMessage, ResponseTokens, Usage

SLOW = """
import asyncio
from pathlib import Path
import whet

HERE = Path(__file__).parent

async def reward(completion, info, **kwargs):
    if info["n"] != 1:
        return 1.0
    (HERE / "begun").touch()
    try:
        await asyncio.sleep(600)
    finally:
        (HERE / "cleaned").touch()

def load_environment():
    rows = [{"question": f"Say {i}", "answer": str(i), "info": {"n": i}} for i in range(3)]
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric(funcs=[reward]))
"""


class Policy(Client[None, Any, Any, Any]):
    """Says the same each time, with tokens; counts how many are asked at once. The first answer when `meet` are."""

    def __init__(self, meet: int = 1) -> None:
        super().__init__(None)
        self.meet, self.met = meet, asyncio.Event()
        self.now = self.most = 0
        self.released: list[str] = []

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Response:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.meet:
            self.met.set()
        await self.met.wait()
        await asyncio.sleep(0.01)
        self.now -= 1
        message = ResponseMessage("ok", finish_reason="stop", tokens=ResponseTokens([1, 2], [3], [-0.5], [[0, 1]]))
        return Response(id="p", model=model, message=message, usage=Usage(2, 1))

    async def release(self, state: Any) -> None:
        self.released.append(state["trajectory_id"])


ELSEWHERE = """
import json, socket, sys
sys.path[:] = json.loads(sys.argv[1])
from whet.rollouts.workers.process import serve
serve(socket.create_connection(("127.0.0.1", int(sys.argv[2]))))
"""


class Elsewhere:
    """A `Starter`: a worker that connects to the session over TCP, as from another host."""

    fate = "gone"

    def __init__(self, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(60)
            port = str(listening.getsockname()[1])
            self._process = subprocess.Popen([sys.executable, "-c", ELSEWHERE, json.dumps(sys.path), port])
            self.socket, _ = listening.accept()
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None: ...


@pytest.fixture
def pool_of(tmp_path: Path) -> Callable[..., WorkerPool]:
    module = tmp_path / f"slow_{zlib.crc32(str(tmp_path).encode())}.py"
    module.write_text(SLOW)

    def make(policy: Policy, notes: list[str], start: Starter = LocalProcess) -> WorkerPool:
        section = TrainingEnvConfig(id=str(module))
        env: TrainingEnv = training_env(section)
        recipe = RolloutRecipe("m", {"temperature": 1.0}, seed=(0,))
        return environment_workers(
            [section], [env], policy, recipe, notes.append, workers=2, max_concurrent=8, in_order=False, start=start
        )

    return make


def job(task: int, name: int, rollouts: int = 4) -> RolloutJob:
    return RolloutJob(0, task, tuple(range(rollouts)), name, 0.5, whole=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


def test_permits_are_those_of_the_callers_limit_and_states_have_seeds_and_tokens(pool_of: Any) -> None:
    async def work() -> None:
        policy, permits = Policy(meet=3), SharedLimit()
        async with pool_of(policy, []) as pool:
            groups = await asyncio.gather(*(pool.run(job(0, name), permits.up_to(3)) for name in range(4)))
        assert policy.most == 3
        assert permits.taken == 0
        assert [state["trajectory_id"] for state in groups[2]] == ["2-0", "2-1", "2-2", "2-3"]
        assert len({state["sampling_args"]["seed"] for group in groups for state in group}) == 16
        assert {state["sampling_args"]["temperature"] for group in groups for state in group} == {0.5}
        assert groups[0][0]["trajectory"][0]["tokens"]["completion_ids"] == [3]
        assert sorted(policy.released) == sorted(state["trajectory_id"] for group in groups for state in group)

    cancellation.run(work())


def test_workers_over_tcp_give_the_same_states(pool_of: Any) -> None:
    async def work(start: Starter) -> list[Any]:
        notes: list[str] = []
        async with pool_of(Policy(), notes, start) as pool:
            groups = await asyncio.gather(*(pool.run(job(0, name), SharedLimit().up_to(8)) for name in range(3)))
        assert notes == []
        return [(state["sampling_args"], state["trajectory"][0]["tokens"]) for group in groups for state in group]

    assert cancellation.run(work(Elsewhere)) == cancellation.run(work(LocalProcess))


def test_a_cancelled_job_is_cancelled_in_its_worker_and_the_worker_stays(pool_of: Any, tmp_path: Path) -> None:
    async def work() -> None:
        notes: list[str] = []
        permits = SharedLimit()
        async with pool_of(Policy(), notes) as pool:
            running = asyncio.ensure_future(pool.run(job(1, 0), permits.up_to(8)))
            await until((tmp_path / "begun").exists)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert running.cancelled()
            assert (tmp_path / "cleaned").exists()
            assert len(await pool.run(job(0, 1), permits.up_to(8))) == 4
        assert notes == []
        assert permits.taken == 0

    cancellation.run(work())


def test_a_job_whose_worker_is_killed_while_it_waits_is_run_again_and_answers_once(
    pool_of: Any, tmp_path: Path
) -> None:
    async def work() -> None:
        notes: list[str] = []
        permits = SharedLimit()
        async with pool_of(Policy(), notes) as pool:
            slow = asyncio.ensure_future(pool.run(job(1, 0), permits.up_to(8)))
            await until((tmp_path / "begun").exists)
            (tmp_path / "begun").unlink()
            (victim,) = {child.pid for child in pool._children.values() if child.given}
            os.kill(victim, signal.SIGKILL)
            assert len(await pool.run(job(2, 1), permits.up_to(8))) == 4
            await until((tmp_path / "begun").exists)
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        assert len(notes) == 1
        assert "killed by SIGKILL" in notes[0]
        assert "rollouts are run again" in notes[0]
        assert permits.taken == 0

    cancellation.run(work())
