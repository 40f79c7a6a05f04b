"""`V1Env`: a taskset of verifiers 0.4 (`verifiers.v1`), `v1:PACKAGE` or `v1:FOLDER`, as an environment.

    env = whet.load_environment("v1:./environments/glossary")
    env = whet.load_environment("v1:gsm8k", requirements=["gsm8k-v1"], agent="agent")

The taskset runs in a process of its own with its own dependencies (`v1_process.py`). A rollout is one of its episodes:
harness, tools, users, scoring and retries are verifiers'. Its model is whet's (`v1_gateway.py`), and the turns of the
trained agent's traces become the trajectory: prompt ids, sampled ids and logprobs as the engine gave them. A turn that
does not continue another begins a branch, as everywhere in whet. An episode that fails is an error of the rollout.

What it does not do: train several agents of an episode with rewards of their own (`agent` names one).
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from whet.calls import describe
from whet.decorators import cleanup, teardown
from whet.envs.config.arguments import Check, check_values
from whet.envs.multiturn_env import MultiTurnEnv
from whet.errors import ConfigError, EnvError, Error, MissingExtraError
from whet.integrations.v1_episode import EpisodeReply, error_of, turns_of
from whet.integrations.v1_process import V1Process, read_target
from whet.messages import content_text, normalize_messages
from whet.rubrics.rubric import Rubric
from whet.types import Messages, State, SystemMessage, Tool, UserMessage

if TYPE_CHECKING:
    from whet.integrations.v1_gateway import Recorder, V1Gateway

_RESULT = "v1_result"
"""Field of the state: reward and metrics of the episode, and what stopped the trained trace."""
_EXPECTED: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("num_train_examples", "num_eval_examples"), (Integral, "a whole number")),
    **dict.fromkeys(("taskset", "env"), (Mapping, "a dict")),
    **dict.fromkeys(("python", "agent"), (str, "text")),
    "requirements": (lambda value: isinstance(value, list | tuple), "a list"),
    "start_timeout": (lambda value: isinstance(value, Real) and float(value) > 0, "a number above 0"),
}


def load_environment(target: str, **kwargs: Any) -> V1Env:
    """The environment `v1:TARGET`."""
    return V1Env(target, **kwargs)


class EpisodeRubric(Rubric):
    """The rewards and metrics that an episode came back with."""

    async def add_scores(self, states: list[State]) -> None:
        await super().add_scores(states)
        for state in states:
            result = state.get(_RESULT)
            if state.get("error") is None and result is None:
                state["error"], state["reward"] = EnvError("the episode had not ended, so it has no reward"), None
            elif state.get("error") is None:
                state["reward"] += result["reward"]
                state["metrics"].update(result["metrics"])


class V1Env(MultiTurnEnv):
    """Episodes of a taskset of verifiers 0.4."""

    def __init__(
        self,
        target: str,
        taskset: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
        agent: str | None = None,
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        requirements: Sequence[str] = (),
        python: str | None = None,
        start_timeout: float = 900.0,
        **kwargs: Any,
    ) -> None:
        """Make an environment; nothing is installed or started yet.

        Args:
            target: the package of a taskset, or the folder of one.
            taskset: settings of the taskset, such as {"split": "train"}.
            env: settings of verifiers' environment: its id, its roles, timeouts, retries.
            agent: the role that is trained and whose reward counts; needed where an episode trains several.
            num_train_examples: the first tasks, to train on; fewer where there are fewer.
            num_eval_examples: the tasks after those, to evaluate on; 0 = the training tasks.
            requirements: what pip installs beside verifiers, such as the taskset's package.
            python: an interpreter with verifiers and the taskset, in place of an environment that whet makes.
            start_timeout: seconds that the taskset has to be loaded, and to list its tasks.
            kwargs: arguments of `MultiTurnEnv`; the rewards of a rubric are added to those of the taskset.
        """
        check_values(self, locals(), _EXPECTED)
        if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
            raise MissingExtraError("a taskset of verifiers 0.4", "serve")
        if "max_turns" in kwargs:
            raise ConfigError('a taskset takes no max_turns: limit its role, env = {"agent": {"max_turns": 4}}.')
        name, folder = read_target(target)
        self.target, self.agent = target, agent
        self._key = secrets.token_urlsafe(24)
        self._gateway: V1Gateway | None = None
        config = {**(env or {}), "taskset": {**(taskset or {}), "id": name}}
        self._process = V1Process(config, folder, python, requirements, self._key, start_timeout)
        self._examples, self._start_timeout = (num_train_examples, num_eval_examples), start_timeout
        self._rows: list[dict[str, Any]] | None = None
        rubric = kwargs.pop("rubric", None)
        super().__init__(
            dataset=partial(self._read_rows, held_out=False),
            eval_dataset=partial(self._read_rows, held_out=True) if num_eval_examples > 0 else None,
            rubric=EpisodeRubric(),
            **kwargs,
        )
        if rubric is not None:
            self.add_rubric(rubric)

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        if max_total_completion_tokens > 0:
            raise ConfigError('a taskset has its limits by role: env = {"agent": {"max_output_tokens": 1000}}.')

    def _read_rows(self, held_out: bool) -> list[dict[str, Any]]:
        train, held = self._examples
        if self._rows is None:
            _, reply = self._process.request("tasks", limit=train + held)
            try:
                self._rows = [_row(task) for task in reply.result(self._start_timeout)["tasks"]]
            except (Error, LookupError, TypeError, ValueError, AttributeError, TimeoutError) as error:
                raise ConfigError(f"'v1:{self.target}' has no tasks that can be read: {describe(error)}") from error
        rows = self._rows[train:] if held_out else self._rows[:train]
        if not rows:
            raise ConfigError(
                f"'v1:{self.target}' has {len(self._rows)} tasks, and num_train_examples ({train}) takes all of them."
                if self._rows
                else f"'v1:{self.target}' has no tasks."
            )
        return rows

    # One rollout

    async def get_prompt_messages(self, state: State) -> Messages:
        """Play the whole episode: the loop's only turn."""
        gateway = await self._gateway_here()
        recorder = gateway.add(state, state["client"], state["model"])
        try:
            number, reply = await asyncio.to_thread(
                self._process.request,
                "run",
                task=_task(state),
                url=gateway.url,
                model=state["trajectory_id"],
                **recorder.client_settings(),
            )
            try:
                answer = await asyncio.wrap_future(reply)
            except asyncio.CancelledError:
                self._process.cancel(number)
                raise
        finally:
            gateway.remove(state)
        try:
            episode = EpisodeReply.model_validate(answer)
        except ValidationError as error:
            raise EnvError(f"the taskset returned no episode: {error.errors(include_url=False)[0]['msg']}") from error
        await self._take(state, episode, recorder)
        state["final_env_response"] = []
        return []

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        raise NotImplementedError("an episode of a taskset is one turn of the loop")

    async def render_completion(self, state: State) -> None:
        """The prompt is that of the first turn, and the completion what the last one has beyond it."""
        if not state["trajectory"]:
            state["completion"] = []
            return
        first, last = state["trajectory"][0]["prompt"], state["trajectory"][-1]
        whole = [*last["prompt"], *last["completion"]]
        state["prompt"] = first
        state["completion"] = whole[len(first) :] if whole[: len(first)] == first else whole

    @cleanup
    async def note_stop(self, state: State) -> None:
        if state["error"] is None and state.get(_RESULT, {}).get("stop_condition"):
            state["stop_condition"] = state[_RESULT]["stop_condition"]

    @teardown
    async def stop_process(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            await gateway.close()
        self._process.close()  # at the exit of the interpreter too, which has no threads any more

    async def _gateway_here(self) -> V1Gateway:
        """The gateway of this event loop."""
        from whet.integrations.v1_gateway import V1Gateway

        loop = asyncio.get_running_loop()
        if self._gateway is None or self._gateway.loop is not loop:
            before, self._gateway = self._gateway, V1Gateway(self._key)
            if before is not None:
                await before.close()
        return self._gateway

    async def _take(self, state: State, episode: EpisodeReply, recorder: Recorder) -> None:
        """Record turns, reward and metrics. Raises what the episode failed by, and `ConfigError`."""
        chosen = [trace for trace in episode.traces if trace.trainable and self.agent in (None, trace.agent)]
        if not episode.ok:
            for prompt, response in turns_of(recorder.calls, chosen, whole=False):
                await self.add_model_response(state, prompt, response)
            raise error_of(episode, recorder)
        names = sorted({trace.agent for trace in chosen})
        if len(names) != 1:
            known = ", ".join(sorted({trace.agent for trace in episode.traces}))
            raise ConfigError(
                f"'v1:{self.target}' has episodes of {known}, and {len(names)} of these are trained: name the one that "
                f'is, args = {{ agent = "{(names or [known])[0]}" }}.'
            )
        for prompt, response in turns_of(recorder.calls, chosen, whole=True):
            await self.add_model_response(state, prompt, response)
        tools = {tool["name"]: Tool(**tool) for trace in chosen for tool in trace.tools}
        state["tool_defs"] = list(tools.values())
        state["is_truncated"] = any(trace.is_truncated for trace in chosen)
        values: dict[str, list[float]] = defaultdict(list)
        for trace in episode.traces:
            prefix = "" if trace in chosen else f"{trace.agent}_"
            for name, value in {**trace.metrics, **trace.rewards}.items():
                values[prefix + name].append(value)
        state[_RESULT] = {
            "reward": sum(trace.reward for trace in chosen) / len(chosen),
            "metrics": {name: sum(numbers) / len(numbers) for name, numbers in values.items()},
            "stop_condition": chosen[-1].stop_condition,
        }


def _row(task: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the dataset: the messages that a task begins with, and the task."""
    prompt, system = task.get("prompt"), task.get("system_prompt")
    messages: list[Any] = [SystemMessage(system)] if system else []
    messages += [UserMessage(prompt)] if isinstance(prompt, str) else prompt or []
    answer = task.get("answer")
    answer = "" if answer is None else answer if isinstance(answer, str) else repr(answer)
    return {"prompt": normalize_messages(messages), "answer": answer, "info": {"v1": dict(task)}}


def _task(state: State) -> dict[str, Any]:
    """The task, with the system prompt that the rollout begins with, which may be another than the task's."""
    task = dict(state["info"]["v1"])
    before, now = (_opening(messages) for messages in (_row(task)["prompt"], state["prompt"]))
    if before != now:
        if not task.get("system_prompt") and before is not None:
            task["prompt"] = task["prompt"][1:]
        task["system_prompt"] = now
    return task


def _opening(messages: Messages) -> str | None:
    return content_text(messages[0]["content"]) if messages and messages[0]["role"] == "system" else None
