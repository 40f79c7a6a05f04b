"""`EnvGroup`: several environments as one, for training or evaluating on a mixture of tasks.

The datasets are concatenated, with new `example_id`s and the name of the environment in `info["env_id"]`, or the path
of names in nested groups. Each environment runs and scores its own rollouts, and sees `info` without `env_id`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any, cast, final

from whet.calls import call_all
from whet.clients.client import AnyClient
from whet.decorators import teardown
from whet.envs.config.texts import SYSTEM_PROMPT, joined, texts_for
from whet.envs.datasets import Row, RowDataset
from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.messages import copy_value
from whet.rubrics.rubric import Rubric, within_score_sem
from whet.types import RolloutInput, SamplingArgs, State

ROUTE_KEY = "env_id"


class EnvGroup(Environment):
    """Several environments as one; each runs and scores its own rollouts."""

    def __init__(self, envs: Sequence[Environment], env_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        """Make a group.

        Args:
            envs: the environments; each keeps its own rubric, parser and tools.
            env_names: their names in `info["env_id"]`; by default env_0, env_1, ...
            kwargs: arguments of `Environment`, other than datasets and rubric.
        """
        self.envs = list(envs)
        self.env_names = list(env_names) if env_names is not None else [f"env_{i}" for i in range(len(self.envs))]
        if not self.envs:
            raise ConfigError("EnvGroup requires at least one environment.")
        if len(self.env_names) != len(self.envs):
            raise ConfigError(
                f"Number of env_names must match number of envs: EnvGroup has {len(self.envs)} environments and "
                f"{len(self.env_names)} env_names."
            )
        twice = [name for name, count in Counter(self.env_names).items() if count > 1]
        if twice:
            raise ConfigError(f"EnvGroup has two environments called '{twice[0]}'; give each an env_name of its own.")
        self.env_map = dict(zip(self.env_names, self.envs, strict=True))
        train = any(env.dataset_source is not None for env in self.envs)
        held_out = any(env.eval_dataset_source is not None for env in self.envs)
        super().__init__(
            dataset=self._train_rows if train else None,
            eval_dataset=self._eval_rows if held_out else None,
            rubric=EnvGroupRubric(self.env_map),
            **kwargs,
        )
        # Datasets from functions are built on first use, as in any environment.
        if not any(callable(env.dataset_source) for env in self.envs):
            self.build_dataset()
        if not any(callable(env.eval_dataset_source) for env in self.envs):
            self.build_eval_dataset()

    def get_env_for_name(self, name: str) -> Environment:
        return _named(self.env_map, name)

    def parse_failed(self, rollout: Mapping[str, Any]) -> bool | None:
        """As the member that the rollout belongs to says it."""
        env = environment_of(self, rollout)
        return super().parse_failed(rollout) if env is self else env.parse_failed(rollout)

    @final
    async def rollout(
        self, input: RolloutInput, client: AnyClient, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        route = self._route_of(input)
        state = await self.get_env_for_name(route[0]).rollout(_below(input, route), client, model, sampling_args)
        row = state["input"]
        row["info"] = {**_info_of(row), ROUTE_KEY: _as_value(route)}
        return state

    async def prepare_group(self, inputs: Sequence[RolloutInput]) -> Sequence[RolloutInput]:
        """The rows of a group, prepared by its environment."""
        routes = [self._route_of(row) for row in inputs]
        prepare = getattr(self.get_env_for_name(routes[0][0]), "prepare_group", None) if routes else None
        if prepare is None or any(route != routes[0] for route in routes):
            return inputs
        prepared = await prepare([_below(row, route) for row, route in zip(inputs, routes, strict=True)])
        return [
            cast(RolloutInput, {**row, "info": {**_info_of(row), ROUTE_KEY: _as_value(route)}})
            for row, route in zip(prepared, routes, strict=True)
        ]

    def prompt_texts(self) -> dict[str, str]:
        """The texts of its environments; a text that differs between them is named `<name>@<environment>`."""
        return joined({name: env.prompt_texts() for name, env in self.env_map.items()})

    def reword(self, texts: Mapping[str, str]) -> None:
        self._check_prompt_texts(texts)
        new = SYSTEM_PROMPT in texts and SYSTEM_PROMPT not in self.prompt_texts()  # none has one, so all are given it
        for name, env in self.env_map.items():
            own = texts_for(env, name, texts)
            env.reword({**own, SYSTEM_PROMPT: texts[SYSTEM_PROMPT]} if new else own)

    @contextmanager
    def worded(self, texts: Mapping[str, str]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, env in self.env_map.items():
                stack.enter_context(env.worded(texts_for(env, name, texts)))
            yield

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes of the group, and of its environments that have them."""
        super().set_kwargs(**kwargs)
        for key, value in kwargs.items():
            if not callable(getattr(self, f"set_{key}", None)):  # those pass it on themselves
                for env in self.envs:
                    if isinstance(env, EnvGroup) or hasattr(env, key):
                        env.set_kwargs(**{key: value})

    def _set(self, setting: str, value: Any) -> None:
        super()._set(setting, value)
        for env in self.envs:
            getattr(env, f"set_{setting}")(value)

    @teardown
    async def close_envs(self) -> None:
        await call_all(env.close for env in self.envs)

    def _train_rows(self) -> list[Row]:
        return self._rows({name: env.build_dataset() for name, env in self.env_map.items()})

    def _eval_rows(self) -> list[Row]:
        return self._rows({name: env.build_eval_dataset() for name, env in self.env_map.items()})

    def _rows(self, datasets: Mapping[str, RowDataset | None]) -> list[Row]:
        rows = []
        for name, dataset in datasets.items():
            for own in dataset or []:
                row = {key: copy_value(value) for key, value in own.items() if key != "example_id"}
                info = _info_of(row)
                row["info"] = {**info, ROUTE_KEY: _as_value([name, *_as_route(info.get(ROUTE_KEY))])}
                rows.append(row)
        return rows

    def _route_of(self, row: Mapping[str, Any]) -> list[str]:
        route = _as_route(_info_of(row).get(ROUTE_KEY))
        if route:
            return route
        if len(self.envs) == 1:
            return [self.env_names[0]]
        raise ConfigError(
            f"an input of {self._label()} does not say in info['{ROUTE_KEY}'] which environment it is for; "
            "take inputs from the group's get_dataset() or get_eval_dataset()."
        )


class EnvGroupRubric(Rubric):
    """Scores each rollout by its environment's rubric. Metrics of the others are 0, so that all rows have the same."""

    def __init__(self, env_map: Mapping[str, Environment]) -> None:
        super().__init__()
        self.env_map = dict(env_map)

    @property
    def rubrics(self) -> list[Rubric]:
        """Those of the environments."""
        return [env.rubric for env in self.env_map.values()]

    @property
    def has_group_rewards(self) -> bool:
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        return all(rubric.has_advantages for rubric in self.rubrics)

    def sets_advantages_of(self, states: list[State]) -> bool:
        with self._inside(states) as env:
            return env.rubric.sets_advantages_of(states)

    @within_score_sem
    async def score_rollout(self, state: State) -> None:
        with self._inside([state]) as env:
            rubric = env.rubric
            await (rubric.score_rollout(state) if env.score_rollouts else rubric.dummy_score_rollout(state))
        self._fill([state])

    @within_score_sem
    async def score_group(self, states: list[State]) -> None:
        with self._inside(states) as env:
            rubric = env.rubric
            await (rubric.score_group(states) if env.score_rollouts else rubric.dummy_score_group(states))
        self._fill(states)

    async def cleanup(self, state: State) -> None:
        with self._inside([state]) as env:
            await env.rubric.cleanup(state)

    def _get_reward_func_names(self) -> list[str]:
        return sorted({name for env in self.env_map.values() for name in env.rubric._get_reward_func_names()})

    @property
    def all_reward_names(self) -> list[str]:
        """The functions of all environments, each once."""
        return self._get_reward_func_names()

    def _fill(self, states: Sequence[State]) -> None:
        names = self._get_reward_func_names()
        for state in states:
            if state.get("error") is None:
                state["metrics"] = {**dict.fromkeys(names, 0.0), **(state["metrics"] or {})}

    def _route_of(self, state: State) -> list[str]:
        info = state.get("info")
        if not isinstance(info, dict):
            info = state["info"] = {}
        # Missing only in a group of one environment, from a rollout that failed before it had a state.
        return _as_route(info.setdefault(ROUTE_KEY, next(iter(self.env_map))))

    @contextmanager
    def _inside(self, states: Sequence[State]) -> Iterator[Environment]:
        """The environment of these rollouts; inside, their `info` is without the group's `env_id`."""
        routes = [self._route_of(state) for state in states]
        if any(route != routes[0] for route in routes):
            raise ConfigError("the rollouts of one group belong to different environments of the EnvGroup.")
        for state, (_, *below) in zip(states, routes, strict=True):
            row = state["input"]
            info = _info_below(row, below)
            if info:
                row["info"] = info
            else:  # the environment's rows have none
                row.pop("info", None)
        try:
            yield _named(self.env_map, routes[0][0])
        finally:
            for state, route in zip(states, routes, strict=True):
                state["input"]["info"] = {**_info_of(state["input"]), ROUTE_KEY: _as_value(route)}


def environment_of(env: Environment, row: Mapping[str, Any]) -> Environment:
    """The environment that a row or a rollout of `env` belongs to: a member of the group, where it is one."""
    route = _as_route(_info_of(row).get(ROUTE_KEY)) if isinstance(env, EnvGroup) else []
    for name in route:
        if isinstance(env, EnvGroup):
            env = env.get_env_for_name(name)
    return env


def member_of(row: Mapping[str, Any]) -> str:
    """The member of a group that a row of it, or a rollout, belongs to; `outer/inner` where groups hold groups."""
    return "/".join(_as_route(_info_of(row).get(ROUTE_KEY)))


def member_names(env: Environment) -> list[str]:
    """The members of a group by the names of `member_of`, in order; none where `env` is no group."""
    if not isinstance(env, EnvGroup):
        return []
    return ["/".join([name, *inner]) for name, one in env.env_map.items() for inner in _inner_names(one)]


def held_out_rows(env: Environment, count: int = -1, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `count` evaluation rows (-1 = all), after shuffling a copy by `seed`.

    Members of a group whose rows stand one behind the other are taken by turns. An order that mixes them already is
    kept: one that is shuffled, or that the group's author chose.
    """
    if not isinstance(env, EnvGroup):
        return list(env.get_eval_dataset(count, seed=seed))
    rows = list(env.get_eval_dataset(seed=seed))
    by_member: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_member.setdefault(member_of(row), []).append(row)
    if [id(row) for own in by_member.values() for row in own] == [id(row) for row in rows]:
        rows = [row for turn in zip_longest(*by_member.values()) for row in turn if row is not None]
    return rows if count < 0 else rows[:count]


def _inner_names(env: Environment) -> list[list[str]]:
    return [[name] for name in member_names(env)] or [[]]


def _below(row: RolloutInput, route: Sequence[str]) -> RolloutInput:
    """The row for the first environment of `route`."""
    info = _info_below(row, route[1:])
    child = {key: value for key, value in row.items() if key != "info"}
    return cast(RolloutInput, {**child, "info": info} if info else child)


def _info_below(row: Mapping[str, Any], below: Sequence[str]) -> dict[str, Any]:
    """The `info` of the row for its environment; `below` is the route inside that."""
    info = {key: value for key, value in _info_of(row).items() if key != ROUTE_KEY}
    return {**info, ROUTE_KEY: _as_value(below)} if below else info


def _named(env_map: Mapping[str, Environment], name: str) -> Environment:
    if name not in env_map:
        raise ConfigError(f"No environment found for '{name}'; the group has: {', '.join(env_map)}.")
    return env_map[name]


def _info_of(row: Mapping[str, Any]) -> dict[str, Any]:
    info = row.get("info")
    parsed: dict[str, Any] = json.loads(info) if isinstance(info, str) else dict(info or {})
    return parsed


def _as_route(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return [str(name) for name in value]
    raise ConfigError(f"info['{ROUTE_KEY}'] is {value!r}; it should be a name or a list of names.")


def _as_value(route: Sequence[str]) -> str | list[str]:
    return route[0] if len(route) == 1 else list(route)
