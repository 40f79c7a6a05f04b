"""A runner on a folder of its own, driven by tests look by look, with runs that are real processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whet.hub.domain.cipher import Cipher
from whet.hub.storage.store import FileStore
from whet.service.runner import isolation
from whet.service.runner.folders import AttemptFolder, RunFolder, read_object
from whet.service.runner.machine import Machine
from whet.service.runner.preparing import Workshop
from whet.service.runner.runner import RunRunner

DEADLINE_S = 600.0
"""No test is about time: this ends one that hangs."""
GIB = 1 << 30


TRAINING = """
name = "mine"
max_steps = 3
batch_size = 8
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 8
[[env]]
id = "reverse-text"
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""
EXAMPLE = Path(__file__).parents[3] / "environments" / "reverse_text"


def machine(host: str = "box", boot: str = "boot", cores: float = 4.0) -> Machine:
    return Machine(host, boot, cores, 64 * GIB, ())


class Working:
    """The queue `queue` (tests/service/queued.py) with runners on `data`."""

    def __init__(self, queue: Any, data: Path, apart: isolation.Isolation = isolation.NONE) -> None:
        self.queue, self.data, self.apart = queue, data, apart
        self.runners: list[RunRunner] = []

    def workshop(self, command: Any = None, **more: Any) -> Workshop:
        """`command` is the seam: a shell script, or what makes the words of a run's process; None: whet itself."""
        made = command
        if isinstance(command, str):
            made = lambda python, job, folder: ["/bin/sh", "-c", command]  # noqa: E731
        stores = FileStore(str(self.data / "blobs")), FileStore(str(self.data / "files"))
        return Workshop(self.data, *stores, more.pop("apart", self.apart), command=made, **more)

    def runner(self, command: Any = None, on: Machine | None = None, **more: Any) -> RunRunner:
        """One that has begun."""
        cipher = Cipher(b"k" * 32)
        found = RunRunner(self.queue.database, cipher, self.workshop(command, **more), on or machine(), renew_s=0.0)
        found.begin()
        self.runners.append(found)
        return found

    def abandon(self, runner: RunRunner) -> None:
        """As if it had been killed: its lock is free, nothing else is said."""
        runner._pool.shutdown(wait=True)
        os.close(runner._lock)
        self.runners.remove(runner)

    def until(self, runner: RunRunner, condition: Callable[[], Any]) -> Any:
        """Look again and again until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, self.said()
            runner.tick()
            time.sleep(0.02)
        return found

    def end(self, runner: RunRunner, run: str) -> Any:
        """The row of a run that has ended."""
        return self.until(runner, lambda: (row := self.queue.run(run)).ended_at is not None and row)

    def running(self, runner: RunRunner, run: str) -> dict[str, Any]:
        """Of a run whose process has been let through: attempt.json."""
        self.until(runner, lambda: self.queue.run(run).state == "running")
        return read_object(self.attempt(run).identity)

    def stored(self, files: dict[str, bytes]) -> dict[str, str]:
        return stored(self.data, files)

    def folder(self, run: str) -> RunFolder:
        return RunFolder.of(self.data, run)

    def attempt(self, run: str, number: int | None = None) -> AttemptFolder:
        return self.folder(run).attempt(self.queue.run(run).attempt if number is None else number)

    def output(self, run: str) -> str:
        return self.attempt(run).output.read_text()

    def said(self) -> str:
        """What is on disk of every attempt, for a test that failed."""
        lines = []
        for path in sorted(self.data.glob("runs/*/attempts/*/*")):
            if path.suffix in (".json", ".log"):
                lines.append(f"{path}: {path.read_text(errors='replace')[-2000:]}")
        return "\n".join(lines)

    def close(self) -> None:
        """Kill every run that is left, and leave."""
        for path in self.data.glob("runs/*/attempts/*/attempt.json"):
            found = json.loads(path.read_text())
            for one in (found.get("shim"), found.get("run")):
                if one and alive(one):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one["pid"], signal.SIGKILL)
        for runner in self.runners:
            runner.leave()


def stored(data: Path, files: dict[str, bytes]) -> dict[str, str]:
    """The files of a submission, in the store of a service's folder: path -> hash."""
    store, found = FileStore(str(data / "blobs")), {}
    for name, content in files.items():
        source = data / "source"
        source.write_bytes(content)
        found[name] = hashlib.sha256(content).hexdigest()
        store.add(source, found[name])
        source.unlink()
    return found


def example(data: Path) -> dict[str, str]:
    """The files of the environment that TRAINING names, next to its config."""
    names = ("pyproject.toml", "reverse_text.py")
    return stored(data, {f"environments/reverse_text/{name}": (EXAMPLE / name).read_bytes() for name in names})


def alive(process: dict[str, Any]) -> bool:
    from whet.system.children import began

    return began(process["pid"]) == process["process_began"]
