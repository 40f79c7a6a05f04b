"""What every screen shares: concurrent work that ends after its screen was left."""

from pathlib import Path
from typing import Any

import pytest
from textual.css.query import NoMatches

from whet.viewer.screens.rollouts import RolloutsScreen
from whet.viewer.widgets.panes import Bar

Fixture = Any


def test_work_that_comes_back_to_a_screen_that_was_left_is_over(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path
) -> None:
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

        await screen.while_here(tells_it_too_late())
        await driver.sees("1 below")

    drive(tmp_path, steps)
    assert reached == ["before"]


def test_a_widget_that_a_screen_misses_while_it_is_shown_is_a_fault(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path
) -> None:
    evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        screen = driver.app.screen

        async def looks_for_what_never_was() -> None:
            screen.query_one("#nowhere")

        with pytest.raises(NoMatches):
            await screen.while_here(looks_for_what_never_was())

    drive(tmp_path, steps)
