"""Evaluation during training: members of an `EnvGroup`, intervals of what changed, retries, time limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import whet
from whet.clients.scripted import ScriptedClient
from whet.rl.config import RunConfig
from whet.rl.loop.training_loop import HeldOutEvaluation
from whet.rl.monitors.jsonl import read_evaluations
from whet.rl.monitors.protocol import EvalReport, evaluation_metrics
from whet.rollouts.totals import EvalScore
from whet.system.files import read_lines
from whet.types import State

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


class Unreliable(whet.SingleTurnEnv):
    """Its endpoint fails in the first attempts at each rollout; the rollouts of task 1 may hang."""

    def __init__(self, failures: int = 0, *, hangs: bool = False) -> None:
        rows = [{"question": f"task {number}"} for number in range(3)]
        super().__init__(dataset=rows, rubric=whet.Rubric(funcs=[one]), env_id="unreliable")
        self.failures, self.hangs = failures, hangs
        self.attempts: Counter[str] = Counter()

    async def setup_state(self, state: State) -> None:
        self.attempts[state["trajectory_id"]] += 1
        if self.hangs and state["example_id"] == 1:
            await asyncio.Event().wait()
        if self.attempts[state["trajectory_id"]] <= self.failures:
            raise whet.InfraError("the endpoint of the environment does not answer")


def one() -> float:
    return 1.0


def evaluation_of(env: whet.Environment, *, client: Any = None, **settings: Any) -> EvalReport:
    """Held-out scores of `env`, sampled and greedy."""
    config = RunConfig.model_validate(
        {"name": "run", "env": [{"id": "unreliable"}], "eval": {"num_examples": 3, **settings}}
    )
    monitor = SimpleNamespace(phase=lambda *_: None)
    client = client or ScriptedClient(lambda prompt: "said")
    return asyncio.run(HeldOutEvaluation(config, [("e", env)], client, cast(Any, monitor))("before", 0, 0))


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr("whet.rollouts.groups.LONGEST_PAUSE_S", 0.0)


def errors(scores: list[EvalScore]) -> list[int]:
    return [score.errors for score in scores]


def test_rollouts_whose_endpoint_fails_are_retried(no_delay: None) -> None:
    report = evaluation_of(Unreliable(failures=2), max_retries=2)
    assert errors(report.scores) == [0, 0]
    assert [score.reward for score in report.scores] == [1.0, 1.0]


def test_rollouts_fail_where_no_retry_is_left(no_delay: None) -> None:
    env = Unreliable(failures=2)
    assert errors(evaluation_of(env, max_retries=1).scores) == [3, 3]
    assert set(env.attempts.values()) == {2}
    assert errors(evaluation_of(Unreliable(failures=1)).scores) == [3, 3]


def test_a_hanging_rollout_is_an_error_and_the_others_are_scored() -> None:
    report = evaluation_of(Unreliable(hangs=True), timeout=1.0)
    assert errors(report.scores) == [1, 1]
    failed = [row for score in report.scores for row in score.rows if row["error"] is not None]
    assert [(row["example_id"], row["error"]["error"]) for row in failed] == [(1, "RolloutTimeoutError")] * 2
    assert [score.reward for score in report.scores] == [1.0, 1.0]


def test_rollouts_that_run_at_once_have_different_names() -> None:
    env = Unreliable()
    evaluation_of(env, rollouts_per_example=2)
    assert len(env.attempts) == 9  # six sampled, three greedy
    assert set(env.attempts.values()) == {1}


FAILS_ONCE = """
import whet

attempts = set()


class FailsOnce(whet.SingleTurnEnv):
    async def setup_state(self, state):
        if "held out" in state["prompt"][-1]["content"] and state["trajectory_id"] not in attempts:
            attempts.add(state["trajectory_id"])
            raise whet.InfraError("the endpoint of the environment does not answer")


def length(completion):
    return len(completion[-1]["content"] or "") % 5 / 4


def load_environment():
    return FailsOnce(
        dataset=[{"question": f"Say {number}"} for number in range(8)],
        eval_dataset=[{"question": f"held out {number}"} for number in range(2)],
        rubric=whet.Rubric(funcs=[length]),
    )
"""


def test_a_run_whose_endpoint_fails_during_evaluation_has_all_scores(warm_server: Any, tmp_path: Path) -> None:
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    config = CONFIG.replace('id = "./mix.py"\nname = "mix"', 'id = "./fails_once.py"')
    (tmp_path / "run.toml").write_text(config.replace("num_examples = 6", "num_examples = 2\nmax_retries = 1"))
    warm_server.run("train", "run", "run.toml", "--max_steps", "1", cwd=tmp_path)
    before = read_evaluations(tmp_path / "runs" / "run" / "evals.jsonl")[0]
    assert [(score.rollouts, score.errors) for score in before.scores] == [(2, 0), (2, 0)]
