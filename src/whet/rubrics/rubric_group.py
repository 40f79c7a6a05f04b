"""`RubricGroup`: several rubrics as one. Rewards add up, functions are added to the first rubric.

Metrics are merged: one function in several rubrics adds up, different ones of one name are numbered (`f`, `f_2`).

The advantage is computed once, from the total reward, after the last rubric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from whet.calls import call_all, name_of
from whet.errors import ConfigError
from whet.rubrics.metric_names import metric_names
from whet.rubrics.rubric import (
    GroupScoreObjectProvider,
    Rubric,
    ScoreObjectProvider,
    within_score_sem,
)
from whet.types import RewardFunc, State

NO_RUBRIC = "RubricGroup must have at least one rubric."


class RubricGroup(Rubric):
    """Several rubrics as one: rewards add up, metrics are merged."""

    def __init__(self, rubrics: list[Rubric], **kwargs: Any) -> None:
        """Make a group.

        Args:
            rubrics: at least one; each keeps its own parser and objects.
            kwargs: arguments of `Rubric`; functions among them would not be run, they belong to the first rubric.
        """
        if not rubrics:
            raise ConfigError(NO_RUBRIC)
        super().__init__(**kwargs)
        self.rubrics = list(rubrics)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        assert self.rubrics, NO_RUBRIC
        self.rubrics[0].add_reward_func(func, weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        self.rubrics[0].add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        self.rubrics[0].add_class_object(name, obj)

    def add_score_object_provider(self, provider: ScoreObjectProvider) -> None:
        super().add_score_object_provider(provider)
        for rubric in self.rubrics:
            rubric.add_score_object_provider(provider)

    def add_group_score_object_provider(self, provider: GroupScoreObjectProvider) -> None:
        super().add_group_score_object_provider(provider)
        for rubric in self.rubrics:
            rubric.add_group_score_object_provider(provider)

    @property
    def has_group_rewards(self) -> bool:
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        return any(rubric.has_advantages for rubric in self.rubrics)

    @within_score_sem
    async def score_rollout(self, state: State) -> None:
        total = _Total([state])
        for rubric, names in zip(self.rubrics, self._names(), strict=True):
            await rubric.score_rollout(state)
            total.take(dict(names))
        total.put()

    async def add_scores(self, states: list[State]) -> None:
        total = _Total(states)
        for rubric, names in zip(self.rubrics, self._names(), strict=True):
            if _scores_groups_its_own_way(rubric):
                blank = [step for state in states for step in state["trajectory"] if step["advantage"] is None]
                unrewarded = [step for state in states for step in state["trajectory"] if step["reward"] is None]
                await rubric.score_group(states)
                if not rubric.has_advantages:
                    # Computed from this rubric's share of the reward; the total is not known yet.
                    for step in blank:
                        step["advantage"] = None
                    for step in unrewarded:
                        step["reward"] = None
            else:
                await rubric.add_scores(states)
            total.take(dict(names))
        total.put()

    async def cleanup(self, state: State) -> None:
        await super().cleanup(state)
        for rubric in self.rubrics:
            await rubric.cleanup(state)

    async def teardown(self) -> None:
        await call_all([super().teardown, *(rubric.teardown for rubric in self.rubrics)])

    def _group_func_names(self) -> list[str]:
        return [name for rubric in self.rubrics for name in rubric._group_func_names()]

    def _get_reward_func_names(self) -> list[str]:
        return [shown for names in self._names() for _, shown in names]

    def _names(self) -> list[list[tuple[str, str]]]:
        """For each rubric, its metrics: the name of each there, and the one that it has here."""
        parts = [list(_named_functions(rubric)) for rubric in self.rubrics]
        shown = iter(metric_names((_unnumbered(*named), named[1]) for part in parts for named in part))
        return [[(name, next(shown)) for name, _ in part] for part in parts]

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return [func for rubric in self.rubrics for func in rubric._get_reward_funcs()]

    def _get_reward_weights(self) -> list[float]:
        return [weight for rubric in self.rubrics for weight in rubric._get_reward_weights()]


class _Total:
    """Sums what one rubric after the other has written into the states."""

    def __init__(self, states: list[State]) -> None:
        self.states = states
        self.before = [state.get("reward") for state in states]
        self.rewards = [0.0] * len(states)
        self.metrics: list[dict[str, float]] = [{} for _ in states]

    def take(self, names: Mapping[str, str]) -> None:
        """Add the scores of a rubric; `names` are the group's for its metrics."""
        for index, state in enumerate(self.states):
            self.rewards[index] += state.get("reward") or 0.0
            state["reward"] = self.before[index]  # which functions of the next rubric may read
            metrics = self.metrics[index]
            for own, value in (state.get("metrics") or {}).items():
                name = names.get(own, own)
                metrics[name] = metrics.get(name, 0.0) + value

    def put(self) -> None:
        for state, reward, metrics in zip(self.states, self.rewards, self.metrics, strict=True):
            state["reward"] = None if state.get("error") is not None else reward
            state["metrics"] = metrics


def _scores_groups_its_own_way(rubric: Rubric) -> bool:
    return type(rubric).score_group is not Rubric.score_group or rubric.has_advantages


def _named_functions(rubric: Rubric) -> Iterator[tuple[str, RewardFunc | None]]:
    """The metrics of a rubric with their functions; None where a name stands for those of several environments."""
    names = rubric._get_reward_func_names()
    return zip_longest(names, rubric._get_reward_funcs()[: len(names)])


def _unnumbered(name: str, func: RewardFunc | None) -> str:
    own = name if func is None else name_of(func)
    return own if name.removeprefix(f"{own}_").isdigit() else name


def rubrics_of(rubric: Rubric) -> Iterator[Rubric]:
    """The rubrics that have the functions, of groups of rubrics and of environments too."""
    parts: list[Rubric] = getattr(rubric, "rubrics", [])
    for part in parts:
        yield from rubrics_of(part)
    if not parts:
        yield rubric
