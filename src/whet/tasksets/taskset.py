"""`Taskset`: tasks, and how attempts at them are scored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from whet.calls import is_awaitable
from whet.envs.datasets import RowDataset
from whet.errors import DatasetError
from whet.tasksets.config import TasksetConfig
from whet.tasksets.part import EnvPart
from whet.tasksets.refs import package_of, resolve_ref
from whet.tasksets.signals import SIGNALS
from whet.tasksets.state import TaskState
from whet.tasksets.task import Task, dataset_of, task_of


class Taskset(EnvPart):
    """Tasks, and how attempts at them are scored."""

    config_type: ClassVar[type[TasksetConfig]] = TasksetConfig
    """What `config` is read as; a subclass with settings of its own names its own."""

    config: TasksetConfig

    def __init__(
        self,
        source: Any = None,
        eval_source: Any = None,
        taskset_id: str | None = None,
        system_prompt: Any = None,
        user: Any = None,
        toolsets: Any = None,
        stops: Any = None,
        setups: Any = None,
        updates: Any = None,
        metrics: Any = None,
        rewards: Any = None,
        advantages: Any = None,
        cleanups: Any = None,
        config: Any = None,
    ) -> None:
        """Make a taskset.

        Args:
            source: the rows to train on (dicts), or a function that returns them, called on first use.
            eval_source: the same for evaluation; by default the rows of `source`.
            taskset_id: name of the taskset in its tasks; by default the name of the class.
            system_prompt: text, or system messages, before every prompt.
            user: simulates the user where the model calls no tool: a function of task, state and transcript.
            toolsets: functions and `Toolset`s, in a list, or in a dict by the names that rows choose among.
            stops: functions of task and state that end a rollout by returning true; their name is its stop condition.
            setups: functions of task and state that run before the first turn.
            updates: functions that change a state before it is scored.
            metrics: functions whose values are recorded.
            rewards: functions whose weighted values are added up.
            advantages: one function of tasks and states that returns the advantages of a group.
            cleanups: functions that run when a rollout, or its group, has been scored.
            config: settings, a `config_type` or a mapping. Its lists are added to the arguments; a single value is
                given in one of the two.

        Methods marked `@reward`, `@metric`, `@advantage`, `@stop`, `@setup`, `@update`, `@cleanup` or `@teardown` are
        added. Raises `ConfigError` for arguments that do not fit together.
        """
        given = locals()
        self.config = type(self).config_type.from_config(config)
        name = type(self).__name__
        self.source = resolve_ref(self._either("source", source), f"{name}.source")
        self.eval_source = resolve_ref(self._either("eval_source", eval_source), f"{name}.eval_source")
        self.taskset_id = self._either("taskset_id", taskset_id) or name
        self._rows: list[dict[str, Any]] | None = None
        self._eval_rows: list[dict[str, Any]] | None = None
        self._read(given)

    async def init_group(self, task: Task, num_rollouts: int) -> tuple[list[Task], list[TaskState]]:
        """The tasks and first states of a group's rollouts. Override to vary them, for example by a shared seed."""
        return [task] * num_rollouts, [TaskState.for_task(task) for _ in range(num_rollouts)]

    def rows(self) -> list[dict[str, Any]]:
        """The rows to train on, read once."""
        if self._rows is None:
            self._rows = self._load(self.source, "source")
        return self._rows

    def eval_rows(self) -> list[dict[str, Any]]:
        """The rows to evaluate on; those of `source` where there is no `eval_source`."""
        if self.eval_source is None:
            return self.rows()
        if self._eval_rows is None:
            self._eval_rows = self._load(self.eval_source, "eval_source")
        return self._eval_rows

    def task(self, row: Mapping[str, Any]) -> Task:
        """The task for a row."""
        return task_of(row, self.taskset_id)

    def to_task(self, value: Task | Mapping[str, Any] | str) -> Task:
        """The task for a row, a dataset row that holds one, or either as JSON."""
        row: Any = json.loads(value) if isinstance(value, str) else value
        info = row.get("info")
        held = row.get("task") or (info.get("task") if isinstance(info, Mapping) else None)
        if isinstance(held, str):
            held = json.loads(held)
        if not isinstance(row, Task) and isinstance(held, Mapping):
            row = held
        return row if isinstance(row, Task) and row.frozen else self.task(row)

    def get_dataset(self, *, prompts_required: bool = False) -> RowDataset:
        """Dataset rows, each with its task. Raises `DatasetError` for a row that is no valid task."""
        return dataset_of(self.rows(), self.taskset_id, "source", prompts_required=prompts_required)

    def get_eval_dataset(self, *, prompts_required: bool = False) -> RowDataset:
        return dataset_of(self.eval_rows(), self.taskset_id, "eval_source", prompts_required=prompts_required)

    @property
    def packages(self) -> set[str]:
        """The top-level packages of this taskset's code: its rows may name functions in these."""
        functions = [function.function for kind in SIGNALS for function in self.own_functions[kind]]
        packages = {package_of(made) for made in (type(self), self.source, self.eval_source, *functions)}
        return packages - {"", "builtins", "whet"}

    def __iter__(self) -> Iterator[Task]:
        return (self.task(row) for row in self.rows())

    def __len__(self) -> int:
        return len(self.rows())

    def _load(self, source: Any, name: str) -> list[dict[str, Any]]:
        rows = source() if callable(source) else source
        if is_awaitable(rows):
            raise DatasetError(f"the {name} of {type(self).__name__} is async; it should be a plain function.")
        if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
            raise DatasetError(
                f"the {name} of {type(self).__name__} gave {type(rows).__name__}; it should give dicts, one per task."
            )
        return list(rows)
