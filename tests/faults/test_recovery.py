"""What is left of a run after a mishap is enough to go on: damaged files, a failing disk, an engine that hangs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from whet.errors import ConfigError, RunError
from whet.inference.embedded import EmbeddedEngine
from whet.rl.config import load_run_config
from whet.rl.monitors.protocol import Outcome
from whet.rl.run import run_training
from whet.rl.storage.checkpoints import newest_checkpoint
from whet.rl.storage.records import Ledger
from whet.rl.stored.stored_run import resume_run
from whet.system.files import read_lines

CONFIG = """
name = "run"
max_steps = 4
batch_size = 4
rollouts_per_example = 2
learning_rate = 3e-4
[sampling]
max_tokens = 4
[[env]]
id = "reverse-text"
[eval]
before = false
after = false
num_examples = 2
greedy = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""
Train = Callable[..., Outcome]


def config_in(directory: Path) -> Path:
    path = directory / "run.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """A run in this process, in the test's directory."""

    def run(*overrides: str, resume: bool = False) -> Outcome:
        path = config_in(tmp_path)
        return run_training(
            load_run_config(path, ["--runs_directory", str(tmp_path / "runs"), *overrides]),
            resume=resume,
            json_output=True,
        )

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, each with a checkpoint."""
    directory = tmp_path_factory.mktemp("finished")
    config = load_run_config(config_in(directory), ["--runs_directory", str(directory)])
    assert run_training(config, json_output=True).state == "finished"
    return directory / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def notes_of(run: Path) -> str:
    return "\n".join(path.read_text() for path in (run / "logs").iterdir())


def test_each_file_of_a_checkpoint_cut_or_with_a_bit_turned_is_noticed(finished: Path, tmp_path: Path) -> None:
    whole = finished / "checkpoints" / "step_4"
    names = [path.name for path in whole.iterdir()]
    assert {"manifest.json", "weights.safetensors", "optimizer.pt", "learner.json", "curriculum.json"} <= set(names)
    for name in names:
        content = (whole / name).read_bytes()
        for place in (0, len(content) // 2, len(content) - 2):
            turned = bytearray(content)
            turned[place] ^= 64
            for damaged in (content[:place], bytes(turned)):
                root = tmp_path / f"{name}-{place}-{len(damaged)}"
                shutil.copytree(whole, root / "step_4", copy_function=os.link)
                (root / "step_4" / name).unlink()
                (root / "step_4" / name).write_bytes(damaged)
                found, passed_over = newest_checkpoint(root)
                assert found is None, (name, place)
                assert len(passed_over) == 1


def test_a_damaged_checkpoint_is_passed_over_with_its_reason_and_kept_aside(run: Path) -> None:
    with (run / "checkpoints" / "step_4" / "optimizer.pt").open("r+b") as file:
        file.truncate(1000)
    outcome = resume_run(run, json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 4)
    notes = notes_of(run)
    assert "checkpoint passed over" in notes
    assert "optimizer.pt has 1000 bytes instead of" in notes
    assert (run / "set_aside" / "after_step_3" / "checkpoints" / "step_4").is_dir()
    assert list(Ledger(run / "ledger.jsonl").steps) == [1, 2, 3, 4]


def test_a_run_all_of_whose_checkpoints_are_damaged_says_so_and_touches_nothing(run: Path) -> None:
    for path in run.glob("checkpoints/*/manifest.json"):
        path.write_text("{")
    before = (run / "ledger.jsonl").read_text()
    outcome = resume_run(run, json_output=True)
    assert outcome.state == "failed"
    assert "no checkpoint can be used" in outcome.message
    assert "another name" in outcome.message
    assert (run / "ledger.jsonl").read_text() == before


@pytest.mark.parametrize("damage", ["torn at the end", "a line that is no JSON", "a line without its keys", "gone"])
@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_a_whole_checkpoint_is_enough_whatever_has_become_of_the_records(run: Path, name: str, damage: str) -> None:
    shutil.rmtree(run / "checkpoints" / "step_4")
    path = run / name
    lines = path.read_text().splitlines(keepends=True)
    if damage == "gone":
        path.unlink()
    elif damage == "torn at the end":
        path.write_text("".join(lines)[:-7])
    else:
        lines[1] = "\0\0\0\n" if damage == "a line that is no JSON" else '{"step": "two"}\n'
        path.write_text("".join(lines))
    before = {
        step: [str(row["group"]) for row in read_lines(run / "rollouts" / f"step_{step:06}.jsonl")][::2]
        for step in (1, 2, 3)
    }
    outcome = resume_run(run, json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 4)
    assert {step: groups for step, groups in Ledger(run / "ledger.jsonl").steps.items() if step < 4} == before
    notes = notes_of(run)
    if damage.startswith("a line"):
        assert f"{name}: line 2 is damaged; moved to {name}.damaged" in notes
        assert lines[1] in (run / f"{name}.damaged").read_text()
    if damage == "gone":
        assert "missing" in notes


def test_going_back_to_a_chosen_step_keeps_what_came_after_it_aside(run: Path) -> None:
    later = (run / "rollouts" / "step_000003.jsonl").read_bytes()
    metrics = (run / "metrics.jsonl").read_bytes()
    outcome = resume_run(run, step=2, overrides=["--max_steps", "3"], json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 3)
    aside = run / "set_aside" / "after_step_2"
    assert (aside / "metrics.jsonl").read_bytes() == metrics
    assert (aside / "rollouts" / "step_000003.jsonl").read_bytes() == later
    assert sorted(path.name for path in (aside / "checkpoints").iterdir()) == ["step_3", "step_4"]
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == [1, 2, 3]
    # The same seed and the same weights: the step that was done again is the same step.
    assert (run / "rollouts" / "step_000003.jsonl").read_bytes() == later


def test_a_step_without_a_checkpoint_cannot_be_chosen_and_those_there_are_are_named(run: Path) -> None:
    outcome = resume_run(run, step=7, json_output=True)
    assert outcome.state == "failed"
    assert "there is no checkpoint of step 7; there are: 1, 2, 3, 4" in outcome.message
    assert not (run / "set_aside").exists()


def test_a_checkpoint_is_a_model_to_begin_with(run: Path, train: Train) -> None:
    checkpoint = run / "checkpoints" / "step_2"
    outcome = train("--model", str(checkpoint), "--max_steps", "1")
    assert (outcome.state, outcome.step) == ("finished", 1)
    exported, saved = (
        load_file(run / "exports/step_2-model/model.safetensors"),
        load_file(checkpoint / "weights.safetensors"),
    )
    assert exported.keys() == saved.keys()
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    shutil.rmtree(checkpoint)  # as a run that goes on does with its older ones
    assert train("--model", str(checkpoint), "--max_steps", "2", resume=True).step == 2


def test_a_checkpoint_of_an_adapter_is_an_adapter_to_begin_with(train: Train, tmp_path: Path) -> None:
    lora = ("--lora.rank", "2", "--max_steps", "1")
    train(*lora, "--name", "first")
    checkpoint = tmp_path / "runs" / "first" / "checkpoints" / "step_1"
    outcome = train(*lora, "--lora.path", str(checkpoint))
    assert (outcome.state, outcome.step) == ("finished", 1)
    exported = load_file(tmp_path / "runs/first/exports/step_1-peft/adapter_model.safetensors")
    assert any(tensor.any() for name, tensor in exported.items() if "lora_B" in name)
    assert train("--name", "whole", "--model", str(checkpoint), "--max_steps", "1").state == "finished"


def test_a_checkpoint_of_all_weights_is_no_adapter(run: Path, train: Train) -> None:
    with pytest.raises(ConfigError, match="holds all weights"):
        train("--lora.rank", "2", "--lora.path", str(run / "checkpoints" / "step_2"))


def test_a_directory_that_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        resume_run(tmp_path)


def test_what_a_killed_process_was_writing_is_swept_away(run: Path) -> None:
    torn = [run / ".status.json.1.tmp", run / "rollouts" / ".step_000005.jsonl.1.tmp"]
    for path in torn:
        path.write_text("{")
    (run / ".model.1.tmp").mkdir()
    resume_run(run, json_output=True)
    assert not list(run.glob(".*.tmp"))
    assert not list(run.glob("rollouts/.*.tmp"))


def test_a_disk_that_does_not_keep_what_is_synced_ends_the_run_with_a_word(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = os.fsync

    def failing(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 25:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        outcome = train()
    assert outcome.state == "failed"
    assert "Input/output error" in outcome.message
    assert str(tmp_path / "runs" / "run") in outcome.message
    assert train(resume=True).state == "finished"


def test_an_engine_that_stops_answering_stops_the_run_with_a_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answered = EmbeddedEngine.sample, 0

    async def hang_later(self: EmbeddedEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal answered
        answered += 1
        if answered > 9:
            await asyncio.Event().wait()
        return await real(self, *args, **kwargs)

    quick = ("--watchdog.report_seconds", "0.3", "--watchdog.act_seconds", "1", "--watchdog.act_factor", "1")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedEngine, "sample", hang_later)
        outcome = train(*quick, "--checkpointing.save_every_n_steps", "50")
    assert outcome.state == "failed"
    assert "for an answer of the engine" in outcome.message
    assert "There is a checkpoint of step 2" in outcome.message
    assert (tmp_path / "runs" / "run" / "checkpoints" / "step_2").is_dir()
    assert train(resume=True).state == "finished"


def test_a_used_up_budget_ends_a_run_with_its_weights_and_a_larger_one_goes_on(train: Train, tmp_path: Path) -> None:
    outcome = train("--budget.max_tokens", "20", "--checkpointing.save_every_n_steps", "50")
    assert outcome.state == "finished"
    assert outcome.step < 4
    assert "budget.max_tokens = 20 is used up" in outcome.message
    assert outcome.weights is not None
    used = json.loads((tmp_path / f"runs/run/checkpoints/step_{outcome.step}/curriculum.json").read_text())["budget"]
    assert used["tokens"] >= 20
    assert train("--budget.max_tokens", "20", resume=True).step == outcome.step
    assert train("--budget.max_tokens", "100000", resume=True).step == 4


def test_time_that_is_up_ends_a_run_that_waits(train: Train) -> None:
    outcome = train("--budget.max_time", "0.01 s")
    assert outcome.state == "finished"
    assert "budget.max_time" in outcome.message


def test_a_plateau_of_held_out_scores_ends_a_run(train: Train) -> None:
    outcome = train(
        *("--max_steps", "50", "--learning_rate", "1e-12", "--eval.interval", "1"),
        *("--early_stop.patience", "2", "--early_stop.min_delta", "0.5"),
    )
    assert outcome.state == "finished"
    assert outcome.step == 3
    assert "early_stop.patience = 2" in outcome.message


def test_an_early_stop_that_could_never_act_is_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"eval\.interval"):
        train("--early_stop.patience", "2")
    with pytest.raises(ConfigError, match="is not evaluated; choose from reverse-text"):
        train("--early_stop.environment", "reverse", "--eval.interval", "1")


def test_sigterm_saves_and_says_how_to_go_on(warm: Any, tmp_path: Path) -> None:
    arguments = ("train", "run", config_in(tmp_path), "--runs_directory", tmp_path / "runs")
    process = warm.start(*arguments, "--checkpointing.save_every_n_steps", "50", "--max_steps", "1000")
    for line in process.stdout:
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGTERM)
            break
    output = process.communicate()
    assert process.returncode == 130, output
    assert "--resume" in output
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert (tmp_path / "runs" / "run" / "checkpoints" / f"step_{status['step']}").is_dir()
