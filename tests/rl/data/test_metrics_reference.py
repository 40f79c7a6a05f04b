"""The table of metrics in docs/training.md, against what real runs write: nothing undocumented, nothing made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from whet.rl.monitors.console import step_line
from whet.rl.monitors.progress import RunProgress
from whet.rl.monitors.protocol import RunPlan, StepReport
from whet.rl.stored.compare import names, numbers_of
from whet.rl.stored.stored_run import open_run

DOCS = Path(__file__).parents[3] / "docs" / "training.md"
CONFIG = """
max_steps = 2
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-4
[sampling]
max_tokens = 16
[[env]]
id = "reverse-text"
[[env]]
id = "arithmetic"
[[env]]
id = "multi"
[eval]
num_examples = 2
rollouts_per_example = 2
before = false
[learner]
peak_tflops = 1.0
[deployment]
threads = 1
"""
EVERYTHING = """
[sampling.temp_scheduler]
start = 1.0
end = 0.9
[algorithm]
kl_coef = 0.01
kl_target = 0.02
entropy_target = 0.5
reference = "whet/tiny"
mask_truncated = true
tis_limit = 2.0
mis_limit = 5.0
length_penalty = 0.1
length_penalty_full = 16
repetition_penalty = 0.1
"""
SYNCHRONOUS = ["--sampling.top_p", "0.9", "--deployment.colocate", "true", "--env.1.algorithm", "opd"]
ASYNCHRONOUS = ["--max_async_level", "1", "--eval.after", "false", "--deployment.engine_process", "false"]
ASYNCHRONOUS += [
    "--learner.ranks",
    "2",
    "--max_steps",
    "8",
]  # until some step has tokens of older weights, and of its own to compare with

CRITIC = ["--algorithm.advantage", "gae", "--max_steps", "1", "--eval.after", "false", "--learner.ranks", "2"]


def documented() -> list[str]:
    section = DOCS.read_text(encoding="utf-8").split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def pattern(name: str) -> re.Pattern[str]:
    placed = re.escape(name).replace("<env>", "(?:reverse-text|arithmetic|multi)").replace("<function>", "[a-z_]+")
    placed = placed.replace("<member>", "(?:reverse-text|calculator|guess-number)(?:/greedy)?")
    return re.compile(placed.replace("<k>", "[0-9]+"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, warm_server: Any) -> list[str]:
    """Every name that a synchronous run with everything switched on, or an asynchronous run, writes."""
    folder = tmp_path_factory.mktemp("metrics")
    found: set[str] = set()
    for name, config, overrides in (
        ("sync", CONFIG + EVERYTHING, SYNCHRONOUS),
        ("async", CONFIG, ASYNCHRONOUS),
        ("critic", CONFIG, CRITIC),
    ):
        file = folder / f"{name}.toml"
        file.write_text(config)
        warm_server.run("train", "run", file, "--runs_directory", folder / "runs", *overrides)
        found.update(names(numbers_of(open_run(folder / "runs" / name))))
    return sorted(found)


def test_every_metric_that_is_written_is_documented(written: list[str]) -> None:
    patterns = [pattern(name) for name in documented()]
    assert [name for name in written if not any(known.fullmatch(name) for known in patterns)] == []


def test_every_metric_that_is_documented_is_written(written: list[str]) -> None:
    # Of several engines: tests/inference/pool; on a cluster: tests/rl/cluster.
    # Memory of an engine's process, of workers, on CUDA and by the plan: tests/rl/supervision/test_run_memory.py.
    elsewhere = ("engine/", "weights/", "memory/said", "memory/engine", "memory/others", "memory/device")
    elsewhere += ("memory/evaluate", "memory/save")  # of what comes before a step that is on record
    of_runs = [name for name in documented() if not name.startswith(elsewhere)]
    assert [name for name in of_runs if not any(map(pattern(name).fullmatch, written))] == []


def test_a_line_of_the_console_has_its_numbers_by_the_same_names() -> None:
    plan = RunPlan("r", Path("r"), "m", ["reverse-text", "arithmetic"], 8, 4, 2)
    progress = RunProgress(plan, lambda: 0.0)
    metrics = {"reward/mean": 0.5, "reward/reverse-text/mean": 0.25, "reward/arithmetic/mean": 0.75}
    assert all(any(pattern(name).fullmatch(one) for name in documented()) for one in metrics)
    progress.on_step(StepReport(1, {**metrics, "perf/tokens_per_s": 1234.0}))
    line = step_line(progress)
    assert "reward 0.500 (reverse-text 0.250, arithmetic 0.750)" in line
    assert "1,234 tokens/s" in line
