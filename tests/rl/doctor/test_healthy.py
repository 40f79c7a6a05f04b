"""Healthy runs, and what the doctor does with runs that say little."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from whet.errors import RunError
from whet.rl.config import load_run_config
from whet.rl.doctor import diagnose, examine, line, read_record
from whet.rl.doctor.record import DoctorFinding, Life, RunRecord
from whet.rl.run import run_training

Run = Callable[..., Path]
QUICKSTART = Path(__file__).parents[3] / "configs" / "rl" / "quickstart.toml"
PART = ("--batch_size", "64", "--deployment.threads", "1", "--eval.num_examples", "4", "--name", "run")


def whatever_the_clock_says(findings: list[DoctorFinding]) -> list[DoctorFinding]:
    """Without what a busy machine alone can bring about."""
    return [finding for finding in findings if finding.rule != "slow"]


@pytest.mark.parametrize(
    ("steps", "evaluated"),
    [(6, "false"), pytest.param(80, "true", marks=pytest.mark.long)],
    ids=["its start", "all of it"],
)
def test_nothing_is_found_in_the_quickstart(tmp_path: Path, steps: int, evaluated: str) -> None:
    length = ["--max_steps", str(steps), "--eval.before", evaluated, "--eval.after", evaluated]
    config = load_run_config(QUICKSTART, [*PART, *length, "--runs_directory", str(tmp_path)])
    assert run_training(config, json_output=True).state == "finished"
    assert whatever_the_clock_says(examine(tmp_path / "run").findings) == []


def test_nothing_is_found_in_the_run_that_the_sick_ones_differ_from(run_of: Run) -> None:
    diagnosis = examine(run_of("healthy"))
    assert (whatever_the_clock_says(diagnosis.findings), diagnosis.state, diagnosis.step) == ([], "finished", 6)
    assert not diagnosis.ill
    assert (line(run_of("healthy")) is None) == (diagnosis.findings == [])


@pytest.mark.long
def test_nothing_is_found_in_a_healthy_asynchronous_run(run_of: Run) -> None:
    serious = [
        finding
        for finding in whatever_the_clock_says(examine(run_of("asynchronous and healthy")).findings)
        if finding.severity != "info"
    ]
    assert serious == []


@pytest.mark.long
def test_rollouts_that_are_too_old_are_found(run_of: Run) -> None:
    rules = {finding.rule: finding for finding in examine(run_of("old rollouts")).findings}
    assert "versions old on average" in rules["staleness"].evidence[0]
    assert rules["staleness"].changes[0].text.startswith("oversampling_factor = 1.0  (now 2.0)")
    assert "moves too far between sampling and learning" in rules["policy-drift"].what


def test_a_run_of_few_steps_says_nothing_yet(run_of: Run, tmp_path: Path) -> None:
    short = shutil.copytree(run_of("steps of a hundredfold"), tmp_path / "short")
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text("".join(lines[:3]))
    assert examine(short).findings == []


def test_a_run_that_was_killed_is_told_from_one_that_goes_on(warm: Any, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    settings = {"batch_size": 8, "rollouts_per_example": 4, "sampling": {"max_tokens": 8}, "max_steps": 500}
    quiet = {"eval": {"before": False}, "env": [{"id": "reverse-text"}], "deployment": {"threads": 1}}
    config.write_text(tomli_w.dumps({**settings, **quiet, "runs_directory": str(tmp_path / "runs")}))
    process = warm.start("train", "run", config)
    next(told for told in process.stdout if told.startswith("step 2/"))
    going_on = examine(tmp_path / "runs" / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    died = examine(tmp_path / "runs" / "run")
    assert (going_on.state, died.state) == ("running", "died")
    assert not {"killed", "silent"} & {finding.rule for finding in going_on.findings}
    assert died.findings[0].rule == "killed"
    assert died.findings[0].severity == "error"
    assert any(change.key == "learner.micro_batch_tokens" for change in died.findings[0].changes)


def test_a_checkpoint_whose_bytes_changed_is_found(run_of: Run, tmp_path: Path) -> None:
    run = shutil.copytree(run_of("healthy"), tmp_path / "run")
    weights = max((run / "checkpoints" / "step_6").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    [finding] = examine(run).findings
    assert (finding.rule, finding.severity) == ("checkpoints", "error")
    assert weights.name in finding.evidence[0]
    assert "its hash differs" in finding.evidence[0]


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "the learner (cpu, process 9) was killed by SIGKILL in: optimiser step (most often for its memory: ...)",
    ],
)
def test_an_error_that_speaks_of_memory_asks_for_less_of_it(run_of: Run, message: str) -> None:
    run = RunRecord(read_record(run_of("healthy")).data, Life("failed", last_error=message))
    [finding] = diagnose(run)
    assert finding.rule == "out-of-memory"
    assert finding.changes[0].text.startswith("learner.micro_batch_tokens = 1024  (now 2048)")


def test_a_run_that_was_not_heard_of_for_long_is_said_to_be_silent(run_of: Run) -> None:
    data = read_record(run_of("healthy")).data
    found = [diagnose(RunRecord(data, Life("running", silent_seconds=seconds))) for seconds in (300.0, 20.0)]
    assert [[finding.rule for finding in findings] for findings in found] == [["silent"], []]


def test_a_run_without_checkpoints_is_found(run_of: Run) -> None:
    data = read_record(run_of("healthy")).data
    data.config["checkpointing"]["save_every_n_steps"] = 3
    [finding] = diagnose(RunRecord(data, Life("running", checkpoints=())))
    assert finding.what == "no checkpoint is written"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no run"):
        examine(tmp_path)


def test_a_torn_status_is_named(run_of: Run, tmp_path: Path) -> None:
    run = shutil.copytree(run_of("healthy"), tmp_path / "run")
    (run / "status.json").write_text("{torn")
    with pytest.raises(RunError, match=r"status\.json"):
        examine(run)


def test_a_number_that_was_not_finite_is_passed_over(run_of: Run, tmp_path: Path) -> None:
    run = shutil.copytree(run_of("healthy"), tmp_path / "run")
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    rows[-1] = dict.fromkeys(rows[-1], None) | {"step": 6}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert examine(run).findings == []
