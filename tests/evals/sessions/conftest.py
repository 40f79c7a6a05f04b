"""An environment on disk whose rollouts can be made to fail, wait and kill, and a scripted model of this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from whet.clients.scripted import ScriptedClient
from whet.evals.analysis.summary import EvalSummary
from whet.evals.config import EvalConfig
from whet.evals.observer import EvalObserver, PlannedEval
from whet.evals.sessions.session import run_evals
from whet.records.directory import load_metadata
from whet.rollouts.row_log import load_outputs
from whet.types import RolloutOutput

ENVIRONMENT = '''
import asyncio
import os
import time
from pathlib import Path

import whet


class Tasks(whet.SingleTurnEnv):
    """Writes down what is begun; `orders/fail`, `wait`, `block` and `die` name tasks to do that with."""

    orders: Path

    async def setup_state(self, state):
        task = state["answer"]
        with open(self.orders / "begun", "a") as file:
            file.write(task + "\\n")
        if self.ordered("die", task):
            os._exit(7)
        if self.ordered("block", task):
            time.sleep(3600)
        if self.ordered("wait", task):
            await asyncio.sleep(3600)
        if self.ordered("fail", task):
            raise whet.InfraError("as ordered")

    @whet.cleanup
    async def wait_at_the_end(self, state):
        if self.ordered("wait_at_the_end", state["answer"]):
            (self.orders / "waiting_at_the_end").touch()
            await asyncio.sleep(3600)

    def ordered(self, what, task):
        file = self.orders / what
        return file.exists() and task in file.read_text().split()


def right(completion, answer):
    return float(completion[-1]["content"].startswith(answer))


def share(completions):
    return [1 / len(completions)] * len(completions)


def load_environment(orders, tasks=3, together=False):
    hang = Path(orders) / "hang_but_in"
    if hang.exists() and hang.read_text() != str(os.getpid()):
        time.sleep(3600)
    rows = [{"question": f"say {number}", "answer": str(number)} for number in range(tasks)]
    env = Tasks(eval_dataset=rows, rubric=whet.Rubric(funcs=[right, share] if together else [right]))
    env.orders = Path(orders)
    return env
'''


@dataclass
class Seen(EvalObserver):
    """An observer that keeps what it is told."""

    planned: list[PlannedEval] = field(default_factory=list)
    rows: list[tuple[int, RolloutOutput]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    closed: int = 0

    def start(self, evaluations: Any) -> None:
        self.planned = list(evaluations)

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        self.rows.append((evaluation, row))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        self.finished.append(evaluation)

    def close(self) -> None:
        self.closed += 1


@dataclass
class Room:
    """Configs of the environment, its orders, and what came of running them."""

    environment: Path
    folder: Path
    seen: Seen = field(default_factory=Seen)

    def config(self, **fields: Any) -> EvalConfig:
        env_args = {"orders": str(self.folder), **fields.pop("env_args", {})}
        given = {
            "environment": str(self.environment),
            "rollouts_per_example": 2,
            "output_directory": self.folder / "out",
        }
        return EvalConfig(**{**given, "env_args": env_args, **fields})

    def order(self, what: str, *tasks: int) -> None:
        (self.folder / what).write_text(" ".join(map(str, tasks)))

    def run(self, *configs: EvalConfig) -> list[EvalSummary]:
        self.seen = Seen()
        return run_evals(configs, self.seen)

    def begun(self) -> list[int]:
        """The tasks whose rollouts were begun since the last time that this was asked."""
        file = self.folder / "begun"
        tasks = [int(line) for line in file.read_text().split()] if file.exists() else []
        file.unlink(missing_ok=True)
        return tasks

    def directory(self) -> Path:
        (found,) = self.folder.glob("out/*/*")
        return found

    def rows(self, directory: Path | None = None) -> list[RolloutOutput]:
        return load_outputs(directory or self.directory())

    def metadata(self) -> dict[str, Any]:
        found = load_metadata(self.directory())
        assert found is not None
        return found


@pytest.fixture(scope="session")
def ordered_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a file of its own; a process can import only one module of a name."""
    path = tmp_path_factory.mktemp("environment") / "ordered_tasks.py"
    path.write_text(ENVIRONMENT)
    return path


@dataclass
class Model:
    """Stands in for the engine: what it says is `script`'s, and how often it was loaded and closed is counted."""

    script: Callable[..., Any]
    loaded: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0

    def load(self, model: str, **settings: Any) -> Any:
        self.loaded.append({"model": model, **settings})
        return Policy(ScriptedClient(self._say), self)

    def _say(self, prompt: Any, sampling_args: dict[str, Any], turn: int) -> Any:
        return self.script(prompt=prompt, sampling_args=sampling_args, turn=turn)

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Policy:
    client: ScriptedClient
    engine: Model


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model of this process that says what it is asked to say, and the seed it is asked with."""

    def say(prompt: Any, sampling_args: dict[str, Any], turn: int) -> str:
        return f"{prompt[-1]['content'].removeprefix('say ')} {sampling_args['seed']} {turn}"

    scripted = Model(say)
    monkeypatch.setattr("whet.inference.loading.load_policy", scripted.load)
    return scripted


@pytest.fixture
def room(ordered_environment: Path, tmp_path: Path, model: Model) -> Room:
    return Room(ordered_environment, tmp_path)
