"""What an engine waits for between two decode steps: rollouts that come back with their next request.

Rollouts that are decoded together influence the last bits of each other's logprobs. For runs that repeat bit by bit,
whichever process their environments run in, the requests of a step are all that follow from the answers so far, in the
order of their rollouts (`when_quiet`). Otherwise a few turns of the event loop are enough (`let_others_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from whet.system.quiet import Quiet

Settle: TypeAlias = Callable[[bool], Awaitable[None]]
"""Called between decode steps; whether answers were finished, or there were none."""

TURNS_AFTER_FINISH = 4
"""Turns of the event loop a finished rollout has to come back with its next request before the next step."""
AFTER_ROLLOUTS = 1
"""Rank of the engine's wait for a quiet event loop: what decides which rollouts begin has waited with rank 0."""


async def let_others_run(finished: bool) -> None:
    """A few turns of the event loop after answers, else one."""
    for _ in range(TURNS_AFTER_FINISH if finished else 1):
        await asyncio.sleep(0)


async def when_quiet(finished: bool) -> None:
    """After answers, until nothing is left to do but to wait: see `whet.system.quiet`."""
    quiet = Quiet.here()
    if finished and quiet is not None:
        await quiet.wait(AFTER_ROLLOUTS)
    else:
        await let_others_run(finished)
