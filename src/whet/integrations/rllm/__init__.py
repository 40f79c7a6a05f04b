"""Environments of whet in rLLM: a workflow that its trainers run. `__main__.py` is a command that starts one.

rLLM renders messages, samples and learns; whet plays the environment and scores. A turn is a `Step` with the ids and
logprobs that rLLM's engine returned. The rollouts of a task, which rLLM runs one by one, are attempted and scored as
one group. A rollout that failed raises its error, which rLLM retries and reports; it has no reward.

Source of the interfaces: rLLM 0.3, `rllm/types.py`, `rllm/workflows/workflow.py`,
`rllm/engine/rollout/rollout_engine.py`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping
from typing import Any, cast

from whet.clients.providers.openai_chat import OpenAIChatCompletionsClient
from whet.clients.providers.openai_shared import tokens_of
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError, OverlongPromptError
from whet.messages import as_tool_call, content_text
from whet.rollouts.groups import run_group
from whet.rollouts.limits import Limit, rollout_limit
from whet.types import Response, ResponseMessage, RolloutInput, SamplingArgs, State, ToolCall, TrajectoryStep, Usage

SAMPLING = ("max_tokens", "temperature", "top_k", "top_p")
"""What the engines of both backends take for a turn; rLLM's own settings hold for the rest."""
_WORKS = "whet works with rLLM 0.3, from a checkout of github.com/rllm-org/rllm"
try:
    from rllm.types import Episode, Step, Trajectory
    from rllm.workflows.workflow import TerminationEvent, TerminationReason, Workflow
except ImportError as error:
    raise ConfigError(f"rllm cannot be imported here ({error}); {_WORKS}.") from error
try:
    _version = importlib.metadata.version("rllm")
except importlib.metadata.PackageNotFoundError:  # a checkout on the path: the imports above are what it is known by
    _version = "0.3"
if not _version.startswith("0.3"):
    raise ConfigError(f"rllm is {_version}; {_WORKS}.")


class RolloutEngineClient(OpenAIChatCompletionsClient):
    """A rollout engine of rLLM as a client: messages in, the answer with its ids and logprobs out."""

    _reasoning_field = "reasoning"

    async def get_native_response(
        self, prompt: list[dict[str, Any]], model: str, sampling_args: SamplingArgs, tools: Any = None, **kwargs: Any
    ) -> Any:
        """The turn's number, and rLLM's `ModelOutput`. Raises `OverlongPromptError` where rLLM says so."""
        state = kwargs.get("state") or {}
        messages = [{**message, "content": _text_of(message["content"])} for message in prompt]
        named = {"application_id": state["trajectory_id"]} if state else {}
        try:
            output = await self.client.get_model_response(messages, tools=tools or [], **named, **sampling_args)
        except TerminationEvent as event:
            if event.reason is TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED:
                raise OverlongPromptError("the prompt is longer than data.max_prompt_length") from event
            raise
        return len(state.get("trajectory", ())), output

    async def raise_from_native_response(self, response: Any) -> None:
        """An answer without text is an answer."""

    async def from_native_response(self, response: Any) -> Response:
        turn, output = response
        calls = [_call(call, f"call_{turn}_{number}") for number, call in enumerate(output.tool_calls or ())]
        tokens = tokens_of(output.prompt_ids, output.completion_ids, output.logprobs)
        if tokens is not None and output.weight_version is not None:
            tokens["policy_version"] = [[output.weight_version, len(output.completion_ids)]]
        truncated = output.finish_reason == "length"
        message = ResponseMessage(
            output.text if output.content is None else output.content,
            reasoning_content=output.reasoning or None,
            tool_calls=calls or None,
            finish_reason="length" if truncated else "tool_calls" if calls else "stop",
            is_truncated=truncated,
            tokens=tokens,
        )
        usage = Usage(prompt_tokens=output.prompt_length, completion_tokens=output.completion_length)
        return Response(id=f"rllm-{turn}", model="", message=message, usage=usage)


def _text_of(content: Any) -> str:
    if isinstance(content, list) and any(part.get("type") != "text" for part in content):
        raise ConfigError("the environment has images or audio in its messages, and whet passes text alone to rLLM.")
    return content_text(content)


def _call(call: Any, name: str) -> ToolCall:
    """A call in any of the forms that engines return: rLLM's own, which has no id, or OpenAI's."""
    given = call if isinstance(call, Mapping) or hasattr(call, "function") else vars(call)
    return as_tool_call({"id": name, **given} if isinstance(given, Mapping) else given)


class EnvTasks:
    """The tasks of one environment, and the groups that are being attempted: what the workflows of a run share.

    Args:
        env: an environment, or its id, which is loaded with `env_args` in the process that attempts it.
        sampling_args: for each turn, over rLLM's own; names are those of `SAMPLING`. Raises `ConfigError` for others.
        group_size, val_group_size: how many rollouts of one task rLLM runs, in training and in validation.
        max_concurrent: rollouts that generate at once; -1 = all.
        max_retries: how often a rollout is attempted again that failed for reasons outside model and task.
    """

    def __init__(
        self,
        env: Environment | str,
        env_args: Mapping[str, Any] | None = None,
        *,
        sampling_args: SamplingArgs | None = None,
        group_size: int = 1,
        val_group_size: int = 1,
        max_concurrent: int = -1,
        max_retries: int = 2,
    ) -> None:
        self._given, self._env_args, self._env = env, dict(env_args or {}), None if isinstance(env, str) else env
        names = {"max_completion_tokens": "max_tokens"}
        self._args = {names.get(name, name): value for name, value in (sampling_args or {}).items()}
        if wrong := self._args.keys() - set(SAMPLING):
            raise ConfigError(f"rLLM's engines do not take {', '.join(sorted(wrong))}, but {', '.join(SAMPLING)}.")
        self._sizes = {False: group_size, True: val_group_size}
        self._max_concurrent, self._max_retries = max_concurrent, max_retries
        self._limit: Limit | None = None
        self._groups: dict[tuple[str, Any], tuple[asyncio.Task[list[State]], list[int]]] = {}

    @property
    def env(self) -> Environment:
        """The environment, loaded when it is first used."""
        if self._env is None:
            self._env = load_environment(cast(str, self._given), **self._env_args)
        return self._env

    async def state(self, engine: Any, row: RolloutInput, uid: str, *, again: bool) -> State:
        """The next rollout of the group of `uid` (`TASK:NUMBER`), scored with the others.

        The first of a group attempts all of it. One that is attempted `again` has a group of its own where the rubric
        compares rollouts, and is attempted by itself otherwise.
        """
        size = self._sizes[bool(engine.is_validation)]
        if again:
            return (await self._attempt(engine, row, size if self.env.requires_group_rollouts else 1))[0]
        key = uid.rpartition(":")[0], row["example_id"]
        if key not in self._groups:
            self._groups[key] = asyncio.create_task(self._attempt(engine, row, size)), list(range(size))
        group, numbers = self._groups[key]
        number = numbers.pop(0)
        if not numbers:
            del self._groups[key]
        return (await asyncio.shield(group))[number]  # one that is cancelled leaves the others theirs

    async def _attempt(self, engine: Any, row: RolloutInput, size: int) -> list[State]:
        if self._limit is None:
            self._limit = rollout_limit(self._max_concurrent)
        client, retries = RolloutEngineClient(engine), self._max_retries
        rows, name = [row] * size, str(getattr(engine, "model_name", ""))
        return await run_group(self.env, rows, client, name, self._args, limit=self._limit, max_retries=retries)


class EnvWorkflow(Workflow):  # type: ignore[misc]  # rLLM has no types
    """One rollout of an environment of whet, for `AgentTrainer(workflow_class=..., workflow_args={"tasks": ...})`."""

    def __init__(self, rollout_engine: Any, tasks: EnvTasks, **kwargs: Any) -> None:
        super().__init__(rollout_engine=rollout_engine, **kwargs)
        self.tasks = tasks
        self._failed: str | None = None

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Any:
        """The episode of a row of the environment. Raises the error of a rollout that failed."""
        again, self._failed = uid == self._failed, uid
        self.reset(task, uid)
        state = await self.tasks.state(self.rollout_engine, cast(RolloutInput, task), uid, again=again)
        if state["error"] is not None:
            raise state["error"]
        self._failed = None
        return episode(state, task, uid, self.tasks.env)


def episode(state: State, task: Any, uid: str, env: Environment) -> Any:
    """A scored rollout as rLLM's `Episode`: one trajectory, each turn a step with the ids that were sampled."""
    reward = float(state["reward"])
    turns = [step for step in state["trajectory"] if step["tokens"] is None or step["tokens"]["completion_ids"]]
    steps = [_step(turn, reward) for turn in turns]
    return Episode(
        id=uid,
        task=task,
        termination_reason=_ended(state, env),
        is_correct=reward >= env.pass_threshold,
        trajectories=[Trajectory(name="whet", task=task, steps=steps, reward=reward)],
        metrics={name: float(value) for name, value in (state["metrics"] or {}).items()},
    )


def _step(step: TrajectoryStep, reward: float) -> Any:
    tokens: Mapping[str, Any] = step["tokens"] or {}
    versions = tokens.get("policy_version")
    return Step(
        prompt_ids=list(tokens.get("prompt_ids", ())),
        response_ids=list(tokens.get("completion_ids", ())),
        logprobs=list(tokens.get("completion_logprobs", ())),
        chat_completions=[dict(message) for message in [*step["prompt"], *step["completion"]]],
        model_response=content_text(step["completion"][-1].get("content")),
        reward=reward if step["reward"] is None else float(step["reward"]),
        weight_version=versions[0][0] if versions else None,
    )


def _ended(state: State, env: Environment) -> Any:
    if state.get("prompt_too_long"):
        return TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    if state.get("timed_out"):
        return TerminationReason.TIMEOUT
    if any(step["is_truncated"] for step in state["trajectory"][-1:]):
        return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    if state["stop_condition"] == "max_turns_reached" and getattr(env, "max_turns", 1) > 1:
        return TerminationReason.MAX_TURNS_EXCEEDED
    return TerminationReason.ENV_DONE
