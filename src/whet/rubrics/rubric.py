"""`Rubric`: reward functions and their weights, and how a rollout or a group of rollouts is scored by them.

Reward functions are plain or async functions that take what they name: prompt, completion, answer, info, state, task,
parser, any object given to `add_class_object`, any extra column of the dataset row, or `**kwargs` for all of it. A
function with a plural name among its parameters (completions, prompts, answers, infos, states, tasks), or whose
return annotation is a list, scores a whole group at once.

A rollout that is already errored is not scored, and one whose reward function raises or returns something that is not
a finite number *becomes* errored: its reward is None, never a silent 0. Plain functions run on the event loop, in
order, so that scoring is repeatable. Different functions of one name are metrics of their own: `f`, `f_2`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, TypeVar

from whet.calls import CallSpec, call_all, describe, is_awaitable, package_of, resolve
from whet.clients.usage import judging
from whet.decorators import discover_decorated, sort_by_priority
from whet.errors import ConfigError, RewardError, SandboxFileError, WhetError
from whet.parsers.parser import Parser
from whet.rubrics.metric_names import metric_names
from whet.types import RewardFunc, State

R = TypeVar("R")
T = TypeVar("T")
GROUP_PARAMETERS = frozenset({"states", "prompts", "completions", "answers", "tasks", "infos"})
ScoreObjectProvider = Callable[[State], Mapping[str, Any]]
GroupScoreObjectProvider = Callable[[list[State]], Mapping[str, Any]]
LARGEST = 1e30
"""Of a reward or metric either way: sums and squares of greater ones are not finite, in 32 bits or in 64."""
_OWN = "steps_with_own_"
"""Numbers of the steps that had one when those of the rollouts were set; only where there are some."""


def within_score_sem(score: Callable[[R, T], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A scoring method that takes `score_sem` as well, as trainers for 0.1.9 call it: a limit to be scored within.

    Such a trainer reads rewards as numbers: a single rollout without one raises its error, and steps without a reward
    of their own get the rollout's.
    """

    @functools.wraps(score)
    async def limited(self: R, scored: T, score_sem: AbstractAsyncContextManager[Any] | None = None) -> None:
        async with score_sem or nullcontext():
            await score(self, scored)
        if score_sem is not None and isinstance(scored, State):
            if scored.get("error") is not None:
                raise scored["error"]
            for step in scored["trajectory"]:
                step["reward"] = scored["reward"] if step["reward"] is None else step["reward"]

    return limited


class Rubric:
    """Reward functions and their weights."""

    def __init__(
        self,
        funcs: list[RewardFunc] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
    ) -> None:
        """Make a rubric.

        Args:
            funcs: reward functions, run in this order.
            weights: one for each function; otherwise 1.0 each.
            parser: offered to the functions; otherwise a plain `Parser`.
        """
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        for name, value in (("funcs", funcs), ("weights", weights)):
            if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
                raise ConfigError(f"{type(self).__name__} has {name}={value!r:.80}; it should be a list.")
        self.funcs = list(funcs or [])
        self.weights = list(weights or [1.0] * len(self.funcs))
        for func in self.funcs:
            if not callable(func):
                raise ConfigError(f"{type(self).__name__} has the reward function {func!r:.80}, which is no function.")
        if len(self.weights) != len(self.funcs):
            raise ConfigError(
                f"{type(self).__name__} has {len(self.funcs)} reward functions and {len(self.weights)} weights; "
                "give one weight for each function."
            )
        for weight in self.weights:
            if _as_number(weight) is None:
                raise ConfigError(f"{type(self).__name__} has the weight {weight!r:.80}; it should be a number.")
        self.parser = parser or Parser()
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self.score_object_providers: list[ScoreObjectProvider] = []
        self.group_score_object_providers: list[GroupScoreObjectProvider] = []
        self._specs: dict[Callable[..., Any], CallSpec] = {}
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """A function whose value, times `weight`, counts towards the reward."""
        self.funcs.append(func)
        self.weights.append(weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """A function whose value is recorded; it does not count towards the reward unless given a weight."""
        self.add_reward_func(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Offer `obj` to every function that has a parameter `name`."""
        self.class_objects[name] = obj

    def add_score_object_provider(self, provider: ScoreObjectProvider) -> None:
        self.score_object_providers.append(provider)

    def add_group_score_object_provider(self, provider: GroupScoreObjectProvider) -> None:
        self.group_score_object_providers.append(provider)

    def add_cleanup_handler(self, handler: Callable[..., Any]) -> None:
        self._cleanup_handlers = sort_by_priority([*self._cleanup_handlers, handler], "cleanup")

    @property
    def has_group_rewards(self) -> bool:
        return any(self._is_group_func(func) for func in self.funcs)

    @property
    def has_advantages(self) -> bool:
        """Whether this rubric sets `state["advantage"]` itself."""
        return False

    def sets_advantages_of(self, states: list[State]) -> bool:
        """Whether it does for this group."""
        return self.has_advantages

    @within_score_sem
    async def score_rollout(self, state: State) -> None:
        """Set reward and metrics of one rollout; a rubric with no functions gives 0."""
        group_funcs = self._group_func_names()
        if group_funcs:
            raise ConfigError(
                f"{', '.join(group_funcs)} scores whole groups, so rollouts cannot be scored one by one. "
                "Leave independent_scoring off."
            )
        await self.add_scores([state])

    @within_score_sem
    async def score_group(self, states: list[State]) -> None:
        """Set reward, metrics and advantage of every rollout of a group."""
        await self.add_scores(states)
        if not self.has_advantages:
            assign_advantages(states)

    async def dummy_score_rollout(self, state: State) -> None:
        """The placeholder for scores when scoring is turned off."""
        state["reward"] = None if state.get("error") is not None else 0.0
        state["metrics"] = {}

    async def dummy_score_group(self, states: list[State]) -> None:
        for state in states:
            await self.dummy_score_rollout(state)

    async def add_scores(self, states: list[State]) -> None:
        """Set reward and metrics, function by function; the rollouts of the group concurrently.

        Functions read in `state["reward"]` what the environment left there, such as a hook that ran tests.
        """
        earned = {id(state): 0.0 for state in states}
        for state in states:
            state["metrics"] = {}
        for func, weight, spec in self._weighted_funcs():
            live = [state for state in states if state.get("error") is None]
            if not live:
                break
            for state, number in zip(live, await self._numbers(func, spec, live), strict=True):
                earned[id(state)] += weight * number
        for state in states:
            state["reward"] = None if state.get("error") is not None else earned[id(state)]

    async def cleanup(self, state: State) -> None:
        """Run the `@cleanup` handlers of this rubric, after the rollout has been scored; all, also where one raises."""
        for handler in self._cleanup_handlers:
            spec = self._spec(handler)
            try:
                await resolve(handler(**self._arguments(spec, state)))
            except WhetError:
                raise
            except Exception as error:
                mark_unscored([state], f"cleanup '{spec.name}'", error)

    async def teardown(self) -> None:
        """Run the `@teardown` handlers of this rubric."""
        await call_all(self._teardown_handlers)

    async def _numbers(self, func: RewardFunc, spec: CallSpec, states: list[State]) -> list[float]:
        """What a function returns for each rollout, which become metrics; 0 where a rollout is errored by it."""
        values = await (self._score_together if self._is_group_func(func) else self._score_each)(func, spec, states)
        return [_record(state, func, spec.name, value) for state, value in zip(states, values, strict=True)]

    async def _score_each(self, func: RewardFunc, spec: CallSpec, states: list[State]) -> list[Any]:
        values: list[Any] = []
        for state in states:
            try:
                value: Any = func(**self._arguments(spec, state))
                values.append(_judge(state, value) if is_awaitable(value) else value)
            except WhetError:
                raise
            except Exception as error:
                values.append(error)
        waiting = [index for index, value in enumerate(values) if is_awaitable(value)]
        if waiting:
            answers = await asyncio.gather(*(values[index] for index in waiting), return_exceptions=True)
            for index, answer in zip(waiting, answers, strict=True):
                values[index] = answer
        return values

    async def _score_together(self, func: RewardFunc, spec: CallSpec, states: list[State]) -> list[Any]:
        try:
            values = await resolve(func(**spec.select(self._group_objects(states))))
            if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or len(values) != len(states):
                raise RewardError(
                    f"group reward function '{spec.name}' returned {_short(values)}; "
                    f"it should return a list of {len(states)} numbers, one for each rollout"
                )
        except WhetError:
            raise
        except Exception as error:
            return [error] * len(states)
        return list(values)

    def _arguments(self, spec: CallSpec, state: State) -> dict[str, Any]:
        if spec.takes_all:
            return self._objects(state)
        if self.score_object_providers or not all(name in _CORE or name in self.class_objects for name in spec.names):
            return spec.select(self._objects(state))
        objects = self.class_objects
        return {
            name: objects[name] if name in objects and name != "task" else _CORE[name](state) for name in spec.names
        }

    def _objects(self, state: State) -> dict[str, Any]:
        task = state.get("task")
        objects = {key: value for key, value in state["input"].items() if key not in State.INPUT_FIELDS}
        if isinstance(task, Mapping):
            objects.update(task)
        objects.update({name: read(state) for name, read in _CORE.items()})
        objects.update(self.class_objects)
        objects["task"] = task
        for provider in self.score_object_providers:
            objects.update(provider(state))
        return objects

    def _group_objects(self, states: list[State]) -> dict[str, Any]:
        objects = {f"{name}s": [read(state) for state in states] for name, read in _CORE.items()}
        objects["states"] = states
        objects.update(self.class_objects)
        for provider in self.group_score_object_providers:
            objects.update(provider(states))
        return objects

    def _weighted_funcs(self) -> Iterator[tuple[RewardFunc, float, CallSpec]]:
        """Functions and weights in order, each signature with the name of the function's metric."""
        for func, weight, name in zip(self.funcs, self.weights, self._metric_names(), strict=True):
            spec = self._spec(func)
            yield func, weight, spec if spec.name == name else replace(spec, name=name)

    def _metric_names(self) -> list[str]:
        return metric_names((self._spec(func).name, func) for func in self.funcs)

    def _spec(self, func: Callable[..., Any]) -> CallSpec:
        spec = self._specs.get(func)
        if spec is None:
            spec = self._specs[func] = CallSpec.of(func)
        return spec

    def _is_group_func(self, func: Callable[..., Any]) -> bool:
        spec = self._spec(func)
        return spec.returns_list or not GROUP_PARAMETERS.isdisjoint(spec.names)

    def _group_func_names(self) -> list[str]:
        return [self._spec(func).name for func in self.funcs if self._is_group_func(func)]

    def _get_reward_func_names(self) -> list[str]:
        return self._metric_names()

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return list(self.funcs)

    def _get_reward_weights(self) -> list[float]:
        return list(self.weights)


def assign_advantages(states: Sequence[State]) -> None:
    """Advantage = reward minus the mean reward of the group's scored rollouts; errored ones have none.

    Steps that carry a reward or an advantage of their own keep it, the others get the rollout's.
    """
    scored = [state for state in states if state.get("reward") is not None]
    if not scored:
        return
    mean = sum(state["reward"] for state in scored) / len(scored)
    set_advantages(scored, [state["reward"] - mean for state in scored])


def set_advantages(states: Sequence[State], advantages: Sequence[float]) -> None:
    """Give scored rollouts these advantages, and their steps, where those have none of their own."""
    for state, advantage in zip(states, advantages, strict=True):
        for name in ("advantage", "reward"):
            if own := [number for number, step in enumerate(state["trajectory"]) if step.get(name) is not None]:
                state[_OWN + name] = own
        state["advantage"] = advantage
        for step in state["trajectory"]:
            if step["advantage"] is None:
                step["advantage"] = advantage
            if step["reward"] is None:
                step["reward"] = state["reward"]


def own_step_advantages(state: State) -> dict[int, float]:
    """Of steps to which the environment gave an advantage, by the number of the step; others have the rollout's."""
    return _own_values(state, "advantage")


def own_step_rewards(state: State) -> dict[int, float]:
    """Of steps to which the environment gave a reward, by the number of the step; others say the rollout's, or none."""
    return _own_values(state, "reward")


def _own_values(state: State, name: Literal["advantage", "reward"]) -> dict[int, float]:
    return {
        number: value
        for number, step in enumerate(state["trajectory"])
        if (value := step.get(name)) is not None and (number in state.get(_OWN + name, ()) or value != state.get(name))
    }


def mark_unscored(states: Sequence[State], what: str, error: Exception) -> None:
    """Make rollouts errored because `what` raised `error`; a rollout that is errored already keeps its error."""
    wrapped = RewardError(f"{what} raised {describe(error)}")
    wrapped.__cause__ = error
    for state in states:
        state["reward"] = state["advantage"] = None
        if state.get("error") is None:
            state["error"] = wrapped


def _record(state: State, func: RewardFunc, name: str, value: Any) -> float:
    if isinstance(value, SandboxFileError) or (state.get("sandbox_failure") and isinstance(value, Exception)):
        value = value if isinstance(value, WhetError) else 0.0  # what cannot be computed is not earned
    if isinstance(value, BaseException):
        if isinstance(value, WhetError) or not isinstance(value, Exception):
            raise value
        if not isinstance(value, RewardError):
            cause = value
            value = RewardError(f"reward function '{name}'{package_of(func)} raised {describe(cause, func)}")
            value.__cause__ = cause
        state["error"] = value
        return 0.0
    number = _as_number(value)
    if number is None or abs(number) > LARGEST:
        problem = "not a finite number" if number is None else f"above {LARGEST:g}, the largest that a reward may be"
        state["error"] = RewardError(
            f"reward function '{name}'{package_of(func)} returned {_short(value)}, which is {problem}"
        )
        return 0.0
    state["metrics"][name] = number
    return number


async def _judge(state: State, value: Awaitable[Any]) -> Any:
    """Awaits a reward function; the cost of models that it calls counts for this rollout only."""
    with judging([state]):
        return await value


def _as_number(value: Any) -> float | None:
    """`value` as a finite float, else None. Numpy and torch scalars are numbers, strings are not."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_CORE: dict[str, Callable[[State], Any]] = {
    "prompt": lambda state: state["prompt"],
    "completion": lambda state: state.get("completion"),
    "answer": lambda state: state.get("answer", ""),
    "info": lambda state: state.get("info", {}),
    "task": lambda state: state.get("task"),
    "state": lambda state: state,
}
