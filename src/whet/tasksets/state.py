"""`TaskState`: the state of a rollout of a task, with what a program, a tool or a reward may ask of it.

`state["answer"]` is what the rollout submits, if anything; the reference answer is `task["answer"]`, and is never
copied here. While the rollout runs, `state["prompt"]` is the task's prompt and `state["system_prompt"]` what goes
before it; once it is over, `state["prompt"]` is what the model was shown in its first turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

from whet.errors import ConfigError, EnvError
from whet.rollouts.states import new_state
from whet.tasksets.programs.opening import endpoint_config
from whet.types import State

if TYPE_CHECKING:
    from whet.tasksets.programs.session import Session
    from whet.tasksets.tools.calling import RolloutTools

CHAT = ("chat", "chat_completions", "openai_chat_completions")
NOT_HERE = "that is not in this version"


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
                    "state.for_task: only borrow='model' is in this version; tools, sandboxes and transcripts of "
                    "another rollout cannot be borrowed."
                )
            state = owner.of_task(task)
            if instance is not None and targets:
                for name in ("client", "model", "sampling_args"):
                    state[name] = instance[name]
            return state

        return for_task


class TaskState(State):
    """The state of a rollout of a task, with what a program, a tool or a reward may ask of it."""

    for_task = _ForTask()

    # Held by the object and not by the dict: they live as long as the rollout and are no data.
    ended_by: str | None = None  # what ended it, in the words of `stop`
    tools_now: RolloutTools | None = None  # from setup to clean-up
    session: Session | None = None  # where a program runs
    cleaned: bool = False

    @classmethod
    def of_task(cls, task: Mapping[str, Any]) -> Self:
        """The state at the start of a rollout of `task`, without a client yet."""
        row = {
            "prompt": deepcopy(task.get("prompt") or []),
            "example_id": task.get("example_id", 0),
            "info": deepcopy(task.get("info") or {}),
            "task": task,
        }
        return cls.started(row, None, "", None)

    @classmethod
    def started(cls, row: dict[str, Any], client: Any, model: str, sampling_args: Any) -> Self:
        state = cls(new_state(row, client, model, sampling_args))
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
        """The turns that this rollout may take where something says so; otherwise `default`."""
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

        Only in a program, and only its chat completions. Whatever a request says about sampling, the rollout's own
        sampling arguments count.
        """
        if api not in CHAT:
            raise ConfigError(f"state.get_client: api '{api}' is not there; {NOT_HERE}. Use 'chat_completions'.")
        if self.session is None:
            raise EnvError("state.get_client: only a program has a client, while it runs")
        return self.session.openai(sync=sync)

    def get_endpoint_config(self, api: str = "chat_completions") -> dict[str, str]:
        """Address, key and model for a library that asks by HTTP: each request is a turn of this rollout.

        Only in a program, while it runs. The keys are `base_url`, `api_key`, `model`, `api_client_type` and, but for
        "messages", `api_base`; the address is on loopback and needs the extra `serve`.

        Args:
            api: "chat", "completions", "responses" or "messages".
        """
        if self.session is None:
            raise EnvError("state.get_endpoint_config: only a program has an address of its model, while it runs")
        return endpoint_config(self.session.opening(), self.get_model(), api)
