"""Held-out scores of an `EnvGroup` in training: of each member, and with intervals of what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.protocol import evaluation_metrics
from whet.system.files import read_lines

GROUP = """
import whet


def member(word):
    rows = [{"question": f"Say {word} {number}", "answer": word} for number in range(20)]
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=whet.Rubric(funcs=[length]))


def length(completion, answer):
    return {"a": 1.0, "b": 0.5}[answer] * (len(completion[-1]["content"] or "") % 5) / 4


def load_environment():
    return whet.EnvGroup([member("a"), member("b")], env_names=["alpha", "beta"])
"""
CONFIG = """
name = "run"
max_steps = 2
batch_size = 16
rollouts_per_example = 4
[sampling]
max_tokens = 8
[[env]]
id = "./mix.py"
name = "mix"
[eval]
num_examples = 6
[deployment]
threads = 1
"""


@pytest.fixture(scope="module")
def folder(warm_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    (folder / "mix.py").write_text(GROUP)
    (folder / "run.toml").write_text(CONFIG)
    (folder / "output").write_text(warm_server.run("train", "run", "run.toml", cwd=folder))
    return folder


def test_members_of_a_group_are_evaluated_by_turns_and_scored_apart(folder: Path) -> None:
    report = read_evaluations(folder / "runs" / "run" / "evals.jsonl")[0]
    whole = report.scores[0]
    assert list(whole.by_task) == ["0", "20", "1", "21", "2", "22"]
    assert [(one.environment, list(one.by_task)) for one in whole.members] == [
        ("mix/alpha", ["0", "1", "2"]),
        ("mix/beta", ["20", "21", "22"]),
    ]
    assert sum(one.reward for one in whole.members) / 2 == pytest.approx(whole.reward)
    metrics = evaluation_metrics(report)
    assert metrics["eval/mix/alpha/reward"] == whole.members[0].reward
    assert metrics["eval/mix/beta/greedy/length"] == report.scores[1].members[1].reward


def test_training_has_a_curve_for_each_member(folder: Path) -> None:
    run = folder / "runs" / "run"
    rows = list(read_lines(run / "metrics.jsonl"))
    assert any("reward/mix/alpha/mean" in row for row in rows)
    assert any("reward/mix/beta/mean" in row for row in rows)


def test_the_end_and_the_report_show_members_and_intervals(folder: Path, read_page: Any) -> None:
    output = (folder / "output").read_text()
    table = output[output.index("Held-out tasks, before and after") :]
    for name in ("mix", "alpha", "beta"):
        assert any(line.split()[:1] == [name] and "±" in line for line in table.splitlines()), table
    assert "[alpha " in output
    page = (folder / "runs" / "run" / "report.html").read_text()
    assert "mix/alpha" in page
    assert page.count(" ± ") >= 6
    assert "paired over tasks" in page
