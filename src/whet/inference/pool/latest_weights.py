"""Which weights every engine of a pool has to have, and what one lacks that does not have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from whet.inference.protocol import WeightUpdate

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
