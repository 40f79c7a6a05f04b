"""What every screen shares: concurrent work that ends after its screen was left."""

from pathlib import Path
from typing import Any

import pytest
from textual.css.query import NoMatches

from whet.viewer.app import RolloutsScreen
from whet.viewer.widgets import Bar

Fixture = Any


def test_work_of_a_left_screen_ends(evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path) -> None:
    evaluation([rollout(0, 1.0)])
    reached = []

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        await driver.type("enter")
        await driver.sees("1 rollout")
        screen = driver.app.screen
        assert isinstance(screen, RolloutsScreen)

        async def tells_it_too_late() -> None:
            await driver.app.pop_screen()
            reached.append("before")
            screen.query_one(Bar)
            reached.append("after")

        await screen.while_here(tells_it_too_late)
        await driver.sees("1 below")

    drive(tmp_path, steps)
    assert reached == ["before"]


def test_missing_widget_of_a_shown_screen_raises(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path
) -> None:
    evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        screen = driver.app.screen

        async def looks_for_what_never_was() -> None:
            screen.query_one("#nowhere")

        with pytest.raises(NoMatches):
            await screen.while_here(looks_for_what_never_was)

    drive(tmp_path, steps)
