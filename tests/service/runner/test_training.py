"""Real training behind the shim: metrics as of a local run, restarts, stops, reasons of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from whet.rl.data.metrics import without_clock
from whet.service.domain import runs
from whet.service.storage.tables import RunRow
from whet.system.files import read_lines

pytestmark = pytest.mark.parts


@pytest.fixture
def database_url() -> None:
    """What runs write does not depend on the kind of the database."""


def metrics(run: Path) -> list[dict[str, Any]]:
    return [without_clock(row) for row in read_lines(run / "metrics.jsonl")]


def test_metrics_are_those_of_a_local_run_bit_for_bit(isolated: Any, warm: Any, training: Any, tmp_path: Path) -> None:
    given, files = training
    config = tmp_path / "mine.toml"
    config.write_text(given)
    local = warm.start("train", "run", config, "--runs_directory", tmp_path / "local")
    said = local.communicate()
    assert local.returncode == 0, said
    run = isolated.queue.submit(config=given, files=files)
    runner = isolated.runner()
    row = isolated.end(runner, run)
    assert row.state == "finished", isolated.said()
    submitted = isolated.folder(run).run
    assert metrics(submitted) == metrics(tmp_path / "local" / "mine")
    weights = "model/model.safetensors"
    assert (submitted / weights).read_bytes() == (tmp_path / "local" / "mine" / weights).read_bytes()
    assert (row.step, row.max_steps) == (3, 3)
    assert row.tokens > 0
    assert row.seconds > 0
    with isolated.queue.database.write() as session:
        runs.restart(session, session.get_one(RunRow, run), "ann", 1, 0.0)
    row = isolated.end(runner, run)
    assert (row.state, row.attempt, row.step) == ("finished", 2, 3), isolated.said()
    assert "step 1" in isolated.output(run)
    assert metrics(submitted) == metrics(tmp_path / "local" / "mine")


def test_a_stopped_run_has_a_checkpoint_and_continues(isolated: Any, training: Any) -> None:
    given, files = training
    runner = isolated.runner()
    run = isolated.queue.submit(config=given.replace("max_steps = 3", "max_steps = 1000"), files=files)
    isolated.until(runner, lambda: isolated.queue.run(run).step >= 1)
    with isolated.queue.database.write() as session:
        runs.request_stop(session, session.get_one(RunRow, run), "ann", 0.0)
    row = isolated.end(runner, run)
    assert (row.state, row.reason) == ("stopped", "stopped by ann"), isolated.said()
    folder = isolated.folder(run).run
    last = max(row["step"] for row in read_lines(folder / "metrics.jsonl"))
    assert (folder / "checkpoints" / f"step_{last}").is_dir()


def test_a_run_that_fails_has_the_doctors_finding(isolated: Any, training: Any) -> None:
    given, files = training
    runner = isolated.runner()
    failing = """
import whet

def load_environment():
    def reward(**kwargs):
        raise RuntimeError("the judge is down")
    rows = [{"question": "Say.", "answer": ""}] * 8
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric(funcs=[reward]))
"""
    files = isolated.stored({"failing.py": failing.encode()})
    config = given.replace('"reverse-text"', '"failing.py"')
    run = isolated.queue.submit(config=config, files=files)
    row = isolated.end(runner, run)
    assert row.state == "failed"
    assert "the judge is down" in row.reason


def test_secrets_reach_the_run_and_none_of_its_files(isolated: Any, training: Any) -> None:
    given, files = training
    runner = isolated.runner()
    source = """
import os
import whet

def load_environment():
    value = os.environ["MY_API_KEY"]
    print("loaded with", value, flush=True)
    os.write(1, ("raw " + value + "\\n").encode())
    def reward(**kwargs):
        return float(os.environ["MY_API_KEY"] == value)
    rows = [{"question": "Say " + value, "answer": value}] * 8
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric(funcs=[reward]))
"""
    files = isolated.stored({"leaking.py": source.encode()})
    secret = "canary-0123456789"
    config = given.replace('"reverse-text"', '"leaking.py"')
    run = isolated.queue.submit(config=config, files=files, secrets={"MY_API_KEY": secret})
    row = isolated.end(runner, run)
    assert row.state == "finished", isolated.said()
    assert {row["reward/mean"] for row in read_lines(isolated.folder(run).run / "metrics.jsonl")} == {1.0}
    assert "loaded with [MY_API_KEY]" in isolated.output(run)
    assert "raw [MY_API_KEY]" in isolated.output(run)
    found = [file for file in isolated.data.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    assert found == [], row.reason
    assert list(Path("/dev/shm").glob("whet-secrets*")) == []


def test_evaluations_are_runs_too(isolated: Any, training: Any) -> None:
    _, files = training
    runner = isolated.runner()
    config = """
model = "whet/tiny"
num_examples = 2
rollouts_per_example = 1
max_tokens = 4
[[eval]]
env_id = "reverse-text"
"""
    run = isolated.queue.submit(kind="evaluation", config=config, files=files)
    row = isolated.end(runner, run)
    assert row.state == "finished", isolated.said()
    assert row.step == 2
    assert json.loads(next(isolated.folder(run).run.rglob("metadata.json")).read_text())
