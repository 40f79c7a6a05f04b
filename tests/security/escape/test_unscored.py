"""Losing rollouts that try to become errors: an error leaves the mean and is attempted again, a reward of 0 is not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import whet
from whet.sandboxes.bubblewrap import backend as bubblewrap
from whet.sandboxes.bubblewrap import cgroups
from whet.sandboxes.bubblewrap import command as bubblewrap_command
from whet.sandboxes.pool import shared_pool

pytestmark = [pytest.mark.parts, pytest.mark.usefixtures("bubblewrap")]
TASK = [{"question": "q", "answer": "a"}]
needs_memory_groups = pytest.mark.skipif(
    "memory" not in cgroups.available(), reason="this user may not make control groups for memory"
)
PYTHON = "python3 - <<'END'\nimport os, time\n{}\nEND"
PROGRAMS = {
    "fills the disk": "head -c 1G /dev/zero > /tmp/full; head -c 1G /dev/zero >> full; cat /dev/zero > rest",
    "makes empty files": PYTHON.format("for n in range(1 << 20): os.close(os.open(f'/tmp/{n}', os.O_CREAT))"),
    "makes short links": PYTHON.format("for n in range(1 << 20): os.symlink('x' * 100, f'/tmp/{n}')"),
    "makes long names": PYTHON.format("for n in range(1 << 20): os.mkdir(f'/tmp/{n:0200}')"),
    "makes hard links": PYTHON.format("open('a', 'w')\nfor n in range(1 << 20): os.link('a', f'/tmp/{n:0200}')"),
    "writes attributes": PYTHON.format(
        "for n in range(1 << 20):\n    open(f'/tmp/{n}', 'w')\n    os.setxattr(f'/tmp/{n}', 'user.a', b'x' * 4000)"
    ),
    "fills shared memory": "cat /dev/zero > /dev/shm/full",
    "has every process": PYTHON.format("while True:\n    try: os.fork()\n    except OSError: time.sleep(100)") + " &",
    "uses up the memory": PYTHON.format("kept = []\nwhile True: kept.append(bytearray(1 << 20))"),
    "uses up the memory behind": PYTHON.format(
        "kept = [os.fork() for _ in range(4)]\nwhile True:\n    try: kept.append(bytearray(1 << 16))\n"
        "    except MemoryError: time.sleep(0.01)"
    )
    + " &",
    "puts a folder where the file belongs": "mkdir -p input.txt/x",
    "puts a pipe where the file belongs": "mkfifo result.txt",
    "puts an endless file where the result belongs": "ln -s /dev/zero result.txt",
    "leaves no result": "true",
    "locks its home": "chmod 000 . /tmp",
    "ends everything that it can": "kill -9 -1",
    "stops its supervisor": "kill -STOP $PPID",
}


class Graded(whet.SandboxEnv):
    """Puts a file into the model's sandbox at the end, runs a command there and reads a file, as environments do."""

    def __init__(self) -> None:
        rubric = whet.Rubric(funcs=[self.right])
        super().__init__(
            dataset=TASK,
            rubric=rubric,
            memory_gb=0.25,
            disk_size_gb=0.125,
            timeout_per_command_seconds=8,
        )

    async def post_rollout(self, state: whet.State) -> None:
        sandbox = state["sandbox_id"]
        await self.sandbox_client.upload_bytes(sandbox, "/home/user/input.txt", b"7\n")
        await self.sandbox_client.execute_command(sandbox, "python3 -c 'print(6 * 7)' > sum.txt", timeout=8)
        state["result"] = (await self.sandbox_client.read_file(sandbox, "/home/user/result.txt")).content

    def right(self, state: whet.State) -> float:
        return float(state["result"] == "42\n")


def reward(env: whet.Environment, calls: list[Any]) -> tuple[float | None, Any]:
    async def run() -> whet.State:
        state = await env.rollout(env.get_dataset()[0], whet.ScriptedClient([*calls, "done"]), "m", {})
        await env.rubric.score_group([state])
        return state

    state = asyncio.run(run())
    assert shared_pool_is_empty()
    return state["reward"], state["error"]


def shared_pool_is_empty() -> bool:
    async def leased() -> int:
        return shared_pool().leased

    return asyncio.run(leased()) == 0


def call(tool: str, **arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "name": tool, "arguments": json.dumps(arguments)}]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rollout_that_breaks_its_sandbox_earns_nothing_and_is_scored(name: str) -> None:
    assert reward(Graded(), [call("bash", command=PROGRAMS[name])]) == (0.0, None)


def test_a_rollout_that_does_its_task_is_rewarded() -> None:
    assert reward(Graded(), [call("bash", command="echo 42 > result.txt")]) == (1.0, None)


@needs_memory_groups
@pytest.mark.parametrize("tool", ["bash", "python"])
def test_a_rollout_whose_first_process_died_for_memory_is_scored(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for more files than the memory holds."""
    for module in (bubblewrap, bubblewrap_command):
        monkeypatch.setattr(module, "room", lambda spec, grouped: bubblewrap_command.StorageLimit(1 << 40, 1 << 24))
    fill = "cat /dev/zero > /tmp/full"
    if tool == "bash":
        env: whet.Environment = Graded()
        calls = [call("bash", command=fill)] * 3
    else:
        rubric = whet.Rubric(funcs=[lambda completion: 0.0])
        env = whet.PythonEnv(dataset=TASK, rubric=rubric, pip_install_packages="", memory_gb=0.25, disk_size_gb=64)
        calls = [call("python", code=f"import os; os.system({fill!r})")] * 3
    assert reward(env, calls) == (0.0, None)
