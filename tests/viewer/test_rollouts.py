"""The table of a run's rollouts: narrowed, sorted, searched, growing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.records.directory import RESULTS
from whet.rollouts.row_log import append_rows
from whet.viewer.widgets import Table

Fixture = Callable[..., Any]


@pytest.fixture
def mixed(evaluation: Fixture, rollout: Fixture, failed: dict[str, Any]) -> Path:
    """Five rollouts of three tasks; two passed, one has an error."""
    rows = [rollout(0, 1.0), rollout(0, 0.0), rollout(1, 0.25), rollout(1, 0.75, stop_condition="max_tokens")]
    path: Path = evaluation([*rows, rollout(2, None, "", **failed)])
    return path


def rewards(text: str) -> list[str]:
    """The rewards of the table, from top to bottom."""
    words = (line.split() for line in text.split("\n") if re.search(r"question \d", line))
    return [next((word for word in line if word.count(".") == 1 and len(word) == 5), "none") for line in words]


def test_a_run_opens_with_its_rollouts_and_what_they_come_to(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        text = await driver.sees("5 rollouts, reward 0.500, 1 failed")
        assert "arithmetic with whet/tiny" in text
        assert rewards(text) == ["1.000", "0.000", "0.250", "0.750", "none"]
        assert "ModelError" in driver.line("question 2")

    drive(mixed, steps)


def test_sort_key_cycles_through_both_directions_and_none(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.type("R")
        assert rewards(await driver.sees("sorted by reward ↓")) == ["1.000", "0.750", "0.250", "0.000", "none"]
        await driver.type("R")
        assert rewards(await driver.sees("sorted by reward ↑")) == ["0.000", "0.250", "0.750", "1.000", "none"]
        await driver.type("R")
        assert rewards(await driver.sees("5 rollouts", without="sorted")) == [
            "1.000",
            "0.000",
            "0.250",
            "0.750",
            "none",
        ]

    drive(mixed, steps)


def test_a_click_on_a_title_sorts_by_it(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.pilot.click("Table", offset=(driver.line("nth").index("reward") + 2, 0))
        await driver.sees("sorted by reward ↓", "reward↓")

    drive(mixed, steps)


def test_search_rollouts_show_and_filter_by_candidate(search: Fixture, drive: Fixture) -> None:
    directory = search({"aaa": [1.0, 0.0], "bbb": [1.0, 0.75, 0.25], "ccc": [0.0]}, {"aaa": "seed", "bbb": "accepted"})

    async def steps(driver: Any) -> None:
        text = await driver.sees("6 rollouts, reward 0.500")
        assert "echo with whet/tiny" in text
        assert [text.count(name) for name in ("0 seed", "1 accepted", "ccc")] == [2, 3, 1]
        assert "val/echo/1" in text
        await driver.type("p")
        await driver.sees("Only one candidate", "1 accepted")
        await driver.type("down", "down", "enter")  # in the order of proposal
        text = await driver.sees("3 of 6 rollouts", "p candidate: 1 accepted")
        assert rewards(text) == ["1.000", "0.750", "0.250"]

    drive(directory, steps, size=(120, 30))


def test_group_of_a_search_shows_the_candidates(search: Fixture, drive: Fixture) -> None:
    directory = search({"aaa": [1.0, 0.0], "bbb": [1.0, 0.75]}, {"aaa": "seed", "bbb": "accepted"})

    async def steps(driver: Any) -> None:
        await driver.sees("4 rollouts, reward")
        await driver.type("down", "g")
        text = await driver.sees("group of echo, task val/echo/1", "said by aaa", "said by bbb")
        assert "candidate 0 seed" in text
        assert "candidate 1 accepted" in text
        await driver.type("enter")
        await driver.sees("candidate 0 seed", "task val/echo/1")

    drive(directory, steps, size=(120, 30))


def test_single_keys_narrow_by_reward_and_by_error(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.type("r")
        assert rewards(await driver.sees("r reward >= 0.5", "2 of 5 rollouts")) == ["1.000", "0.750"]
        await driver.type("r")
        assert rewards(await driver.sees("r reward < 0.5", "2 of 5 rollouts")) == ["0.000", "0.250"]
        await driver.type("r", "e")
        await driver.sees("e with an error", "1 of 5 rollouts")
        await driver.type("e")
        await driver.sees("e without error", "4 of 5 rollouts")
        await driver.type("c")
        await driver.sees("5 rollouts", without="of 5")

    drive(mixed, steps)


def test_a_stop_condition_is_chosen_from_those_there_are(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.type("s")
        text = await driver.sees("Only one stop condition", "max_turns_reached", "has_error")
        values = [line.split()[0] for line in text.split("Only one")[1].split("\n")[1:5]]
        await driver.type(*["down"] * values.index("max_tokens"), "enter")
        assert rewards(await driver.sees("s stop: max_tokens", "1 of 5 rollouts")) == ["0.750"]

    drive(mixed, steps)


def test_one_group_by_itself(mixed: Path, drive: Fixture) -> None:
    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.type("down", "down", "o")
        assert rewards(await driver.sees("o one group", "2 of 5 rollouts")) == ["0.250", "0.750"]

    drive(mixed, steps)


def test_a_search_finds_marks_and_goes_from_one_to_the_next(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(task, 0.0, "The Needle is here" if task in (3, 7) else "hay") for task in range(9)])

    async def steps(driver: Any) -> None:
        await driver.sees("9 rollouts, reward")
        await driver.type("slash", *"needle", "enter")
        await driver.sees("/needle in 2 rollouts", without="searching")
        assert driver.line("question 3").startswith("•")
        assert driver.app.screen.listing.number == 3
        await driver.type("n")
        assert driver.app.screen.listing.number == 7
        await driver.type("N")
        assert driver.app.screen.listing.number == 3
        await driver.type("m")
        await driver.sees("m found: needle", "2 of 9 rollouts")

    drive(path, steps)


def test_escape_stops_a_search_and_keeps_what_it_found(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    # Two lines that are far apart, so that the search reports between them.
    path = evaluation([rollout(0, 0.0, "needle"), rollout(1, 0.0, "x" * 3_000_000), rollout(2, 0.0, "needle")])

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts, reward")
        listing = driver.app.screen.listing
        pieces = listing.store.search("needle")

        def one_at_a_time(text: str, within: object) -> Any:
            yield next(pieces)
            listing.search.cancelled or driver.app.call_from_thread(driver.app.screen.action_back)
            yield next(pieces)

        listing.store.search = one_at_a_time
        await driver.type("slash", *"needle", "enter")
        await driver.sees("/needle in 1 rollouts  stopped")

    drive(path, steps)


def test_rollouts_that_are_written_meanwhile_appear(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 rollouts")
        append_rows(path, [rollout(1, 0.0)])
        await driver.sees("2 rollouts, reward 0.500", "question 1")
        with (path / RESULTS).open("a") as file:
            file.write(json.dumps(rollout(2, 0.5))[:40])  # half a line: a row that is being written
        await driver.pilot.pause()
        assert "3 rollouts" not in driver.text()

    drive(path, steps)


def test_a_key_before_a_loaded_list_is_shown_is_not_lost(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(task, 1.0) for task in range(40)])

    async def steps(driver: Any) -> None:
        await driver.sees("40 rollouts, reward")
        screen = driver.app.screen
        take, table = screen.listing.take, screen.query_one(Table)

        def take_after_a_key(loaded: Any) -> None:
            screen.listing.take = take
            table.action_by(1000)
            take(loaded)

        screen.listing.take = take_after_a_key
        screen.reload()
        await driver.sees("question 39")
        await driver.type("enter")
        await driver.sees("rollout 40 of 40")

    drive(path, steps)


def test_a_file_that_is_replaced_is_read_from_its_beginning(
    evaluation: Fixture, rollout: Fixture, drive: Fixture
) -> None:
    path = evaluation([rollout(task, 1.0) for task in range(5)])

    async def steps(driver: Any) -> None:
        await driver.sees("5 rollouts, reward")
        await driver.type("end", "enter")
        await driver.sees("rollout 5 of 5")
        (path / RESULTS).write_text(json.dumps(rollout(8, 0.25)) + "\n")
        await driver.sees("1 rollouts, reward 0.250", "question 8")

    drive(path, steps)


def test_a_line_that_is_no_rollout_is_listed_as_such(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(0, 1.0)])
    with (path / RESULTS).open("a") as file:
        file.write("{not json\n" + json.dumps(rollout(1, 0.0)) + "\n")

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts", "1 lines are no rollouts")
        await driver.type("down", "enter")
        await driver.sees("rollout 2 of 3", "2: not JSON")

    drive(path, steps)


def test_training_rollouts_are_listed_by_step_with_their_advantages(
    training: Fixture, trained: Fixture, drive: Fixture
) -> None:
    run = training(
        [
            [trained("0", 1.0, 0.5, [85, 66]), trained("0", 0.0, -0.5, [85, 67])],
            [trained("1", 0.5, 0.25, [85, 66])],
        ]
    )

    async def steps(driver: Any) -> None:
        await driver.sees("3 rollouts", "reverse-text with whet/tiny", "advantage", "-0.50")
        await driver.type("p")
        await driver.sees("step_000001", "step_000002")
        await driver.type("down", "down", "enter")
        await driver.sees("1 of 3 rollouts", "part: step_000002", "+0.25", without="-0.50")
        await driver.type("c", "A")
        await driver.sees("sorted by advantage ↓")

    drive(run, steps)


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
def test_a_small_window_shows_rows_and_a_key_shows_every_key(
    mixed: Path, drive: Fixture, size: tuple[int, int]
) -> None:
    async def steps(driver: Any) -> None:
        text = await driver.sees("5 rollouts, reward", "? all keys", "q quit", "/ search")
        assert rewards(text) == ["1.000", "0.000", "0.250", "0.750", "none"]
        await driver.type("question_mark")
        await driver.sees("copy as Markdown", "export to a file")
        await driver.type("end")
        await driver.sees("page down")
        await driver.type("pageup", "pageup")
        await driver.sees("sort by reward")
        await driver.type("escape")
        await driver.sees("? all keys", without="sort by reward")

    drive(mixed, steps, size=size)


def test_only_the_rows_in_the_window_are_read_of_a_long_list(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = evaluation([rollout(task, 0.5) for task in range(3000)])

    async def steps(driver: Any) -> None:
        await driver.sees("3,000 rollouts, reward")
        store, asked = driver.app.screen.listing.store, []
        head = type(store).head
        monkeypatch.setattr(type(store), "head", lambda self, number: asked.append(number) or head(self, number))
        await driver.type("end")
        await driver.sees("question 2999")
        assert set(asked) <= set(range(2950, 3000))

    drive(path, steps)


def test_leaving_a_list_ends_its_search(evaluation: Fixture, rollout: Fixture, drive: Fixture) -> None:
    path = evaluation([rollout(number, 0.0, "x" * 200_000) for number in range(40)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        await driver.type("enter")
        await driver.sees("40 rollouts")
        listing = driver.app.screen.listing
        await driver.type("slash", *"needle", "enter")
        driver.app.pop_screen()
        await driver.sees("1 below")
        while not listing.search.cancelled:
            await driver.pilot.pause(0.02)

    drive(path.parent, steps)
