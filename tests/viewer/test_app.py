"""The list of runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunError
from whet.viewer.app import find_target

Fixture = Callable[..., Any]


def test_evaluations_and_runs_are_listed_and_opened(
    evaluation: Fixture, training: Fixture, trained: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path
) -> None:
    evaluation([rollout(0, 1.0), rollout(1, 0.0)])
    training([[trained("0", 1.0, 0.5, [85, 66])]])

    async def steps(driver: Any) -> None:
        await driver.sees("Runs", "2 below", "evaluation", "training")
        assert "finished" in driver.line("arithmetic").split()
        await driver.type("slash", *"arith", "enter")
        await driver.sees("1 below", without="reverse-text")
        await driver.type("enter")
        await driver.sees("2 rollouts, reward 0.500")
        await driver.type("escape")
        await driver.sees("Runs", "1 below")

    drive(tmp_path, steps)


def test_a_run_that_begins_meanwhile_comes_into_the_list(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.viewer.app.AGAIN", 0.01)
    evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        evaluation([rollout(0, 1.0)], name="two", environment="calculator")
        await driver.sees("2 below", "calculator")

    drive(tmp_path, steps)


def test_a_run_that_was_removed_meanwhile_is_one_line(
    evaluation: Fixture, rollout: Fixture, drive: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that the message, which wraps, does not depend on the length of the folder's name
    gone = evaluation([rollout(0, 1.0)])

    async def steps(driver: Any) -> None:
        await driver.sees("1 below")
        for file in list(gone.iterdir()):
            file.unlink()
        gone.rmdir()
        await driver.type("enter")
        await driver.sees("no such file")

    drive(Path("outputs"), steps)


def test_without_a_path_the_usual_folders_are_meant(
    evaluation: Fixture, rollout: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation([rollout(0, 1.0)])
    monkeypatch.chdir(tmp_path)
    assert find_target(None) == [Path("outputs/evals")]
    os.chdir(tmp_path / "outputs")
    with pytest.raises(RunError, match="neither outputs/evals nor runs"):
        find_target(None)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no evaluation and no run in it, nor below it"):
        find_target(tmp_path)
