"""`TaskState`: the state of a rollout of a task, with the methods for programs, tools and rewards.

`state["answer"]` is what the rollout submits, if anything; the reference answer is `task["answer"]`, and is never
copied here. While the rollout runs, `state["prompt"]` is the task's prompt and `state["system_prompt"]` what goes
before it; once it is over, `state["prompt"]` is what the model was shown in its first turn.

A rollout starts from its dataset row. What `init_group` made for the rollouts of a group is passed in their rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from whet.calls import describe, resolve
from whet.errors import ConfigError, EnvError, WhetError
from whet.messages import copy_value, normalize_messages
from whet.rollouts.states import new_state
from whet.tasksets.programs.session import API_NAMES, Session, endpoint_config
from whet.tasksets.task import Task
from whet.types import RolloutInput, State

if TYPE_CHECKING:
    from whet.tasksets.taskset import Taskset
    from whet.tasksets.tools.calling import RolloutTools

PREPARED = "prepared_rollout"
GROUP = "group_key"
NOT_HERE = "whet does not have that"


class _ForTask:
    """`TaskState.for_task(task)`: a new state; `state.for_task(task, borrow="model")`: one with this state's model."""

    def __get__(self, instance: TaskState | None, owner: type[TaskState]) -> Callable[..., TaskState]:
        def for_task(
            task: Mapping[str, Any], *, borrow: Any = (), tools: Any = (), transcript: str = "private"
        ) -> TaskState:
            targets = [borrow] if isinstance(borrow, str) else list(borrow)
            if targets and instance is None:
                raise ConfigError("TaskState.for_task cannot borrow without a state: call it on one.")
            if tools or transcript != "private" or set(targets) - {"model"}:
                raise ConfigError(
                    "state.for_task: only borrow='model' is possible; tools, sandboxes and transcripts of "
                    "another rollout cannot be borrowed."
                )
            state = owner.of_task(task)
            if instance is not None and targets:
                for name in ("client", "model", "sampling_args"):
                    state[name] = instance[name]
            return state

        return for_task


class TaskState(State):
    """The state of a rollout of a task, with the methods for programs, tools and rewards."""

    for_task = _ForTask()

    # Attributes, not keys: they are no data, and live as long as the rollout.
    ended_by: str | None = None  # the name of the stop that ended it
    tools_now: RolloutTools | None = None  # from setup to clean-up
    session: Session | None = None  # where a program runs
    cleaned: bool = False

    @classmethod
    def of_task(cls, task: Mapping[str, Any]) -> Self:
        """The state at the start of a rollout of `task`, without a client yet."""
        return cls.started(task, task, None, "", None)

    @classmethod
    def started(
        cls, task: Mapping[str, Any], row: Mapping[str, Any], client: Any, model: str, sampling_args: Any
    ) -> Self:
        """The state of a rollout of `task` with the id, the info and the trajectory_id of `row`."""
        own = {
            "prompt": normalize_messages(copy_value(task.get("prompt") or []), field_name="prompt"),
            "example_id": row.get("example_id", 0),
            "info": copy_value(row.get("info") or {}),
            "task": task,
            "trajectory_id": row.get("trajectory_id"),
        }
        state = cls(new_state(own, client, model, sampling_args))
        state.update(system_prompt=[], runtime={}, artifacts={}, tools=[])
        return state

    def stop(self, condition: str = "state_done") -> None:
        """End the rollout before its next turn, as `condition`."""
        if not isinstance(condition, str) or not condition:
            raise TypeError("state.stop takes the name of a stop condition: a string that is not empty")
        self["done"] = True
        self.ended_by = condition

    def get_model(self) -> str:
        model: str = self["model"]
        return model

    def get_max_turns(self, default: int) -> int:
        """The limit of turns of this rollout; `default` if none is set."""
        turns = self["runtime"].get("max_turns")
        if turns is None:
            return default
        if not isinstance(turns, int) or isinstance(turns, bool):
            raise ConfigError(f"max_turns is {turns!r}; it should be a whole number.")
        return turns

    def get_tools(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """The tools of this rollout as async functions, without the arguments that are filled in for them."""
        if self.tools_now is None:
            raise EnvError("state.get_tools: a rollout has its tools from its setup to its clean-up only")
        return self.tools_now.functions()

    def get_client(self, api: str = "chat_completions", *, sync: bool = False) -> Any:
        """An `openai.AsyncOpenAI` (or `OpenAI`) whose requests are turns of this rollout.

        Only in a program, and only chat completions. Sampling arguments of a request are ignored: the rollout's own are
        used.
        """
        if api not in API_NAMES["openai_chat_completions"]:
            raise ConfigError(f"state.get_client: api '{api}' is not there; {NOT_HERE}. Use 'chat_completions'.")
        if self.session is None:
            raise EnvError("state.get_client: only a program has a client, while it runs")
        return self.session.openai(sync=sync)

    def get_endpoint_config(self, api: str = "chat_completions") -> dict[str, str]:
        """Address, key and model for a library that sends HTTP requests: each request is a turn of this rollout.

        Only in a program, while it runs. The keys are `base_url`, `api_key`, `model`, `api_client_type` and, but for
        "messages", `api_base`; the address is on loopback and needs the extra `serve`.

        Args:
            api: "chat", "completions", "responses" or "messages".
        """
        if self.session is None:
            raise EnvError("state.get_endpoint_config: only a program has an address of its model, while it runs")
        return endpoint_config(self.session.opening(), self.get_model(), api)


async def prepared_rows(taskset: Taskset, inputs: Sequence[RolloutInput], *, varies: bool) -> Sequence[RolloutInput]:
    """The rows of a group, each with the group's key and, where the taskset varies groups, its own task and state."""
    key = uuid.uuid4().hex
    rows: list[dict[str, Any]] = [{**row, GROUP: key} for row in inputs]
    if varies and rows:
        for row, start in zip(rows, await _varied(taskset, rows[0], len(rows)), strict=True):
            row[PREPARED] = start
    return cast(Sequence[RolloutInput], rows)


def alone_row(task: Task, state: TaskState) -> RolloutInput:
    """A row for a rollout of a task that is not in a dataset."""
    row = {"prompt": [], "example_id": state.get("example_id", 0), PREPARED: (task, state)}
    return cast(RolloutInput, row)


def started_state(
    taskset: Taskset, given: RolloutInput, client: Any, model: str, sampling_args: dict[str, Any]
) -> TaskState:
    """The state at the start of a rollout. Raises what `init_group` raised, in every rollout of its group."""
    row: dict[str, Any] = dict(given)
    group, prepared = row.pop(GROUP, None), row.pop(PREPARED, None)
    if isinstance(prepared, Exception):
        raise prepared
    task, before = prepared if prepared is not None else (taskset.to_task(row), {})
    state = TaskState.started(task, row, client, model, sampling_args)
    _take_over(state, before)
    if group is not None:
        state["runtime"][GROUP] = group
    return state


async def _varied(taskset: Taskset, row: Mapping[str, Any], count: int) -> list[Any]:
    """A task and a state for each rollout; if `init_group` fails, its error for each."""
    name = f"{type(taskset).__name__}.init_group"
    try:
        made: Any = await resolve(taskset.init_group(taskset.to_task(row), count))
        tasks, states = made
        if not len(tasks) == len(states) == count:
            raise EnvError(f"{name} gave {len(tasks)} tasks and {len(states)} states for {count} rollouts")
        return [(task.freeze(), state) for task, state in zip(tasks, states, strict=True)]
    except WhetError:
        raise
    except EnvError as error:
        return [error] * count
    except Exception as error:
        failure = EnvError(f"{name} raised {describe(error)}")
        failure.__cause__ = error
        return [failure] * count


def _take_over(state: TaskState, given: Mapping[str, Any]) -> None:
    """Copy the fields that an author set in a state before its rollout."""
    for key, value in given.items():
        if key not in state or key in ("runtime", "artifacts"):
            state[key] = copy_value(value)
    for key in ("prompt", "info"):
        if given.get(key):
            state[key] = normalize_messages(copy_value(given[key])) if key == "prompt" else copy_value(given[key])
