"""Sides of a benchmark as processes that take a step on request, so that they can take turns (`step_time.py`,
`engine.py`). A worker answers "ready", and to a line of its standard input with the seconds of a step. Memory and
processor time, which other work on the machine disturbs less than the clock, are read from outside (Linux).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


class Pacer:
    """A worker's end of the conversation: wait for a request, take a step, answer with how long it took."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever libraries print goes elsewhere
        self._started = 0.0

    def wait(self) -> bool:
        """Ready for a step. False when there is none to take."""
        print("ready", file=self._answers, flush=True)
        go = bool(sys.stdin.readline())
        self._started = time.perf_counter()
        return go

    def done(self) -> None:
        print(time.perf_counter() - self._started, file=self._answers, flush=True)


class Side:
    """One process that takes a step on request: `python script --worker kind job.json`."""

    steps_a_turn = 1

    def __init__(self, name: str, python: str, script: str, kind: str, job: dict[str, Any], install: str) -> None:
        """`job` has "scratch", a directory of its own, and "threads". `install` is the command that installs what the
        worker imports."""
        self.name = name
        self._install = install
        log = Path(job["scratch"]) / "log.txt"
        self._log = log.open("w")
        self._job = log.with_name("job.json")
        self._job.write_text(json.dumps(job))
        self._process = subprocess.Popen(
            [python, script, "--worker", kind, str(self._job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(job["threads"]),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "0",
            },
        )

    def begin(self) -> None:
        """Wait until all is loaded. The peak of memory is counted from here on."""
        self._expect()
        for pid in self._pids():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def timed_step(self) -> tuple[float, float]:
        """Seconds that a step takes: on the clock, and of processor time."""
        before = self.processor_seconds()
        seconds = self.step()
        return seconds, self.processor_seconds() - before

    def step(self) -> float:
        """Take a step, and say how many seconds it took."""
        self._pipe(self._process.stdin).write("go\n")
        self._pipe(self._process.stdin).flush()
        seconds = float(self._expect())
        self._expect()
        return seconds

    def pause(self) -> None:
        """Stand still, memory and all, until `resume`: some libraries spin while they wait."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def processor_seconds(self) -> float:
        """Of the side's processes, since they began."""
        return sum(map(_processor_seconds, self._pids()))

    def peak_bytes(self) -> int:
        """Largest resident memory since `begin`, the sum over the side's processes; 0 where the system does not say."""
        return sum(map(_peak, self._pids()))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _pids(self) -> list[int]:
        found, unseen = list[int](), [self._process.pid]
        while unseen:
            found.append(pid := unseen.pop())
            with suppress(OSError):
                unseen += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def _expect(self) -> str:
        line = self._pipe(self._process.stdout).readline().strip()
        if not line:
            tail = "\n".join(Path(self._log.name).read_text().splitlines()[-15:])
            missing = "No module named" in tail
            hint = f"{self.name} is not installed. Install it with: {self._install}" if missing else ""
            raise SideEnded(f"{self.name} stopped:\n{tail}\n{hint}", missing=missing)
        return line

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


class SideEnded(SystemExit):
    """A worker ended before its time; the benchmark ends too, unless it continues without a side that is `missing`."""

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


def _processor_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _peak(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
