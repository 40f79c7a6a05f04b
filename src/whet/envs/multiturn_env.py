"""`MultiTurnEnv`: the rollout loop. The model and the environment take turns until a stop condition holds.

    setup -> until completed: prompt (environment's turn) -> model -> record the step -> check the stops -> clean-up

A failure inside a rollout is stored in `state["error"]` and ends only that rollout. Clean-up always runs: after
completion, error, time-out and cancellation.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, Literal, cast, final

from whet.calls import resolve
from whet.clients.client import AnyClient
from whet.decorators import cleanup, stop
from whet.envs.config.arguments import Check, check_values
from whet.envs.config.texts import wording_of
from whet.envs.environment import Environment
from whet.errors import ConfigError, OverlongPromptError, WhetError
from whet.lazy_ids import TurnTokens, unread
from whet.messages import normalize_messages
from whet.rollouts.limits import to_the_end
from whet.rollouts.pace import current_pace
from whet.rollouts.states import rollout_begins
from whet.rubrics.rubric import Rubric
from whet.types import (
    AssistantMessage,
    Messages,
    Response,
    RolloutInput,
    SamplingArgs,
    State,
    TimeSpan,
    TrajectoryStep,
    TrajectoryStepTokens,
)

_EXPECTED: dict[str, tuple[Check, str]] = {
    "max_turns": (Integral, "a number of turns, or -1 for no limit"),
    "timeout_seconds": (
        lambda value: isinstance(value, Real) and float(value) > 0,
        "a number of seconds above 0, or None",
    ),
}


class MultiTurnMonitorRubric(Rubric):
    """Records the number of turns."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(self.num_turns)

    def num_turns(self, state: State) -> int:
        return len(state["trajectory"])


class MultiTurnEnv(Environment):
    """The model and the environment take turns until a stop condition holds."""

    def __init__(self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any) -> None:
        """Make an environment of several turns.

        Args:
            max_turns: model turns after which the rollout ends; -1 = no limit.
            timeout_seconds: seconds after which the rollout ends; None = no limit.
            kwargs: arguments of `Environment`.
        """
        check_values(self, locals(), _EXPECTED)
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self._prompts_are_linear = type(self).get_prompt_messages is MultiTurnEnv.get_prompt_messages
        self.add_rubric(MultiTurnMonitorRubric())

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """The environment's turn: the messages that follow `messages`.

        Set `state["final_env_response"]` to end the rollout with these messages instead.
        """

    async def setup_state(self, state: State) -> None:
        """Override to add fields to the state before the first turn."""

    async def get_prompt_messages(self, state: State) -> Messages:
        """The prompt of the next turn. Override if the conversation is not one growing list."""
        if not state["trajectory"]:
            prompt: Messages = state["prompt"]
            return prompt
        last = state["trajectory"][-1]
        messages = last["prompt"] + last["completion"]
        response = await resolve(self.env_response(messages, state))
        return [*messages, *normalize_messages(response, field_name="env_response")]

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Override to set the reward, the advantage or the extras of a step."""
        state["trajectory"].append(trajectory_step)

    async def render_completion(self, state: State) -> None:
        """Set `state["completion"]`: everything after the prompt. Override it together with `get_prompt_messages`."""
        if not state["trajectory"]:
            state["completion"] = []
            return
        last = state["trajectory"][-1]
        conversation = last["prompt"] + last["completion"]
        if state.get("final_env_response"):
            conversation += normalize_messages(state["final_env_response"], field_name="final_env_response")
        state["completion"] = conversation[len(state["prompt"]) :]

    @stop(priority=100)
    async def has_error(self, state: State) -> bool:
        return state.get("error") is not None

    @stop(priority=100)
    async def sandbox_failed(self, state: State) -> bool:
        """Code in the sandbox made a file transfer fail (`SandboxFileError`): the rollout ends, and is scored."""
        return state.get("sandbox_failure") is not None

    @stop
    async def prompt_too_long(self, state: State) -> bool:
        return bool(state.get("prompt_too_long", False))

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        return 0 < self.max_turns <= len(state["trajectory"])

    @stop
    async def max_total_completion_tokens_reached(self, state: State) -> bool:
        if self.max_total_completion_tokens <= 0:
            return False
        usage = self.get_state_usage(state)
        return usage is not None and usage["output_tokens"] >= self.max_total_completion_tokens

    @stop
    async def has_final_env_response(self, state: State) -> bool:
        return state.get("final_env_response") is not None

    @cleanup(priority=100)
    async def render_state(self, state: State) -> None:
        """Set the completion, before any other clean-up."""
        state["timing"].generation.end = time.time()
        await self.render_completion(state)

    def mark_timed_out(self, state: State) -> None:
        state["timed_out"] = True
        state["is_completed"] = True
        state["stop_condition"] = "timeout_reached"

    @final
    async def rollout(
        self, input: RolloutInput, client: AnyClient, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        state = await self.init_state(input, client, model, sampling_args)
        rollout_begins(state)
        try:
            if self.timeout_seconds is None:  # `timeout(None)` costs microseconds
                await self._take_turns(state)
            else:
                await self._take_turns_in_time(state, self.timeout_seconds)
        finally:
            await to_the_end(self._finish(state, client))
        return state

    async def add_model_response(self, state: State, prompt_messages: Messages, response: Response) -> None:
        """Record one turn."""
        step = trajectory_step(prompt_messages, response, state["trajectory_id"], self.max_seq_len)
        await self.add_trajectory_step(state, step)

    async def _take_turns_in_time(self, state: State, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds) as deadline:
                await self._take_turns(state)
        except TimeoutError:
            if not deadline.expired():
                raise
            self.mark_timed_out(state)

    async def _take_turns(self, state: State) -> None:
        timing = state["timing"]
        pace = current_pace()
        timing.generation.start = timing.setup.start = time.time()
        given = state["prompt"]
        try:
            with self._recording(state, "setup_state"):
                for handler in self._setup_handlers:
                    await resolve(self._invoke(handler, state))
                await resolve(self.setup_state(state))
                if state["prompt"] is not given:
                    state["prompt"] = normalize_messages(state["prompt"], field_name="prompt")
                wording = wording_of(self)
                if wording is not None and wording.tools:
                    state["tool_defs"] = wording.described(state["tool_defs"])
        finally:
            timing.setup.end = time.time()
        while not await self._is_over(state):
            where = "env_response" if self._prompts_are_linear else "get_prompt_messages"
            try:
                start = time.time()
                prompt = await self.get_prompt_messages(state)
                if not self._prompts_are_linear:
                    prompt = normalize_messages(prompt, field_name="prompt_messages")
                if state["trajectory"]:
                    timing.env.spans.append(TimeSpan(start, time.time()))
                if state["final_env_response"] is not None:
                    continue
                where = "get_model_response"
                start = time.time()
                response = await self.get_model_response(state, prompt)
                timing.model.spans.append(TimeSpan(start, time.time()))
                if pace is not None and pace.spent():
                    await pace.turn()
                where = "add_trajectory_step"
                await self.add_model_response(state, prompt, response)
            except WhetError:
                raise
            except OverlongPromptError:
                state["prompt_too_long"] = True
                state["is_truncated"] = True
            except Exception as error:
                self._record_error(state, error, where)

    async def _is_over(self, state: State) -> bool:
        """`is_completed`; a stop condition that raises ends the rollout as errored."""
        try:
            return await self.is_completed(state)
        except WhetError:
            raise
        except Exception as error:
            self._record_error(state, error, "a stop condition")
            state["is_completed"] = True
            state["stop_condition"] = "has_error"
            return True

    async def _finish(self, state: State, client: AnyClient) -> None:
        try:
            await self.cleanup(state)
        finally:
            release = getattr(client, "release", None)
            if release is not None:
                await release(state)


class SingleTurnEnv(MultiTurnEnv):
    """One question, one answer."""

    def __init__(self, **kwargs: Any) -> None:
        """Make an environment of one turn; the arguments are those of `Environment`, and `timeout_seconds`."""
        if "max_turns" in kwargs:
            raise ConfigError(
                f"{type(self).__name__} has one turn, so it takes no max_turns; use MultiTurnEnv for more."
            )
        super().__init__(max_turns=1, **kwargs)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        raise NotImplementedError("a SingleTurnEnv ends after the model's turn")


_NOT_IN_THE_MESSAGE = frozenset({"role", "finish_reason", "is_truncated", "tokens"})
_WHERE_KNOWN: tuple[Literal["sampling", "kept_mass", "kept", "routed_experts"], ...] = (
    "sampling",
    "kept_mass",
    "kept",
    "routed_experts",
)


def completion_messages(response: Response) -> Messages:
    """The response as the one assistant message that goes into the conversation."""
    message = AssistantMessage.__new__(AssistantMessage)
    dict.__setitem__(message, "role", "assistant")
    for key, value in response["message"].items():
        if key not in _NOT_IN_THE_MESSAGE and (value is not None or key == "content"):
            dict.__setitem__(message, key, value)
    return [message]


def trajectory_step(
    prompt: Messages, response: Response, trajectory_id: str, max_seq_len: int | None = None
) -> TrajectoryStep:
    """One turn, without a reward or an advantage of its own."""
    tokens = step_tokens(response, max_seq_len)
    return TrajectoryStep(
        prompt=prompt,
        completion=completion_messages(response),
        response=response,
        tokens=tokens,
        reward=None,
        advantage=None,
        is_truncated=bool(response.message.is_truncated) or (tokens is not None and tokens["is_truncated"]),
        trajectory_id=trajectory_id,
        extras={},
    )


def step_tokens(response: Response, max_seq_len: int | None = None) -> TrajectoryStepTokens | None:
    """The tokens of the turn, of which at most `max_seq_len` of prompt and completion together are kept.

    A prompt that is too long by itself is cut and keeps no completion. None where the client gave no tokens.
    """
    tokens = response["message"].get("tokens")
    if tokens is None:
        return None
    prompt_ids, completion_ids = unread(tokens, "prompt_ids"), tokens["completion_ids"]
    step = TrajectoryStepTokens(
        prompt_ids=prompt_ids,
        prompt_mask=unread(tokens, "prompt_mask"),
        completion_ids=completion_ids,
        completion_mask=tokens["completion_mask"],
        completion_logprobs=tokens["completion_logprobs"],
        overlong_prompt=False,
        is_truncated=False,
        policy_version=tokens.get("policy_version") or [],
    )
    for name in _WHERE_KNOWN:
        if name in tokens:
            step[name] = tokens[name]
    step = cast(TrajectoryStepTokens, TurnTokens(step))
    if max_seq_len is None or len(prompt_ids) + len(completion_ids) <= max_seq_len:
        return step
    kept = max(0, max_seq_len - len(prompt_ids))
    step["is_truncated"] = True
    step["overlong_prompt"] = len(prompt_ids) > max_seq_len
    step["prompt_ids"] = step["prompt_ids"][:max_seq_len]
    step["prompt_mask"] = step["prompt_mask"][:max_seq_len]
    step["completion_ids"] = completion_ids[:kept]
    step["completion_mask"] = step["completion_mask"][:kept]
    step["completion_logprobs"] = step["completion_logprobs"][:kept]
    step["policy_version"] = _first(step["policy_version"], kept)
    if "routed_experts" in step:
        step["routed_experts"] = step["routed_experts"][: max_seq_len - 1]
    if "kept_mass" in step:
        step["kept_mass"] = step["kept_mass"][:kept]
    if "kept" in step:
        step["kept"] = step["kept"].first(kept)
    return step


def _first(runs: list[list[int]], count: int) -> list[list[int]]:
    """Runs of (version, length) cut to the first `count` tokens."""
    kept: list[list[int]] = []
    for version, length in runs:
        if count <= 0:
            break
        kept.append([version, min(length, count)])
        count -= length
    return kept
