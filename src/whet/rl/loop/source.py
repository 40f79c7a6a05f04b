"""`Source`: where the training loop's batches come from, one after the other or all the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from whet.rl.loop.group import Group, Part

OnProgress = Callable[[int, int], None]
"""(groups of the next batch that are there, groups of a batch)"""


class Source(Protocol):
    """Makes batches of exactly the configured size and mix."""

    async def part(self, on_progress: OnProgress) -> Part:
        """The next part of the batch that is being filled; a whole batch where it comes at once.

        Raises `TrainingError` where none can be made; may be cancelled without a loss.
        """
        ...

    def waiting(self) -> list[Group]:
        """Finished groups that are in no part yet, in the order of the draws."""
        ...

    def advance(self, version: int) -> None:
        """The engine samples with policy `version` from now on, and so many batches have been trained."""
        ...

    def idle_s(self) -> float:
        """Seconds since the last call in which nothing was in flight: all that was allowed had been sampled."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What decides about the batches to come, as JSON: nothing drawn is forgotten, nothing trained comes again."""
        ...

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Continue after `step`. Raises `RunError` for the state of another run."""
        ...

    async def close(self) -> None:
        """Cancel whatever is in flight."""
        ...
