"""A small run in a process of its own, to be broken on purpose, and what has to be true of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.data.metrics import without_clock
from whet.rl.storage.checkpoints import newest_checkpoint
from whet.rl.storage.records import Ledger
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines

STEPS, INTERVAL = 8, 3
CONFIG = f"""
name = "run"
max_steps = {STEPS}
batch_size = 8
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = {INTERVAL}
[deployment]
threads = 1
"""


class Run:
    """One run directory: started, killed, resumed and looked at."""

    def __init__(self, warm: Any, directory: Path, *overrides: str, env: dict[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._warm, self._overrides, self._env = warm, overrides, env or {}
        self.config, self.path = directory / "run.toml", directory / "runs" / "run"
        self.config.write_text(CONFIG)

    def start(self, *more: str) -> Any:
        """The command a person would give: the first one, or (where there is a run) the one that resumes."""
        resume = ["--resume"] if (self.path / "config.toml").exists() else []
        arguments = ["--runs_directory", self.path.parent, *self._overrides, *more]
        return self._warm.start("train", "run", self.config, *arguments, *resume, env=self._env)

    def finish(self, *more: str) -> str:
        process = self.start(*more)
        output: str = process.communicate()
        assert process.returncode == 0, output
        return output

    def steps_done(self) -> int:
        """Steps on record; a torn last line does not count."""
        metrics = self.path / "metrics.jsonl"
        return max((row["step"] for row in read_lines(metrics)), default=0) if metrics.exists() else 0

    def steps_saved(self) -> int:
        checkpoint, _ = newest_checkpoint(self.path / "checkpoints")
        return 0 if checkpoint is None else checkpoint.step

    def trained(self) -> dict[int, list[str]]:
        """Groups by step, as the ledger has them; opening it checks that none is there twice."""
        return Ledger(self.path / "ledger.jsonl").steps

    def check_whole(self) -> None:
        """Every step is on record once, with its rollouts; every task drawn was trained once or still waits."""
        ledger = self.trained()
        assert list(ledger) == list(range(1, STEPS + 1))
        assert [row["step"] for row in read_lines(self.path / "metrics.jsonl")] == list(ledger)
        for step, groups in ledger.items():
            rows = list(read_rollouts(self.path / "rollouts" / f"step_{step:06}.jsonl"))
            assert sorted(row["group"] for row in rows) == sorted(groups * 4)
        state = json.loads((self.path / "checkpoints" / f"step_{STEPS}" / "curriculum.json").read_text())
        waiting = [task[0] for task in state.get("pending", ())]
        trained = [int(group) for groups in ledger.values() for group in groups]
        assert sorted(trained + waiting) == list(range(len(trained) + len(waiting)))

    def record(self) -> dict[str, object]:
        """Everything that must not depend on the clock."""
        model, last = self.path / "model" / "model.safetensors", self.path / "checkpoints" / f"step_{STEPS}"
        return {
            "metrics": [without_clock(row) for row in read_lines(self.path / "metrics.jsonl")],
            "ledger": (self.path / "ledger.jsonl").read_text(),
            "rollouts": {path.name: list(read_rollouts(path)) for path in sorted(self.path.glob("rollouts/*"))},
            "weights": {str(path.name): path.read_bytes() for path in (model, *last.glob("*.safetensors"))},
            "curriculum": json.loads((last / "curriculum.json").read_text())["drawn"],
        }


@pytest.fixture
def make_run(warm: Any, tmp_path: Path) -> Callable[..., Run]:
    """`make_run("name", "--key", "value", env={...})`: a run of its own directory."""
    return lambda name, *overrides, **options: Run(warm, tmp_path / name, *overrides, **options)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, itself not included."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [later for child in found for later in descendants(child)]


@pytest.fixture
def processes_of() -> Callable[[int], list[int]]:
    """All processes of a run, the one that was started first."""
    return lambda pid: [pid, *sorted(descendants(pid))]


@pytest.fixture
def kill() -> Callable[[int, int], None]:
    """A signal to a process that may be gone already."""

    def send(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    return send
