"""`[deployment] colocate`: engine and learner take turns on one device, here a CPU.

That such a run is, bit for bit, the run without it, is in `tests/contract/test_repeatable_training.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import TrainingError
from whet.inference.embedded import EmbeddedEngine
from whet.rl.config import RunConfig
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.monitors.protocol import Outcome
from whet.rl.run import run_training
from whet.system.files import read_lines

STEPS = 2
PARAMETERS = 853_376
OF_A_STEP = ["sleep", "restore", "forward_backward", "optim_step", "publish", "offload", "wake"]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "run",
            "model": "whet/tiny",
            "max_steps": STEPS,
            "batch_size": 8,
            "rollouts_per_example": 4,
            "runs_directory": tmp_path,
            "sampling": {"max_tokens": 6},
            "env": [{"id": "reverse-text"}],
            "eval": {"num_examples": 2, "interval": 1},
            "checkpointing": {"save_every_n_steps": 1},
            "watchdog": {"report_seconds": 1, "act_seconds": 3, "first_seconds": 3},
            "deployment": {"threads": 1, "colocate": True},
        }
    )


def outcome_of(config: RunConfig, *, resume: bool = False) -> Outcome:
    return run_training(config, json_output=True, resume=resume)


def patient(config: RunConfig) -> RunConfig:
    """With deadlines that busy cores do not reach."""
    return config.model_copy(update={"watchdog": type(config.watchdog)()})


def on_call(patch: pytest.MonkeyPatch, kind: type, name: str, note: Callable[[Any], None]) -> None:
    """Have `note` called before a method is, with what it is called on."""
    method = getattr(kind, name)

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        return method(self, *args, **kwargs)

    patch.setattr(kind, name, noted)


def newest(config: RunConfig) -> str | None:
    return max((path.name for path in (config.directory / "checkpoints").glob("step_*")), default=None)


def test_engine_and_learner_take_turns_and_evaluations_are_the_engine_s(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    handed_over: list[int] = []

    def note(event: str) -> Callable[[Any], None]:
        return lambda _: None if events and events[-1] == event == "sample" else events.append(event)

    for name in ("sample", "sleep", "wake", "load_weights"):
        on_call(monkeypatch, EmbeddedEngine, name, note(name))
    for name in ("restore", "forward_backward", "optim_step", "publish", "offload"):
        on_call(monkeypatch, TorchLearner, name, note(name))
    on_call(
        monkeypatch,
        TorchLearner,
        "forward_backward",
        lambda learner: handed_over.append(len([*learner._publish_directory.glob("weights-*")])),
    )
    assert outcome_of(patient(config)).state == "finished"
    one = ["sample", *OF_A_STEP, "load_weights"]  # which is how an embedded engine wakes
    assert events == ["offload", *one * STEPS, "sample"]
    assert handed_over == [0] * STEPS  # what the engine had mapped is gone from shared memory, too
    rows = list(read_lines(config.directory / "metrics.jsonl"))
    assert all(row["engine/slept_bytes"] >= PARAMETERS * 4 for row in rows)
    assert all(row["time/sleep"] >= 0 and row["time/wake"] >= 0 for row in rows)
    assert {row["step"] for row in read_lines(config.directory / "evals.jsonl")} == {0, 1, 2}


def test_a_learner_that_fails_while_the_engine_sleeps_leaves_the_last_checkpoint(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(learner: TorchLearner) -> None:
        if learner.version == 1:
            raise TrainingError("the loss is not finite")

    with monkeypatch.context() as patch:
        on_call(patch, TorchLearner, "forward_backward", fail)
        outcome = outcome_of(patient(config))
    assert (outcome.state, outcome.message) == ("failed", "the loss is not finite")
    assert outcome.next_command is not None
    assert newest(config) == "step_1"
    assert outcome_of(patient(config), resume=True).state == "finished"


def test_a_run_that_is_stopped_while_the_engine_sleeps_ends_with_a_checkpoint_of_the_step(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(learner: TorchLearner) -> None:
        if learner.version == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        on_call(patch, TorchLearner, "forward_backward", interrupt)
        outcome = outcome_of(patient(config))
    assert (outcome.state, outcome.step) == ("interrupted", 1)
    assert newest(config) == "step_1"
    assert outcome_of(patient(config), resume=True).state == "finished"


@pytest.mark.parametrize(
    ("verb", "words", "saved"),
    [("sleep", "the engine to sleep", None), ("wake", "the engine to wake with new weights", "step_1")],
)
def test_an_engine_that_hangs_is_named_by_what_it_should_do(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, verb: str, words: str, saved: str | None
) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(EmbeddedEngine, verb, hang)
    outcome = outcome_of(config.model_copy(update={"eval": type(config.eval)(before=False, after=False)}))
    assert outcome.state == "failed"
    assert "the learner has waited" in outcome.message
    assert f"for {words}" in outcome.message
    assert newest(config) == saved
