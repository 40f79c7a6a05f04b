"""An evaluation that is killed again and again: its workers and its own process, at seeded moments.

Each moment is a number of rows in `results.jsonl`; the chosen process is sent SIGKILL at that number. When
it is the evaluation itself, the same command is given once more with --resume. What was in the file at a kill has to be
there at the end, and every rollout exactly once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.02
PATIENCE_S = 120.0  # without a single new row

ENVIRONMENT = """
import whet


def load_environment(tasks=1):
    parser = whet.XMLParser(["answer"])

    def correct(parser, completion, answer):
        return float(parser.parse_answer(completion) == answer)

    rows = [{"question": f"Say the word. ({task})", "answer": "word"} for task in range(tasks)]
    rubric = whet.Rubric(funcs=[correct], parser=parser)
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, parser=parser, rubric=rubric)
"""


@dataclass
class Kills:
    """What came of it."""

    of_workers: int = 0
    of_sessions: int = 0
    lost: int = 0  # rows that were in the file at a kill, and are not there at the end
    doubled: int = 0
    missing: int = 0
    failed: int = 0  # rows with an error
    in_order: bool = False
    processes_left: int = 0
    memory_mib: list[tuple[int, float, float]] = field(default_factory=list)  # rows, session, largest worker


class Evaluation:
    """`whet eval run` of the scripted environment, as a process that may be killed."""

    def __init__(self, folder: Path, url: str, *, tasks: int, attempts: int, workers: int, concurrency: int) -> None:
        self.folder, self.tasks, self.attempts = folder, tasks, attempts
        environment = folder / "say_word.py"
        environment.write_text(ENVIRONMENT)
        self.command = [
            sys.executable, "-m", "whet.cli.main", "eval", "run", str(environment), "-m", "scripted", "-b", url,
            "-n", str(tasks), "-r", str(attempts), "-c", str(concurrency), "-w", str(workers),
            "-a", json.dumps({"tasks": tasks}), "-o", str(folder / "outputs"), "--json",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.results: Path | None = None
        self._counted = 0, 0  # bytes and lines of the file that were counted

    def start(self) -> None:
        resume = [] if self.results is None else [f"--resume={self.results.parent}"]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen([*self.command, *resume], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()

    def wait_for_rows(self, count: int, seen: Kills | None = None) -> bool:
        """Once there are so many rows; False where the evaluation ends before."""
        assert self.process is not None
        best, since = -1, time.monotonic()
        while True:
            rows = self.rows()
            if rows >= count:
                return True
            if self.process.poll() is not None:
                return False
            if rows > best:
                best, since = rows, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise TimeoutError(f"no new row in {PATIENCE_S:.0f} s, at {rows}:\n{self.log()}")
            if seen is not None:
                self.look_at_memory(rows, seen)
            time.sleep(LOOK_S)

    def rows(self) -> int:
        """Whole lines in the file."""
        if self.results is None:
            found = list(self.folder.glob("outputs/*/*/results.jsonl"))
            if not found:
                return 0
            (self.results,) = found
        with self.results.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._counted[0]:  # a torn line was cut off
                self._counted = 0, 0
            file.seek(self._counted[0])
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self._counted = self._counted[0] + whole, self._counted[1] + new.count(b"\n", 0, whole)
        return self._counted[1]

    def workers(self) -> list[int]:
        assert self.process is not None
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in text.split()]

    def look_at_memory(self, rows: int, seen: Kills) -> None:
        assert self.process is not None
        if seen.memory_mib and rows - seen.memory_mib[-1][0] < self.tasks * self.attempts / 40:
            return
        workers = [resident_mib(pid) for pid in self.workers()]
        seen.memory_mib.append((rows, resident_mib(self.process.pid), max(workers, default=0.0)))

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


def resident_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def kill_again_and_again(evaluation: Evaluation, kills: int, seed: int) -> Kills:
    """Run it to its end through so many kills, a quarter of them, and at least one, of the session itself."""
    rng = random.Random(seed)
    sessions = min(kills, max(1, kills // 4))
    victims = ["session"] * sessions + ["worker"] * (kills - sessions)
    rng.shuffle(victims)
    total = evaluation.tasks * evaluation.attempts
    moments = sorted(rng.sample(range(1, int(total * 0.95)), kills))
    seen = Kills()
    kept: set[bytes] = set()
    started: list[int] = []
    evaluation.start()
    for moment, victim in zip(moments, victims, strict=True):
        if not evaluation.wait_for_rows(moment, seen):
            raise RuntimeError(f"it ended before there were {moment} rows:\n{evaluation.log()}")
        assert evaluation.process is not None
        assert evaluation.results is not None
        while not (workers := evaluation.workers()):  # a session has just begun
            time.sleep(LOOK_S)
        started += workers
        if victim == "session":
            evaluation.process.kill()
            evaluation.process.wait()
            seen.of_sessions += 1
            kept |= whole_lines(evaluation.results)
            evaluation.start()
        else:
            os.kill(rng.choice(workers), signal.SIGKILL)
            seen.of_workers += 1
            kept |= whole_lines(evaluation.results)
    evaluation.wait_for_rows(total + 1, seen)  # to its end
    assert evaluation.process is not None
    assert evaluation.results is not None
    if evaluation.process.wait() != 0:
        raise RuntimeError(f"exit code {evaluation.process.returncode}:\n{evaluation.log()}")
    seen.processes_left = sum(is_running(pid) for pid in set(started))
    judge(evaluation, kept, seen)
    return seen


def whole_lines(path: Path) -> set[bytes]:
    return set(path.read_bytes().split(b"\n")[:-1])


def judge(evaluation: Evaluation, kept: set[bytes], seen: Kills) -> None:
    """What the file has at the end, against what it had and what it should have."""
    assert evaluation.results is not None
    lines = evaluation.results.read_bytes().split(b"\n")[:-1]
    rows = [json.loads(line) for line in lines]
    keys = [(row["example_id"], row["rollout"]) for row in rows]
    wanted = [(task, place) for task in range(evaluation.tasks) for place in range(evaluation.attempts)]
    seen.lost = len({line for line in kept if json.loads(line)["error"] is None} - set(lines))
    seen.doubled = len(keys) - len(set(keys))
    seen.missing = len(set(wanted) - set(keys))
    seen.failed = sum(row["error"] is not None for row in rows)
    seen.in_order = keys == wanted


def is_running(pid: int) -> bool:
    """Whether a worker is still there a moment after its session has ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.1)
    return True


def growth(memory: Sequence[tuple[int, float, float]]) -> dict[str, float]:
    """The most of session and worker in the second and in the last quarter of the rows, in MiB."""
    total = memory[-1][0]
    early = [one for one in memory if total / 4 <= one[0] < total / 2]
    late = [one for one in memory if one[0] >= total * 3 / 4]
    return {
        "session_early_mib": max(one[1] for one in early),
        "session_late_mib": max(one[1] for one in late),
        "worker_early_mib": max(one[2] for one in early),
        "worker_late_mib": max(one[2] for one in late),
    }
