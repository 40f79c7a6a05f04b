"""`Env`: a taskset and a harness, joined into an `Environment`.

It is a `MultiTurnEnv`: the environment's turn answers tool calls or gets the user's reply. With a program, the program
decides the prompt of each turn. The rollout loop is that of all environments.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from whet.clients.client import AnyClient
from whet.clients.config import EndpointConfig
from whet.clients.make import resolve_client
from whet.decorators import cleanup, setup, stop
from whet.envs.config.texts import opening, wording_of
from whet.envs.datasets import RowDataset
from whet.envs.multiturn_env import MultiTurnMonitorRubric
from whet.errors import ConfigError, DatasetError
from whet.messages import normalize_messages
from whet.rubrics.rubric import Rubric
from whet.system.origins import is_written_for_verifiers
from whet.tasksets.harness import Harness
from whet.tasksets.lifecycle import Lifecycle
from whet.tasksets.programs.session import Session
from whet.tasksets.resolve import TasksetPlan, rollout_tools
from whet.tasksets.rubric import EnvRubric, use_reference_answers
from whet.tasksets.state import GROUP, TaskState, alone_row, prepared_rows, started_state
from whet.tasksets.task import Task
from whet.tasksets.taskset import Taskset
from whet.tasksets.tools.calling import Scopes
from whet.types import Messages, Response, RolloutInput, SamplingArgs, State, Tool, TrajectoryStep

ELSEWHERE = {
    "dataset": "the taskset's source",
    "eval_dataset": "the taskset's eval_source",
    "rubric": "the taskset's rewards and metrics, or env.add_rubric",
    "system_prompt": "the taskset or the harness",
    "few_shot": "the rows' prompts",
    "tool_defs": "toolsets",
    "max_turns": "the harness",
}


NO_MODEL = "Harness.run needs a client and a model: give the harness both, or borrow='model'."


class NoModel(AnyClient):
    """The client of a program that `Harness.run` runs without a model: a request is an error."""

    def __init__(self) -> None:
        super().__init__(None)

    async def get_response(self, *args: Any, **kwargs: Any) -> Response:
        raise ConfigError(f"the program asks a model. {NO_MODEL}")


def leave_out(step: TrajectoryStep, why: str) -> None:
    """Take a turn out of what is trained.

    `why`: "abandoned", its request was cancelled, so nothing came of its answer; "helper", it was not for the task.
    """
    step["extras"][why] = True
    if step["tokens"] is not None:
        step["tokens"]["completion_mask"] = [0] * len(step["tokens"]["completion_ids"])


class Env(Lifecycle):
    """A taskset attempted by a harness, as an environment."""

    rubric: EnvRubric

    def __init__(self, taskset: Taskset, harness: Harness | None = None, **kwargs: Any) -> None:
        """Combine the two.

        Args:
            taskset: the tasks and their scoring.
            harness: how a model attempts them; by default the chat loop with tools.
            kwargs: other settings of `MultiTurnEnv` and `Environment`, such as `timeout_seconds`,
                `max_seq_len`, `pass_threshold` and `env_id`.
        """
        self._is_of_verifiers = is_written_for_verifiers(type(self))
        for name, section in ELSEWHERE.items():
            if name in kwargs:
                raise ConfigError(f"Env takes no {name}: that belongs to {section}.")
        harness = Harness() if harness is None else harness
        if not isinstance(taskset, Taskset) or not isinstance(harness, Harness):
            given = f"{type(taskset).__name__} and {type(harness).__name__}"
            raise ConfigError(f"Env takes a Taskset and a Harness, not {given}.")
        self.taskset = taskset
        self.harness = harness
        self.program = harness.program
        self._numbers = itertools.count()
        self._plan = TasksetPlan(taskset, harness)
        self._keep_nothing_yet()
        harness.taskset = taskset
        has_rows = taskset.source is not None or type(taskset).rows is not Taskset.rows
        if not has_rows and taskset.eval_source is None:
            raise ConfigError(f"{type(taskset).__name__} has no tasks; give it a source.")
        prompts_required = self.program is None
        super().__init__(
            dataset=(lambda: taskset.get_dataset(prompts_required=prompts_required)) if has_rows else None,
            eval_dataset=(
                (lambda: taskset.get_eval_dataset(prompts_required=prompts_required))
                if taskset.eval_source is not None
                else None
            ),
            rubric=EnvRubric(self, []),
            max_turns=harness.max_turns if self.program is None or harness.says_max_turns else -1,
            **kwargs,
        )
        taskset.attach(self)
        harness.attach(self)
        self.refresh()

    def refresh(self) -> None:
        """Read taskset and harness again after something was added to one of them."""
        servers = self._plan.mcp
        self._plan = TasksetPlan(self.taskset, self.harness)
        if servers is not None:
            if self._plan.mcp is not None and servers.serves(self._plan.mcp):
                self._plan.mcp = servers
            else:
                self._retired.append(servers)
        if self.harness.command is not None and (self._plan.user is not None or self._plan.shows_tools):
            raise ConfigError(
                "the harness's program is a command, which cannot be shown tools or a user of this process; it brings "
                "its own. Hide the tools that only rewards use: Toolset(hide=[...])."
            )
        self.tool_defs = [entry.definition for entry in self._plan.entries.values() if entry.shown] or None
        self.rubric.take(self._plan.signals)
        if self._is_of_verifiers or any(signal.name == "num_turns" for signal in self._plan.signals):
            others = [rubric for rubric in self.rubric.rubrics if not isinstance(rubric, MultiTurnMonitorRubric)]
            self.rubric.rubrics[:] = others

    @property
    def requires_group_rollouts(self) -> bool:
        plan = self._plan
        of_groups = plan.varies_groups or plan.for_groups["update"] or plan.for_groups["cleanup"]
        return super().requires_group_rollouts or bool(of_groups)

    @property
    def shares_in_groups(self) -> bool:
        """Whether the rollouts of a group share an object."""
        return self._plan.shares_in_groups

    def add_rubric(self, rubric: Rubric) -> None:
        """Score by `rubric` too; rewards add up. Its functions receive the task's answer as `answer`."""
        use_reference_answers(rubric)
        super().add_rubric(rubric)

    def _find_system_prompt(self) -> tuple[str, ...]:
        """The system prompt of taskset and harness, otherwise the one that all tasks have in common."""
        own = opening(self._plan.system_prompt({}))
        openings = {opening(self._plan.system_prompt(task)) for task in self.taskset} if not own else {own}
        return openings.pop() if len(openings) == 1 else ()

    def _prompts_of_rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        for rows in (self.taskset.rows(), self.taskset.eval_rows()):
            for row in rows:
                yield self._plan.system_prompt(self.taskset.task(row))

    def _build(self, source: Any, name: str) -> RowDataset:
        rows: RowDataset = source()  # checked where they became tasks
        return rows

    async def prepare_group(self, inputs: Sequence[RolloutInput]) -> Sequence[RolloutInput]:
        """Apply the taskset's `init_group`, and give the rollouts a key for the objects that they share."""
        if not (self._plan.varies_groups or self._plan.shares_in_groups):
            return inputs
        return await prepared_rows(self.taskset, inputs, varies=self._plan.varies_groups)

    async def init_state(
        self, input: RolloutInput, client: AnyClient, model: str, sampling_args: SamplingArgs | None = None
    ) -> TaskState:
        sampling = {**self.harness.sampling_args, **(sampling_args or {})}
        state = started_state(self.taskset, input, client, model, sampling)
        runtime, task = state["runtime"], state["task"]
        if task.get("max_turns") is not None:
            runtime.setdefault("max_turns", task["max_turns"])
        elif self.program is not None and self.max_turns > 0:
            runtime.setdefault("max_turns", self.max_turns)
        return state

    async def run_task(self, task: Task | Mapping[str, Any], state: TaskState | None = None) -> TaskState:
        """`Harness.run`: attempt and score one task without a group."""
        try:
            frozen = (task if isinstance(task, Task) else Task(task)).freeze()
        except (TypeError, ValueError) as error:
            raise DatasetError(f"the task that the harness is to run: {error}.") from error
        given = state if state is not None else TaskState.for_task(frozen)
        client = given.get("client") or self.harness.client
        model = given.get("model") or self.harness.model
        if client is None or not model:
            if self.program is None:
                raise ConfigError(NO_MODEL)
            client, model = NoModel(), model or ""
        resolved = resolve_client(client)
        row = alone_row(frozen, given)
        done = cast(TaskState, await self.rollout(row, resolved, model, given.get("sampling_args")))
        timing = done["timing"].scoring
        timing.start = time.time() - timing.duration  # `RolloutTiming.grading`
        try:
            await self.rubric.signals.score_alone(done)
        finally:
            await self.clean_up_group([done])
            timing.end = time.time()
            if isinstance(client, EndpointConfig):
                await resolved.close()
        if state is None:
            return done
        dict.update(state, done)
        return state

    # One rollout

    @setup(priority=1000)
    async def open_rollout(self, state: TaskState) -> None:
        """Set tools and system prompt, then run the setups of taskset and harness. Runs before any other setup."""
        task = state["task"]
        scopes = Scopes(self._objects, str(next(self._numbers)), state["runtime"].get(GROUP))
        state["system_prompt"] = self._plan.system_prompt(task)
        wording = wording_of(self)
        if wording is not None:
            state["system_prompt"] = wording.prompt(state["system_prompt"])
        state.tools_now = await rollout_tools(self._plan, task, state, scopes)
        state["tool_defs"] = state.tools_now.definitions
        state["tools"] = sorted(state.tools_now.shown)
        if self.program is not None:
            state.session = Session(
                self.program, state, functools.partial(self._ask_user, state), self._gateway_of_programs
            )
        for function in self._functions("setup", state):
            await self._call(function, state)

    async def get_prompt_messages(self, state: State) -> Messages:
        assert isinstance(state, TaskState)
        if state.session is not None:
            return await self._next_prompt(state, state.session)
        if not state["trajectory"]:
            prompt: Messages = [*normalize_messages(state["system_prompt"]), *state["prompt"]]
            return prompt
        return await super().get_prompt_messages(state)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """The answers to tool calls, or the user's reply if there are none. The last turn is answered as well."""
        assert isinstance(state, TaskState)
        assert state.tools_now is not None
        calls = messages[-1].get("tool_calls") or []
        added: Messages = []
        for call in calls:
            added.append(await state.tools_now.answer(call))
            stopped_by = await self._stopped_by(state)
            if stopped_by is not None:
                return self._end(state, stopped_by, added)
        if not calls:
            added = await self._ask_user(state, messages)
        if not added:
            return self._end(state, await self._stopped_by(state) or "no_tools", [])
        if self._turns_are_up(state):
            return self._end(state, await self._stopped_by(state) or "max_turns_reached", added)
        return added

    def _tools_of_turn(self, state: State) -> list[Tool] | None:
        session = state.session if isinstance(state, TaskState) else None
        tools = None if session is None or session.current is None else session.current.tools
        return super()._tools_of_turn(state) if tools is None else tools

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        session = state.session if isinstance(state, TaskState) else None
        request, command = None if session is None else session.current, self.harness.command
        if request is not None and command is not None and command.is_helper(request):
            leave_out(trajectory_step, "helper")
        await super().add_trajectory_step(state, trajectory_step)

    async def render_completion(self, state: State) -> None:
        """Set the completion: all messages after the first prompt. A program without turns may have set it itself."""
        said = normalize_messages(state.get("completion") or [], field_name="completion")
        trajectory = state["trajectory"]
        state["num_model_requests"] = len(trajectory)
        for why in ("abandoned", "helper"):
            state[f"num_{why}_requests"] = sum(step["extras"].get(why, False) for step in trajectory)
        if not trajectory:
            state["completion"] = said
            return
        first, last = trajectory[0]["prompt"], trajectory[-1]
        whole = [*last["prompt"], *last["completion"], *(state.get("final_env_response") or [])]
        followed = whole[len(first) :] if whole[: len(first)] == first else whole
        state["prompt"] = first
        state["completion"] = said if said[: len(followed)] == followed else followed

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        """Always False: `env_response` checks the limit, after the last turn has been answered."""
        return False

    @stop(priority=50)
    async def no_tools(self, state: State) -> bool:
        if self.program is not None or self._plan.user is not None or not state["trajectory"]:
            return False
        return not state["trajectory"][-1]["completion"][-1].get("tool_calls")

    @stop
    async def task_stop(self, state: TaskState) -> bool:
        """The stops of taskset, harness and toolsets. Those of a running program are checked at its next request."""
        if state.session is not None and state["trajectory"]:
            return False
        state.ended_by = await self._stopped_by(state)
        return state.ended_by is not None

    @cleanup(priority=1000)
    async def end_program(self, state: TaskState) -> None:
        """End the program of the rollout."""
        if state.session is not None:
            await state.session.close()
        if state.ended_by and state["error"] is None and not (state.get("timed_out") or state.get("prompt_too_long")):
            state["stop_condition"] = state.ended_by

    async def _ask_user(self, state: TaskState, messages: Messages) -> Messages:
        """The reply of the simulated user to `messages`; empty if there is no user."""
        if self._plan.user is None or state.tools_now is None:
            return []
        return await self._plan.user.reply(state.tools_now, messages)

    async def _next_prompt(self, state: TaskState, session: Session) -> Messages:
        if session.current is not None and not session.give(state["trajectory"][-1]["response"]):
            leave_out(state["trajectory"][-1], "abandoned")
        request = await session.next_request()
        ended_by = await self._stopped_by(state)
        if request is None:
            return self._end(state, ended_by or "program_completed", [])
        if ended_by is None and self._turns_are_up(state):
            ended_by = "max_turns_reached"
        return request.prompt if ended_by is None else self._end(state, ended_by, [])

    def _end(self, state: TaskState, ended_by: str, last_messages: Messages) -> Messages:
        state.ended_by = ended_by
        state["final_env_response"] = last_messages
        return last_messages

    def _turns_are_up(self, state: TaskState) -> bool:
        return 0 < state.get_max_turns(self.max_turns) <= len(state["trajectory"])

    async def _stopped_by(self, state: TaskState) -> str | None:
        """The name of the first stop that holds."""
        if state.ended_by is not None:
            return state.ended_by
        if state.get("done"):
            return "state_done"
        for function in self._functions("stop", state):
            if await self._call(function, state):
                return function.name
        return None
