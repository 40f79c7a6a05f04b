"""Whether the attempts at a task depend on each other, and so have to be run in one process and scored together."""

from __future__ import annotations

from collections.abc import Iterator

from whet.envs.env_group import EnvGroup
from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.evals.config import EvalConfig
from whet.rubrics.rubric import Rubric
from whet.tasksets.env import Env

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
