"""One task of an environment is sick. The run replaces its groups and finishes, or stops with a word and a checkpoint.

Real runs in processes of their own, with deadlines of the watchdog that are short. The times are not what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.config import load_run_config
from whet.rl.run import run_training
from whet.system.files import read_lines

pytestmark = pytest.mark.parts

ENVIRONMENT = Path(__file__).with_name("sick.py")
QUICK = tuple(
    word
    for key, value in {"report_seconds": 0.5, "act_seconds": 1, "act_factor": 2, "first_seconds": 10}.items()
    for word in (f"--watchdog.{key}", str(value))
)
CONFIG = f"""
name = "run"
max_steps = 4
batch_size = 8
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 6
[[env]]
id = "{ENVIRONMENT}"
name = "sick"
[env.args]
sickness = "{{sickness}}"
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = 50
[deployment]
threads = 1
"""
ASYNCHRONOUS = ("--max_async_level", "1")
Train = Callable[..., tuple[str, dict[str, Any], Path]]


@pytest.fixture
def train(warm: Any, tmp_path: Path) -> Train:
    """What a run with this sickness printed, its status, and its directory."""

    def run(sickness: str, *overrides: str, expected: int = 0) -> tuple[str, dict[str, Any], Path]:
        config = tmp_path / "run.toml"
        config.write_text(CONFIG.format(sickness=sickness))
        output = warm.run(
            "train", "run", config, "--runs_directory", tmp_path / "runs", *QUICK, *overrides, expected=expected
        )
        assert "Traceback" not in output
        directory = tmp_path / "runs" / "run"
        return output, json.loads((directory / "status.json").read_text()), directory

    return run


@pytest.fixture
def train_here(tmp_path: Path) -> Train:
    """The same in this process."""

    def run(sickness: str, *overrides: str) -> tuple[str, dict[str, Any], Path]:
        config = tmp_path / "run.toml"
        config.write_text(CONFIG.format(sickness=sickness))
        settings = load_run_config(config, ["--runs_directory", str(tmp_path / "runs"), *overrides])
        outcome = run_training(settings, json_output=True)
        directory = tmp_path / "runs" / "run"
        return outcome.message, json.loads((directory / "status.json").read_text()), directory

    return run


def errors_of(directory: Path) -> str:
    return "\n".join(row["error"] for row in read_lines(directory / "errors.jsonl"))


def test_a_rollout_that_waits_for_ever_is_told_of_and_replaced(train: Train) -> None:
    output, status, directory = train("waits for ever")
    assert status["state"] == "finished"
    assert "for environment sick, task 4" in output
    assert "it is replaced" in output
    assert "RolloutTimeoutError" in errors_of(directory)


def test_beside_a_learner_a_rollout_that_waits_for_ever_keeps_nobody_from_being_trained(train: Train) -> None:
    _, status, directory = train("waits for ever", *ASYNCHRONOUS)
    assert (status["state"], status["step"]) == ("finished", 4)
    assert all(row["example_id"] != 4 for path in directory.glob("rollouts/step_*") for row in read_lines(path))


def test_a_run_ends_although_a_rollout_in_flight_will_not_be_cancelled(train: Train) -> None:
    _, status, directory = train("will not be cancelled", *ASYNCHRONOUS)
    assert (status["state"], status["step"]) == ("finished", 4)
    assert (directory / "model").is_dir()


@pytest.mark.long
def test_a_rollout_that_will_not_be_cancelled_is_left_behind_and_replaced(train: Train) -> None:
    output, status, directory = train("will not be cancelled")
    assert status["state"] == "finished"
    assert "for environment sick, task 4" in output
    assert "it did not end when it was cancelled, and was left" in errors_of(directory)


@pytest.mark.long
def test_a_scorer_that_is_still_in_a_thread_when_the_run_ends_is_left_behind(train: Train) -> None:
    output, status, _ = train("never leaves its thread")
    assert status["state"] == "finished"
    assert "finished" in output


@pytest.mark.parametrize("sickness", ["blocks", "loops", "matches for ever"])
def test_code_that_keeps_the_event_loop_is_named_interrupted_and_replaced(train: Train, sickness: str) -> None:
    output, status, directory = train(sickness)
    assert status["state"] == "finished"
    assert "environment sick, task 4 has kept the event loop" in output
    assert "sick.py, line" in output
    assert "has kept the event loop" in errors_of(directory)


@pytest.mark.long
def test_code_that_keeps_the_event_loop_beside_a_learner_is_interrupted_too(train: Train) -> None:
    output, status, _ = train("loops", *ASYNCHRONOUS)
    assert status["state"] == "finished"
    assert "environment sick, task 4 has kept the event loop" in output


@pytest.mark.parametrize("sickness", ["loops and swallows"])
def test_code_that_nothing_interrupts_ends_the_run_which_says_so_and_can_be_resumed(
    train: Train, sickness: str
) -> None:
    output, status, _ = train(sickness, expected=1)
    assert status["state"] == "failed"
    assert "environment sick, task 4" in status["last_error"]
    assert "--resume" in output


def test_an_environment_in_which_nothing_ever_ends_stops_the_run(train: Train) -> None:
    output, status, _ = train(
        "waits for ever", "--env.0.args.everything", "true", "--watchdog.first_seconds", "2", expected=1
    )
    assert status["state"] == "failed"
    assert "environment sick" in status["last_error"]
    assert "no group of this environment has ever ended" in output


@pytest.mark.parametrize(
    ("sickness", "named"),
    [
        ("nan", "reward"),
        ("infinite", "reward"),
        ("text", "reward"),
        ("list", "reward"),
        ("nothing", "reward"),
        ("huge", "reward"),
        ("complex", "reward"),
        ("raises", "the judge at 127.0.0.1 is down"),
        ("returns nothing good", "whose trajectory is NoneType"),
        ("100 MB", "IndexError"),
    ],
)
def test_a_rollout_that_comes_back_wrong_is_replaced_and_what_was_wrong_is_on_record(
    train_here: Train, sickness: str, named: str
) -> None:
    _, status, directory = train_here(sickness)
    assert status["state"] == "finished"
    assert named in errors_of(directory)
    rows = [row for path in directory.glob("rollouts/step_*") for row in read_lines(path)]
    assert len(rows) == 4 * 8
    assert all(row["example_id"] != 4 for row in rows)


def test_a_judge_that_is_down_stops_the_run_with_its_words_and_what_was_trained_is_saved(train_here: Train) -> None:
    _, status, directory = train_here("raises after a while")
    assert status["state"] == "failed"
    assert "environment sick" in status["last_error"]
    assert "the judge at 127.0.0.1 is down" in status["last_error"]
    assert (directory / "checkpoints" / f"step_{status['step']}").is_dir()
