"""`TaskSet`, `SandboxTaskSet`, `SandboxSpec` and `Task` of `verifiers.envs.experimental.composable`.

It deliberately has no `validate` and no `filter_fn`, which evaluates text as Python: `filter` takes a function.
"""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

from whet.envs.datasets import RowDataset
from whet.errors import ConfigError
from whet.types import Messages, State, UserMessage


def discover_sibling_dir(taskset_cls: type, dirname: str) -> Traversable | Path | None:
    """The folder beside the module that defines a class; None where there is none, or it is empty."""
    module = importlib.import_module(taskset_cls.__module__)
    package = module.__name__ if hasattr(module, "__path__") else module.__package__
    folders: list[Traversable | Path] = [importlib.resources.files(package) / dirname] if package else []
    if getattr(module, "__file__", None):
        folders.append(Path(str(module.__file__)).resolve().parent / dirname)
    return next((folder for folder in folders if folder.is_dir() and any(True for _ in folder.iterdir())), None)


@dataclass
class ComposableSandbox:
    """What the sandbox of a task is like; sizes in GB."""

    image: str = "python:3.11-slim"
    cpu_cores: int = 4
    memory_gb: int = 4
    disk_size_gb: int = 10
    gpu_count: int = 0
    gpu_type: str | None = None
    timeout_minutes: int | None = None  # None: what a rollout may take, and an hour


SandboxSpec = ComposableSandbox
"""Its name in the 0.1 contract."""


class ComposableTask:
    """One task of a `TaskSet`: `taskset[0]`."""

    def __init__(self, taskset: TaskSet, prompt: Messages, info: dict[str, Any], answer: str = "") -> None:
        self._taskset = taskset
        self.prompt, self.info, self.answer = prompt, info, answer

    @property
    def sandbox_spec(self) -> ComposableSandbox | None:
        return self._taskset.get_sandbox_spec(self.info)

    @property
    def image(self) -> str | None:
        return None if self.sandbox_spec is None else self.sandbox_spec.image

    @property
    def workdir(self) -> str:
        return self._taskset.get_workdir(self.info)

    def __repr__(self) -> str:
        return f"Task(taskset={self._taskset.name!r}, image={self.image!r})"


class TaskSet:
    """Tasks and their scoring. Override `get_instruction` and `get_rubric`."""

    default_workdir = "/app"

    def __init__(self, dataset: Any, name: str = "", filter_fn: str | None = None) -> None:
        if filter_fn is not None:
            raise ConfigError("filter_fn is text that would be run as Python; use taskset.filter with a function.")
        self.name = name
        self.dataset_source: Callable[[], Any] = dataset if callable(dataset) else lambda: dataset
        self._built: Any = None

    @property
    def dataset(self) -> Any:
        if self._built is None:
            rows = self.dataset_source()
            self._built = RowDataset(rows) if isinstance(rows, list) else rows
        return self._built

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._built = value

    def get_instruction(self, info: dict[str, Any]) -> str:
        """What the agent is to do."""
        raise ConfigError(f"{type(self).__name__} should define get_instruction(info).")

    def get_rubric(self) -> Any:
        """How rollouts are scored; it has to end the sandbox where `keep_sandbox_for_scoring` leaves it one."""
        raise ConfigError(f"{type(self).__name__} should define get_rubric().")

    def get_sandbox_spec(self, info: dict[str, Any]) -> ComposableSandbox | None:
        return None

    def get_workdir(self, info: dict[str, Any]) -> str:
        return self.default_workdir

    def get_env_vars(self) -> dict[str, str]:
        return {}

    def get_skills_dir(self) -> Traversable | Path | None:
        return discover_sibling_dir(type(self), "skills")

    def get_upload_dirs(self) -> dict[str, Traversable | Path]:
        """Folders for the sandbox by a name that the harness maps to a path inside."""
        skills = self.get_skills_dir()
        return {} if skills is None else {"skills": skills}

    async def setup(self, state: State) -> None:
        """Prepare the sandbox: `state["sandbox_client"]`, `state["sandbox_id"]`."""

    async def validate_instance(self, state: State) -> bool:
        return True

    def get_dataset(self) -> Any:
        """The rows, with a prompt of the instruction where they have none."""
        if "prompt" in self.dataset.column_names:
            return self.dataset
        return self.dataset.map(lambda row: {"prompt": [UserMessage(self.get_instruction(row.get("info") or {}))]})

    def filter(self, predicate: Callable[[Mapping[str, Any]], bool]) -> Self:
        return self._with(self.dataset.filter(predicate))

    def take(self, n: int) -> Self:
        return self._with(self.dataset.select(range(min(n, len(self.dataset)))))

    def _with(self, rows: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _built=rows)
        return other

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[ComposableTask]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> ComposableTask:
        row = self.dataset[index]
        info = row.get("info") or {}
        return ComposableTask(self, [UserMessage(self.get_instruction(info))], info, row.get("answer", ""))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, len={len(self)})"


class SandboxTaskSet(TaskSet):
    """Tasks that need a sandbox. Override `get_sandbox_spec` too."""

    def get_sandbox_spec(self, info: dict[str, Any]) -> ComposableSandbox:
        raise ConfigError(f"{type(self).__name__} should define get_sandbox_spec(info).")
