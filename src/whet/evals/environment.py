"""Environments of evaluations: loaded with their arguments, with the settings of `-x`, each once in a process.

Where attempts at a task depend on each other, they are run in one process and scored together (`scored_together`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whet.calls import call_all
from whet.envs.config.arguments import nearest
from whet.envs.env_group import EnvGroup
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError
from whet.evals.config import EvalConfig
from whet.evals.model import Models
from whet.rubrics.rubric import Rubric
from whet.system.offline import go_offline
from whet.tasksets.env import Env


def open_environment(config: EvalConfig) -> Environment:
    """The environment that `config` names, ready to be evaluated; the caller closes it.

    Raises `EnvironmentLoadError` for one that cannot be had, and `ConfigError` for a setting that it has not.
    """
    if config.offline:
        go_offline()
    env = load_environment(config.environment, **config.env_args)
    apply_settings(env, config.extra_env_kwargs)
    return env


def apply_settings(env: Environment, settings: Mapping[str, Any]) -> None:
    """Set what a constructor of `env` could have been given, as `set_kwargs` of `verifiers` 0.1.14 does.

    Raises `ConfigError` for a name that `env` does not have, with the nearest that it has, and for a value of another
    kind than the one it has.
    """
    known = setting_names(env)
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"{type(env).__name__} has no setting '{name}' (-x).{nearest(name, known)}")
        _check_kind(env, name, value)
    env.set_kwargs(**settings)


def setting_names(env: Environment) -> list[str]:
    """The public attributes of `env` and of those in it that hold values, and what has a `set_...` method."""
    values = [name for name in vars(env) if not name.startswith("_") and name != "logger"]
    setters = [
        name.removeprefix("set_")
        for name, _ in inspect.getmembers(type(env), inspect.isroutine)
        if name.startswith("set_") and name != "set_kwargs"
    ]
    below = [name for child in env.envs for name in setting_names(child)] if isinstance(env, EnvGroup) else []
    return sorted({*values, *setters, *below})


def _check_kind(env: Environment, name: str, value: Any) -> None:
    """A switch wants true or false, a number a number, and text text; what is not set yet wants what it likes."""
    present = getattr(env, name, None)
    kinds: list[tuple[type | tuple[type, ...], str]] = [
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "text"),
    ]
    for kind, should_be in kinds:
        if isinstance(present, kind):
            right = isinstance(value, kind) and isinstance(value, bool) == isinstance(present, bool)
            if value is not None and not right:
                raise ConfigError(f"-x: '{name}' should be {should_be} (got {value!r:.80}).")
            return


class EvalParts(Models):
    """Environments and models of evaluations with these configs, named by their index; `Parts` of their jobs.

    Evaluations that differ by model or sampling alone share an environment, and those with the same model share that.
    """

    def __init__(self, configs: Sequence[EvalConfig], processes: int = 1) -> None:
        """`processes` is how many processes share what an endpoint allows at once."""
        super().__init__(configs, processes=processes)
        self._environments: dict[str, Environment] = {}

    def environment(self, source: int, concurrency: int) -> Environment:
        """The environment of an evaluation, of which this process runs `concurrency` rollouts at once.

        Raises `WhetError` where it cannot be loaded.
        """
        config = self._configs[source]
        key = json.dumps([config.environment, config.env_args, config.extra_env_kwargs, concurrency], default=str)
        if key not in self._environments:
            env = self._environments[key] = open_environment(config)
            env.set_concurrency(concurrency)
        return self._environments[key]

    async def close(self) -> None:
        """Close everything; the first environment that fails to close is raised once the others are closed."""
        await super().close()
        closing = [env.close for env in self._environments.values()]
        self._environments.clear()
        await call_all(closing)


OF_GROUPS = ("advantage",)
"""State columns that only a group has."""


def scored_together(env: Environment, config: EvalConfig) -> bool:
    """Whether a rollout can only be scored once all attempts at its task are there.

    Where not, each is scored, and its row saved, as soon as it has finished. Raises `ConfigError` where independent
    scoring is set and the environment compares rollouts.
    """
    needed = needs_groups(env)
    if config.independent_scoring:
        if needed:
            raise ConfigError(
                f"environment {config.environment} scores the rollouts of a task together, so they cannot be scored "
                "independently (-i)."
            )
        return False
    return needed or any(column in OF_GROUPS for column in config.state_columns)


def needs_groups(env: Environment) -> bool:
    """Whether something of the environment compares or varies the attempts at a task, or is shared by them."""
    if isinstance(env, EnvGroup):
        return any(map(needs_groups, env.envs))
    if isinstance(env, Env) and env.shares_in_groups:
        return True
    prepares = hasattr(env, "prepare_group") and not isinstance(env, Env)
    return env.requires_group_rollouts or prepares or any(map(_scores_groups_its_own_way, _rubrics(env.rubric)))


def _scores_groups_its_own_way(rubric: Rubric) -> bool:
    """Whether its author has overridden how groups are scored; whet's own classes say so by `has_group_rewards`."""
    return any(not getattr(type(rubric), name).__module__.startswith("whet.") for name in ("score_group", "add_scores"))


def _rubrics(rubric: Rubric) -> Iterator[Rubric]:
    yield rubric
    for inner in getattr(rubric, "rubrics", ()):
        yield from _rubrics(inner)
