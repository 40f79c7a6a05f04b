"""Runs to look at, and the viewer as a test drives it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.runs_on_disk import evaluation, failed, rollout, search, trained, training  # noqa: F401
from textual.pilot import Pilot

from whet.viewer.app import Viewer, find_target

DEADLINE = 20.0
"""Seconds after which what was waited for will not come."""
Steps = Callable[["Driver"], Awaitable[None]]


class Driver:
    """Types, and reads the screen."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = pilot.app

    def text(self) -> str:
        """What the screen shows."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return "\n".join(strip.text.rstrip() for strip in strips)

    def line(self, part: str) -> str:
        """The line of the screen with this in it."""
        return next(line for line in self.text().split("\n") if part in line)

    async def type(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def sees(self, *wanted: str, without: str | None = None) -> str:
        """Waits until all of this is on the screen (and something else is not); the screen."""
        deadline = time.monotonic() + DEADLINE
        while True:
            await self.pilot.pause(0.02)  # rather than asking all the time
            text = self.text()
            if all(part in text for part in wanted) and (without is None or without not in text):
                return text
            assert time.monotonic() < deadline, f"never saw {wanted} without {without!r}:\n{text}"


@pytest.fixture
def drive() -> Callable[..., Viewer]:
    """Opens the viewer on a path, in a terminal of a size, and takes steps in it."""

    def open_and_take(path: Path | None, steps: Steps, *, size: tuple[int, int] = (100, 30)) -> Viewer:
        async def run() -> Viewer:
            app = Viewer(find_target(path))
            async with app.run_test(size=size, notifications=True) as pilot:
                await steps(Driver(pilot))
            return app

        return asyncio.run(run())

    return open_and_take
