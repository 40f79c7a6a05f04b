"""Runs with and without worker processes for their environments, and an environment that does what files order."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.rl.config import RunConfig, load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.run import run_training

CONFIG = """
name = "{name}"
max_steps = {steps}
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-3
max_concurrent = 10
workers_per_env = {workers}
runs_directory = "{here}/runs"
[sampling]
max_tokens = 10
[sampling.temp_scheduler]
start = 1.0
end = 0.7
{environments}
[buffer]
difficulty_threshold = 1e-9
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = 2
[deployment]
threads = 1
"""
TIMES = ("time/", "perf/", "memory/")


class Room:
    """A folder with an environment of its own, and runs of it."""

    def __init__(self, here: Path, source: str) -> None:
        self.here = here
        self.module = here / f"odd_{zlib.crc32(str(here).encode())}.py"  # imported once in a process
        self.module.write_text(source)

    def config(self, name: str, workers: int, *options: str, steps: int = 3, kinds: str = "", more: str = "") -> Path:
        sections = "".join(
            f'[[env]]\nid = "{self.module}"\nname = "{kind or "made-up"}"\n'
            + (f'args = {{ kind = "{kind}" }}\n' if kind else "")
            for kind in (kinds.split() or [""])
        )
        path = self.here / f"{name}.toml"
        text = CONFIG.format(name=name, workers=workers, steps=steps, here=self.here, environments=sections + more)
        path.write_text(text)
        return path

    def load(self, name: str, workers: int, *options: str, **settings: Any) -> RunConfig:
        return load_run_config(self.config(name, workers, **settings), list(options))

    def run(self, name: str, workers: int, *options: str, **settings: Any) -> Outcome:
        return run_training(self.load(name, workers, *options, **settings), json_output=True)

    def directory(self, name: str) -> Path:
        return self.here / "runs" / name

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """Without times."""
        rows = map(json.loads, (self.directory(name) / "metrics.jsonl").read_text().splitlines())
        return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]

    def rollouts(self, name: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((self.directory(name) / "rollouts").iterdir())}

    def log(self, name: str) -> str:
        return "\n".join(path.read_text() for path in (self.directory(name) / "logs").glob("*.log"))

    def trained(self, name: str) -> list[str]:
        """The groups of the ledger."""
        rows = map(json.loads, (self.directory(name) / "ledger.jsonl").read_text().splitlines())
        return [group for row in rows for group in row["groups"]]


ORDERS = """
import logging
import os
import time
import warnings
from pathlib import Path
import whet

HERE = Path(__file__).parent

def order(name, once=False):
    path = HERE / name
    if not path.exists():
        return False
    if once:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True

def reward(completion, info, **kwargs):
    if order("warn"):
        logging.getLogger("made-up").warning("an odd answer to %d", info["n"])
        warnings.warn("an old way to score")
    if info["n"] == 1 and order("die once", once=True):
        os._exit(7)
    if info["n"] == 1 and order("die"):
        os._exit(7)
    if info["n"] == 1 and order("block", once=True):
        while True:
            time.sleep(0.1)
    return float(len(completion[-1]["content"] or "")) / 10

def load_environment():
    if order("refuse in workers") and os.getpid() != TESTS:
        raise whet.errors.ConfigError("made-up: this machine has no licence. Ask for one.")
    rows = [{"question": f"Say {i}", "answer": str(i), "info": {"n": i}} for i in range(8)]
    if order("odd rows"):
        rows = [row | {"checker": lambda: None} for row in rows]
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows[:2], rubric=whet.Rubric(funcs=[reward]))
"""


@pytest.fixture(scope="package")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Room:
    """Its runs are told what goes wrong by files."""
    room = Room(tmp_path_factory.mktemp("orders"), f"TESTS = {os.getpid()}\n{ORDERS}")
    assert room.run("one", 1).state == "finished"
    return room


@pytest.fixture
def order(orders: Room) -> Iterator[Callable[[str], None]]:
    given: list[Path] = []

    def give(name: str) -> None:
        given.append(orders.here / name)
        given[-1].touch()

    yield give
    for path in given:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="package")
def make_room(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Room]:
    """A room with an environment of this source."""
    return lambda source: Room(tmp_path_factory.mktemp("room"), source)
