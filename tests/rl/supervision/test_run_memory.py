"""What a run records of its memory, beside what its plan said; and what the doctor says where the two are apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from whet.rl.doctor import diagnose, examine
from whet.rl.doctor.record import DoctorFinding, RunRecord
from whet.rl.report.data import RunData
from whet.rl.stored.stored_run import open_run
from whet.rl.supervision.memory import RunMemory

CONFIG = """
name = "run"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
{keys}
[sampling]
max_tokens = 16
[[env]]
id = "./env.py"
[eval]
num_examples = 2
[deployment]
threads = 1
"""
ENV = """
import whet

def load_environment():
    rows = [{{"question": "Say 1", "answer": "1"}}] * 4
    env = whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[length]))
    env.held = bytes({held}) + b"1" * {held}
    return env

def length(completion):
    return len(completion[-1]["content"]) / 100
"""


def run(folder: Path, keys: str = "", held: int = 0) -> list[dict[str, Any]]:
    """The metrics of a run in a process of its own, as a plan is made for one."""
    (folder / "env.py").write_text(ENV.format(held=held))
    (folder / "run.toml").write_text(CONFIG.format(keys=keys))
    command = [sys.executable, "-m", "whet.cli.main", "train", "run", "run.toml", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return open_run(folder / "runs" / "run").metrics()


linux = pytest.mark.skipif(sys.platform != "linux", reason="peaks are kept by Linux")


@linux
@pytest.mark.parts
def test_phases_and_processes_are_recorded_beside_what_was_said(tmp_path: Path) -> None:
    first, last = run(tmp_path, "max_async_level = 1\nworkers_per_env = 2\nlearner = { micro_batch_tokens = 256 }")
    said = [first[f"memory/said_{name}_mib"] for name in ("main", "learner", "engine", "others", "shared")]
    assert first["memory/said_mib"] == pytest.approx(sum(said))
    assert not [name for name in last if name.startswith("memory/said")]
    for row in (first, last):
        processes = [row[f"memory/{name}_mib"] for name in ("main", "learner", "engine", "others", "shared")]
        assert min(processes) > 20
        phases = [row[f"memory/{name}_mib"] for name in ("rollouts", "learn", "publish")]
        assert max(processes) < min(phases)
        assert max(phases) <= row["memory/peak_mib"] <= sum(processes) + 60
    assert first["memory/load_mib"] <= first["memory/peak_mib"] <= last["memory/peak_mib"]
    assert last["memory/peak_mib"] == pytest.approx(first["memory/said_mib"], rel=0.15)
    assert "memory" not in [finding.rule for finding in examine(tmp_path / "runs" / "run").findings]


@linux
@pytest.mark.parts
def test_an_environment_that_holds_much_is_found(tmp_path: Path) -> None:
    run(tmp_path, held=200 << 20)
    [finding] = [one for one in examine(tmp_path / "runs" / "run").findings if one.rule == "memory"]
    assert (finding.severity, finding.what) == ("warning", "the run takes more memory than its plan said (main)")
    assert "data that environments hold is not in a plan" in finding.line
    assert any("memory/said_main_mib" in line for line in finding.evidence)


def found(steps: int = 6, **sizes: float) -> list[DoctorFinding]:
    first = {f"memory/{name}_mib": size for name, size in sizes.items()}
    later = {name: size for name, size in first.items() if "said" not in name}
    rows = [{"step": step, **(later if step > 1 else first)} for step in range(1, steps + 1)]
    return [one for one in diagnose(RunRecord(RunData(Path(), {}, rows, []))) if one.rule == "memory"]


def test_the_process_with_the_largest_difference_is_named() -> None:
    sizes: dict[str, float] = {"said": 1000, "said_main": 300, "said_learner": 700, "main": 310}
    assert found(**sizes, peak=1149, learner=840) == []
    [more] = found(**sizes, peak=1160, learner=850)
    assert (more.severity, more.what[-9:]) == ("warning", "(learner)")
    assert more.changes[0].key == "learner.micro_batch_tokens"
    assert found(**sizes, peak=880, learner=570) == []
    assert found(**sizes, peak=850, learner=540) == [], "a little to spare"
    [less] = found(**sizes, peak=740, learner=430)
    assert (less.severity, "memory/learner_mib 430" in less.evidence[1]) == ("info", True)
    assert found(steps=3, **sizes, peak=740, learner=430) == [], "a run that has just begun"
    assert found(peak=740, learner=430) == [], "nothing was said"


def test_published_weights_are_memory_also_where_nothing_maps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rl.supervision.memory.IN_MEMORY", tmp_path)
    memory = RunMemory()
    memory.mark("load")
    (tmp_path / "weights").write_bytes(b"1" * (64 << 20))
    memory.published = tmp_path
    memory.mark("publish")
    row = memory.metrics()
    assert row["memory/publish_mib"] >= row["memory/load_mib"] + 32
    assert memory.metrics() == {"memory/peak_mib": row["memory/peak_mib"]}


def test_in_a_process_that_holds_much_already_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.rl.supervision.memory.own_memory", lambda pid: 1 << 30)
    memory = RunMemory()
    memory.said({"main": 1 << 20})
    assert memory.metrics() == {"memory/peak_mib": 0.0}
