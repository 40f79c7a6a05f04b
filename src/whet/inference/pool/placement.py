"""Which engine of a pool takes a request. Pure.

    a later turn of a rollout         its engine, which has the keys and values of the turns before
    another rollout of a group        the group's engine, which has their common prompt, unless it is far more loaded
    any other                         the least loaded

Load is counted in tokens that requests in flight have or may still get: prompt and max_tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.inference.protocol import SampleRequest

KEPT_KEYS = 1 << 16
"""Rollouts, and groups, that are remembered; those beyond were not used for the longest time."""


def weight_of(request: SampleRequest) -> int:
    """What a request adds to the load of its engine."""
    return len(request.prompt_ids) + request.params.max_tokens


@dataclass(slots=True)
class Placement:
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
