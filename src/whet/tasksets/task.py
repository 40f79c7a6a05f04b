"""`Task`: one row of a taskset, immutable; and the dataset of an `Environment` from such rows.

Everything in a task is JSON. Results of a rollout belong into its state.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from whet.envs.datasets import Row, RowDataset, read_info
from whet.errors import DatasetError
from whet.messages import copy_value, normalize_messages
from whet.types import SystemMessage, UserMessage

CONTROLS = ("tools", "toolsets", "sandbox", "program")
"""Fields by which a row shapes its own rollout; tables all of them, next to the number `max_turns`."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("a task does not change once it is made; put what a rollout finds out into its state")


class _FrozenDict(dict[str, Any]):
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy_value(value) for key, value in self.items()}


class _FrozenList(list[Any]):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy_value(value) for value in self]


def _unless_frozen(method: Any) -> Any:
    """A method of dict that a frozen task refuses."""

    @functools.wraps(method)
    def checked(self: Task, *args: Any, **fields: Any) -> Any:
        if getattr(self, "_frozen", False):
            _refuse()
        return method(self, *args, **fields)

    return checked


class Task(dict[str, Any]):
    """A row. It can be changed until `freeze()`, which checks it."""

    def __init__(self, row: Mapping[str, Any] | None = None) -> None:
        super().__init__({key: copy_value(value) for key, value in (row or {}).items()})
        self._frozen = False

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> Self:
        """Check the row and make it immutable.

        Raises TypeError or ValueError for an invalid prompt or control, and for values that JSON cannot hold.
        """
        if self._frozen:
            return self
        if "runtime" in self:
            raise ValueError("'runtime' belongs to the state; a row says max_turns, tools or toolsets at its top level")
        if "prompt" in self:
            self["prompt"] = user_prompt(self["prompt"])
        if "system_prompt" in self:
            self["system_prompt"] = system_messages(self["system_prompt"], "system_prompt")
        for name in CONTROLS:
            if name in self and not isinstance(self[name], Mapping):
                raise TypeError(f"'{name}' is {type(self[name]).__name__}; it should be a table")
        turns = self.get("max_turns", 0)
        if not isinstance(turns, int) or isinstance(turns, bool):
            raise TypeError(f"'max_turns' is {turns!r}; it should be a whole number")
        for key, value in self.items():
            self[key] = _freeze(value, key)
        self._frozen = True
        return self

    __setitem__ = _unless_frozen(dict.__setitem__)
    __delitem__ = _unless_frozen(dict.__delitem__)
    __ior__ = _unless_frozen(dict.__ior__)
    update = _unless_frozen(dict.update)
    setdefault = _unless_frozen(dict.setdefault)
    pop = _unless_frozen(dict.pop)
    popitem = _unless_frozen(dict.popitem)
    clear = _unless_frozen(dict.clear)

    def __deepcopy__(self, memo: dict[int, Any]) -> Task:
        return self if self._frozen else Task(self)


def user_prompt(value: Any) -> list[dict[str, Any]]:
    """The messages of a prompt, without system messages. Raises TypeError or ValueError."""
    messages = [UserMessage(value)] if isinstance(value, str) else normalize_messages(value or [], field_name="prompt")
    if any(message["role"] == "system" for message in messages):
        raise ValueError("'prompt' holds a system message; give it as 'system_prompt', of the row or of the taskset")
    return [message.model_dump(exclude_none=True) for message in messages]


def system_messages(value: Any, where: str) -> list[dict[str, Any]]:
    """System messages, from text, messages or None. Raises TypeError or ValueError."""
    if value is None:
        return []
    messages = [SystemMessage(value)] if isinstance(value, str) else normalize_messages(value, field_name=where)
    if any(message["role"] != "system" for message in messages):
        raise ValueError(f"{where} holds a message that is not a system message")
    return [message.model_dump(exclude_none=True) for message in messages]


def task_of(row: Mapping[str, Any], taskset_id: str, index: int | None = None) -> Task:
    """The task for a row. Its task_id is the row's task_id, id, example_id or index."""
    task = Task(row)
    if "prompt" not in task and isinstance(task.get("question"), str):
        task["prompt"] = task["question"]
    task["taskset_id"] = taskset_id
    named = next((task[name] for name in ("task_id", "id", "example_id") if task.get(name) is not None), index)
    if named is not None:
        task["task_id"] = str(named)
    return task.freeze()


def dataset_of(rows: Sequence[Any], taskset_id: str, name: str, *, prompts_required: bool) -> RowDataset:
    """The dataset that an `Environment` attempts: each row with its task.

    Raises `DatasetError` for the first row that is no valid task.
    """
    if not rows:
        raise DatasetError("the source of a taskset gave no rows.")
    return RowDataset(
        _dataset_row(row, index, taskset_id, f"row {index} of the {name}", prompts_required)
        for index, row in enumerate(rows)
    )


def _dataset_row(row: Any, index: int, taskset_id: str, where: str, prompts_required: bool) -> Row:
    if not isinstance(row, Mapping):
        raise DatasetError(f"{where} is {type(row).__name__}; it should be a dict.")
    try:
        task = task_of({"example_id": index, **row}, taskset_id, index)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{where}: {error}.") from error
    if prompts_required and not task.get("prompt"):
        raise DatasetError(
            f"{where} has neither 'prompt' nor 'question' (its columns: {', '.join(row) or 'none'}). "
            "Give each row a 'question' (text) or a 'prompt' (messages)."
        )
    info = {key: copy_value(item) for key, item in read_info(task.get("info"), where).items()}
    given = task["example_id"]
    numbered = {"example_id": given} if type(given) is int else {"example_id": index, "src_id": given}
    prompt = normalize_messages(copy_value(task.get("prompt", [])), field_name="prompt")
    dataset_row: Row = {"prompt": prompt, **numbered, "info": info, "task": task}
    if isinstance(task.get("answer"), str | int | float):
        dataset_row["answer"] = task["answer"]
    return dataset_row


def _freeze(value: Any, where: str) -> Any:
    """A frozen copy, of what JSON can hold."""
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            raise TypeError(f"'{where}' has the key {odd!r}; JSON knows strings only")
        return _FrozenDict({key: _freeze(item, f"{where}.{key}") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _FrozenList(_freeze(item, where) for item in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"'{where}' is {type(value).__name__}, which JSON cannot hold")
