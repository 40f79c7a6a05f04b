"""How the signals of a taskset score a group.

    rewards and metrics of each rollout ─▶ @cleanup ─▶ @update of the group ─▶ rewards and metrics of the group
        ─▶ rubrics added to the environment ─▶ @advantage, from the total reward ─▶ @cleanup of the group

This is the order of 0.1.14, except that the advantage is computed once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from whet.calls import errors_to, resolve
from whet.errors import ConfigError, RewardError
from whet.rubrics.rubric import LARGEST, Rubric, assign_advantages, mark_unscored, set_advantages, within_score_sem
from whet.rubrics.rubric_group import RubricGroup
from whet.tasksets.lifecycle import Lifecycle
from whet.tasksets.signals import Function, in_order
from whet.types import State


class SignalRubric(Rubric):
    """The rewards and metrics of a taskset and a harness."""

    def __init__(self, env: Lifecycle) -> None:
        super().__init__()
        self.env = env
        self.of_groups: set[Any] = set()
        use_reference_answers(self)

    def take(self, signals: Sequence[Function]) -> None:
        """Replace the scoring functions: those of one rollout first, then those of groups."""
        scoring = [signal for signal in signals if signal.kind != "advantage"]
        ordered = [*_of(scoring, "rollout"), *_of(scoring, "group")]
        self.funcs = [signal.function for signal in ordered]
        self.weights = [signal.weight for signal in ordered]
        self.of_groups = {signal.function for signal in ordered if signal.stage == "group"}

    async def add_scores(self, states: list[State]) -> None:
        await self.dummy_score_group(states)  # initial values; the scores are added to them
        await self._score(states, groups=False)
        for state in states:
            await self.env.clean_up(state)
        await self.env.update_group(_live(states))
        await self._score(states, groups=True)
        for state in states:
            if state.get("error") is not None:
                state["reward"] = None

    async def score_alone(self, state: State) -> None:
        """Reward and metrics of a rollout without a group; functions of groups do not run."""
        await self.dummy_score_rollout(state)
        await self._score([state], groups=False)
        await self.cleanup(state)
        if state.get("error") is not None:
            state["reward"] = None

    async def cleanup(self, state: State) -> None:
        await self.env.clean_up(state)
        await super().cleanup(state)

    async def _score(self, states: list[State], *, groups: bool) -> None:
        for func, weight, spec in self._weighted_funcs():
            live = _live(states)
            if self._is_group_func(func) is groups and live:
                for state, number in zip(live, await self._numbers(func, spec, live), strict=True):
                    state["reward"] += weight * number

    def _is_group_func(self, func: Any) -> bool:
        return func in self.of_groups if func in self.funcs else super()._is_group_func(func)


class EnvRubric(RubricGroup):
    """The rubric of an environment of a taskset: its signals, and the rubrics added to it."""

    def __init__(self, env: Lifecycle, others: Sequence[Rubric]) -> None:
        self.signals = SignalRubric(env)
        super().__init__([self.signals, *others])
        self.env = env
        self.advantage: Function | None = None

    def take(self, signals: Sequence[Function]) -> None:
        """Replace the scoring functions. Raises `ConfigError` for more than one advantage function."""
        advantages = [signal for signal in signals if signal.kind == "advantage"]
        if len(advantages) > 1:
            names = " and ".join(f"'{signal.name}'" for signal in advantages)
            raise ConfigError(f"{names} both set advantages; a group has one. Keep one, or skip the other in scoring.")
        self.advantage = advantages[0] if advantages else None
        self.signals.take(signals)

    @property
    def has_advantages(self) -> bool:
        return self.advantage is not None

    @within_score_sem
    async def score_rollout(self, state: State) -> None:
        if self.env.updates_groups:
            raise ConfigError("an @update of groups cannot run where rollouts are scored one by one.")
        await super().score_rollout(state)

    @within_score_sem
    async def score_group(self, states: list[State]) -> None:
        try:
            await self.add_scores(states)
            if self.advantage is None:
                assign_advantages(states)
            else:
                await self._own_advantages(self.advantage, _live(states))
        finally:
            await self.env.clean_up_group(states)

    async def dummy_score_group(self, states: list[State]) -> None:
        try:
            await super().dummy_score_group(states)
        finally:
            await self.env.clean_up_group(states)

    async def _own_advantages(self, advantage: Function, states: list[State]) -> None:
        if not states:
            return
        with errors_to(partial(mark_unscored, states, f"advantage '{advantage.name}'")):
            values = await resolve(advantage.function(**advantage.spec.select(self.signals._group_objects(states))))
            set_advantages(states, _numbers(values, advantage.name, len(states)))


def use_reference_answers(rubric: Rubric) -> None:
    """Pass the task's answer to functions that name `answer`: the state's is what the rollout submits."""
    rubric.add_score_object_provider(_reference)
    rubric.add_group_score_object_provider(_references)


def _of(signals: Sequence[Function], stage: str) -> list[Function]:
    return in_order(signal for signal in signals if signal.stage == stage)


def _live(states: Sequence[State]) -> list[State]:
    return [state for state in states if state.get("error") is None]


def _reference(state: State) -> dict[str, Any]:
    task = state.get("task")
    return {"answer": task.get("answer", "") if isinstance(task, Mapping) else ""}


def _references(states: Sequence[State]) -> dict[str, Any]:
    return {"answers": [_reference(state)["answer"] for state in states]}


def _numbers(values: Any, name: str, count: int) -> list[float]:
    if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or len(values) != count:
        raise RewardError(f"advantage '{name}' should return a list of {count} numbers, one for each rollout")
    numbers = [float(value) for value in values]
    if odd := [number for number in numbers if not abs(number) <= LARGEST]:
        problem = f"{len(odd)} of {count} numbers are not finite, or above {LARGEST:g}, such as {odd[0]}"
        raise RewardError(f"advantage '{name}': {problem}")
    return numbers
