"""Which engine of a pool takes a request, and which weights each has to have. Pure.

    a later turn of a rollout         its engine, which has the keys and values of the turns before
    another rollout of a group        the group's engine, which has their common prompt, unless it is far more loaded
    any other                         the least loaded

Load is counted in tokens that requests in flight have or may still get: prompt and max_tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from whet.inference.protocol import SampleRequest, WeightUpdate

KEPT_KEYS = 1 << 16
"""Rollouts, and groups, that are remembered; those beyond were not used for the longest time."""


def weight_of(request: SampleRequest) -> int:
    """What a request adds to the load of its engine."""
    return len(request.prompt_ids) + request.params.max_tokens


@dataclass(slots=True)
class EngineAffinity:
    """Remembers where rollouts and groups are.

    A group leaves its engine where that has more than twice the least load and `slack` requests of this size.
    """

    slack: int = 16
    _rollouts: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _groups: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def choose(self, request: SampleRequest, loads: Mapping[str, int]) -> str:
        """The engine for `request` out of those in `loads`, which are not empty."""
        chosen = min(loads, key=lambda name: loads[name])
        rollout, group = request.rollout_key, request.group_key
        of_rollout = "" if rollout is None else self._rollouts.get(rollout, "")
        of_group = "" if group is None else self._groups.get(group, "")
        if of_rollout in loads:
            chosen = of_rollout
        elif of_group in loads and loads[of_group] <= 2 * loads[chosen] + self.slack * weight_of(request):
            chosen = of_group
        _remember(self._rollouts, rollout, chosen)
        _remember(self._groups, group, chosen)
        return chosen

    def release(self, rollout: str) -> str | None:
        """The rollout is over. The engine it was on, if any."""
        return self._rollouts.pop(rollout, None)


def _remember(places: OrderedDict[str, str], key: str | None, name: str) -> None:
    if key is not None:
        places[key] = name
        places.move_to_end(key)
        if len(places) > KEPT_KEYS:
            places.popitem(last=False)


# Which weights every engine of a pool has to have, and what one lacks that does not have them. Pure.

Loaded = Mapping[str | None, WeightUpdate]
"""The newest update of the policy itself (under None) and of each adapter that has a name."""


@dataclass(frozen=True, slots=True)
class LatestWeights:
    """Policy version, and the updates that lead there from the weights that an engine starts with."""

    version: int = 0
    updates: Loaded = field(default_factory=dict)

    @property
    def adapters(self) -> list[str]:
        """Names that requests may give."""
        return [name for name in self.updates if name is not None]

    def with_update(self, update: WeightUpdate) -> Self:
        version = update.version if update.adapter is None else self.version
        return replace(self, version=version, updates={**self.updates, update.adapter: update})

    def without(self, adapter: str) -> Self:
        return replace(self, updates={name: update for name, update in self.updates.items() if name != adapter})

    def answered_by(self, loaded: Loaded, adapter: str | None) -> bool:
        """Whether an engine that has `loaded` these may answer a request for `adapter`."""
        return all(loaded.get(name) is self.updates.get(name) for name in {None, adapter})

    def next_for(self, loaded: Loaded) -> WeightUpdate | str | None:
        """What an engine that has `loaded` these has to load next, or the adapter to unload; None: it has all.

        Adapters are unloaded first, since some engines do not change weights under them, and loaded last.
        """
        if gone := [name for name in loaded if name is not None and name not in self.updates]:
            return gone[0]
        missing = [update for name, update in self.updates.items() if loaded.get(name) is not update]
        return min(missing, key=lambda update: update.adapter is not None, default=None)
