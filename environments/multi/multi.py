"""Several environments as one, in proportions: an `EnvGroup` of the environments in its arguments.

Each task is attempted and scored by its own environment. Tasks are dealt out so that every beginning of the list has
the proportions of the whole: an evaluation of the first 32 tasks tries every environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

import whet
from whet.config import StrictModel, validate
from whet.envs.datasets import RowDataset
from whet.errors import ConfigError

DEFAULT_MIX: tuple[dict[str, Any], ...] = (
    {"id": "reverse-text", "weight": 2},
    {"id": "calculator"},
    {"id": "guess-number"},
)


class Member(StrictModel):
    """One environment of the mix."""

    id: str = Field(min_length=1, description="Name of an installed environment, or a path to one.")
    weight: float = Field(1.0, gt=0, description="Share of the tasks, relative to the others.")
    name: str | None = Field(None, min_length=1, description="Name in info.env_id; the id if absent.")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of load_environment.")


def shares(weights: Mapping[str, float], size: int) -> dict[str, int]:
    """`size` divided by weight, without a remainder: the largest fractions are rounded up."""
    total = sum(weights.values())
    exact = {name: size * weight / total for name, weight in weights.items()}
    whole = {name: int(share) for name, share in exact.items()}
    by_fraction = sorted(exact, key=lambda name: whole[name] - exact[name])
    for name in by_fraction[: size - sum(whole.values())]:
        whole[name] += 1
    return whole


def dealt_out(names: Sequence[str], weights: Mapping[str, float], size: int) -> list[int]:
    """Places in `names` to take, in order: of each name its share of `size`, or all there are, evenly spread."""
    places = {name: [place for place, other in enumerate(names) if other == name] for name in weights}
    taken = {name: places[name][:share] for name, share in shares(weights, size).items()}
    spread = [((turn + 0.5) / len(mine), place) for mine in taken.values() for turn, place in enumerate(mine)]
    return [place for _, place in sorted(spread)]


class MixedGroup(whet.EnvGroup):
    """An `EnvGroup` that takes of each environment as many tasks as its weight says."""

    def __init__(
        self, envs: Sequence[whet.Environment], weights: Mapping[str, float], num_train: int, num_eval: int
    ) -> None:
        self.weights, self.num_train, self.num_eval = dict(weights), num_train, num_eval
        super().__init__(envs, env_names=list(weights))

    def build_dataset(self) -> RowDataset | None:
        if self.dataset is None and (dataset := super().build_dataset()) is not None:
            self.dataset = self._mixed(dataset, self.num_train)
        return self.dataset

    def build_eval_dataset(self) -> RowDataset | None:
        if self.eval_dataset is None and (dataset := super().build_eval_dataset()) is not None:
            self.eval_dataset = self._mixed(dataset, self.num_eval)
        return self.eval_dataset

    def _mixed(self, dataset: RowDataset, size: int) -> RowDataset:
        routes = [row["info"]["env_id"] for row in dataset]  # of a group in the group, a list
        names = [route if isinstance(route, str) else route[0] for route in routes]
        return dataset.select(dealt_out(names, self.weights, size))


def members_of(envs: Sequence[str | Mapping[str, Any]]) -> dict[str, Member]:
    """The members by name. Raises `ConfigError` for one that is none, and for two of one name."""
    if not isinstance(envs, list | tuple):
        raise ConfigError(f"multi: envs should be a list of ids and tables, not {envs!r}.")
    members: dict[str, Member] = {}
    for number, given in enumerate(envs):
        if not isinstance(given, str | Mapping):
            raise ConfigError(f"multi: envs[{number}] should be an id or a table, not {given!r}.")
        member = validate(Member, {"id": given} if isinstance(given, str) else given, f"multi: envs[{number}]")
        name = member.name or member.id
        if name in members:
            raise ConfigError(f"multi: envs has '{name}' twice; give each a name of its own.")
        members[name] = member
    if not members:
        raise ConfigError("multi: envs is empty; name at least one environment.")
    return members


def load_environment(
    envs: Sequence[str | Mapping[str, Any]] = DEFAULT_MIX, num_train: int = 2000, num_eval: int = 256
) -> whet.Environment:
    """
    Args:
        envs: Ids, or tables of id, weight, name and args.
        num_train: Tasks to train on, of all environments together.
        num_eval: Tasks to evaluate on, of all environments together.
    """
    members = members_of(envs)
    if min(num_train, num_eval) < len(members):
        raise ConfigError(
            f"multi: num_train and num_eval must be at least {len(members)}, a task for each environment; "
            f"got {num_train} and {num_eval}."
        )
    loaded = {name: whet.load_environment(member.id, **member.args) for name, member in members.items()}
    for name, env in loaded.items():
        if env.dataset_source is None or env.eval_dataset_source is None:
            raise ConfigError(f"multi: environment '{name}' does not have tasks both to train and to evaluate on.")
    weights = {name: member.weight for name, member in members.items()}
    return MixedGroup(list(loaded.values()), weights, num_train, num_eval)
