"""What is reported of rollouts that failed: for each class of error one sentence, with the environment's line."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

import whet
from whet.clients.scripted import ScriptedClient
from whet.display.live import Output
from whet.evals.analysis.summary import SummaryBuilder
from whet.evals.config import EvalConfig
from whet.evals.observer import EvalObserver
from whet.evals.printing import print_summaries
from whet.evals.sessions.session import run_evals
from whet.evals.stored.stored import open_stored
from whet.records.directory import EVALS
from whet.rl.loop.group import Tally, describe_error
from whet.rl.monitors.console import ConsoleMonitor
from whet.rl.monitors.jsonl import JsonlMonitor, read_evaluations
from whet.rl.monitors.protocol import EvalReport, Outcome, RunPlan, StepReport
from whet.rollouts.results import error_info, error_message
from whet.rollouts.totals import EvalScore
from whet.types import RolloutOutput

ENVIRONMENT = """
import json

import whet


class Failing(whet.MultiTurnEnv):
    async def setup_state(self, state):
        fail = {"infra": self.infra, "library": self.library, "sandbox": self.sandbox}.get(state["answer"])
        if fail is not None:
            fail()

    def infra(self):
        raise whet.InfraError("the database is away")

    def library(self):
        json.loads("{")

    def sandbox(self):
        raise whet.SandboxError

    async def env_response(self, messages, state, **kwargs):
        return []


def strict(completion, answer):
    if answer == "reward":
        json.loads("{")
    return 1.0


def load_environment(kinds=("infra", "library", "sandbox", "reward", "none")):
    rows = [{"question": "q", "answer": kind} for kind in kinds]
    return Failing(eval_dataset=rows, rubric=whet.Rubric(funcs=[strict]), max_turns=1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "failing.py"
    path.write_text(ENVIRONMENT)
    spec = importlib.util.spec_from_file_location("failing", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "failing", loaded)
    spec.loader.exec_module(loaded)
    return loaded


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(ENVIRONMENT.splitlines(), 1) if text in line)


def test_each_class_has_a_sentence_with_the_line_of_the_environment(module: ModuleType, tmp_path: Path) -> None:
    results = module.load_environment().evaluate_sync(ScriptedClient(["1"]), "scripted")
    examples = results["metadata"]["error_examples"]
    file = tmp_path / "failing.py"
    assert examples["InfraError"] == f"the database is away ({file}:{line_of('the database')})"
    assert examples["EnvError"].startswith("setup_state raised JSONDecodeError: Expecting")
    assert f"{file}:{line_of('json.loads')}" in examples["EnvError"]
    assert examples["SandboxError"] == f"SandboxError ({file}:{line_of('raise whet.SandboxError')})"
    assert examples["RewardError"].startswith("reward function 'strict' of failing raised JSONDecodeError")
    reward_line = line_of("strict(") + 2
    assert f"{file}:{reward_line}" in examples["RewardError"]
    assert results["metadata"]["num_errors"] == 4


def test_a_run_that_saves_nothing_prints_them(tmp_path: Path) -> None:
    (tmp_path / "failing").mkdir()
    (tmp_path / "failing" / "failing.py").write_text(ENVIRONMENT)
    config = EvalConfig(
        environment=str(tmp_path / "failing" / "failing.py"), save=False, env_args={"kinds": ["infra", "library"]}
    )
    summaries = run_evals([config], EvalObserver())
    text = printed(summaries)
    assert "InfraError: the database is away (" in text
    assert f"failing.py:{line_of('the database')}" in text
    assert f"failing.py:{line_of('json.loads')}" in text
    assert "InfraError: the database is away (" in printed([*summaries, *summaries])


def printed(summaries: Any) -> str:
    file = io.StringIO()
    print_summaries(summaries, Console(file=file, width=400, highlight=False))
    return file.getvalue()


def row(number: int, error: dict[str, str]) -> RolloutOutput:
    return RolloutOutput(example_id=number, reward=None, metrics={}, error=error, prompt=[], completion=[])


def builder() -> SummaryBuilder:
    return SummaryBuilder(environment="e", model="m", sampling="s", rollouts_per_example=1, pass_threshold=0.5)


def test_the_same_rows_give_the_same_examples_in_any_order() -> None:
    rows = [row(number, error_info(whet.ModelError(f"no answer {number}"))) for number in range(4)]
    found = [builder().summarize(order, seconds=1.0).error_examples for order in (rows, rows[::-1])]
    assert found[0] == found[1] == {"ModelError": "no answer 0"}


def test_a_saved_evaluation_shows_them_also_from_rows_of_before(tmp_path: Path) -> None:
    old = row(
        0, {"error": "ModelError", "error_chain_repr": "ModelError('no answer')", "error_chain_str": "ModelError"}
    )
    (tmp_path / "results.jsonl").write_text(json.dumps(old) + "\n")
    (tmp_path / "metadata.json").write_text(json.dumps({"env_id": "e", "model": "m", "state": "finished"}))
    summary = open_stored(tmp_path).summary()
    assert summary.error_examples == {"ModelError": "ModelError('no answer')"}
    assert "ModelError: ModelError('no answer')" in printed([summary])


def test_hostile_text_and_many_classes_stay_short_and_harmless() -> None:
    rows = [
        row(number, error_info(type(f"Kind\x1b[2J{number}", (Exception,), {})("\x1b]52;c;x\x07" * 999)))
        for number in range(300)
    ]
    summary = builder().summarize(rows, seconds=1.0)
    assert len(summary.error_examples) <= 101
    assert all(len(text) <= 1200 for text in summary.error_examples.values())
    text = printed([summary])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "more kinds" in text


def test_causes_are_part_of_the_sentence() -> None:
    error = whet.ModelError("the server failed")
    error.__cause__ = TimeoutError("after 5 s")
    assert error_message({"error": error_info(error)}) == "the server failed: after 5 s"
    empty = whet.ModelError()
    assert error_message({"error": error_info(empty)}) == "ModelError"
    assert error_message({"error": None}) is None
    assert error_message({"error": 1.0}) == "1.0"


def test_the_console_of_training_prints_what_is_new(tmp_path: Path) -> None:
    file = io.StringIO()
    monitor = ConsoleMonitor(Output(Console(file=file, width=200, highlight=False)))
    monitor.start(RunPlan("demo", tmp_path, "m", ["words"], batch_size=8, rollouts_per_example=4, max_steps=3))
    for step, text in enumerate(("InfraError: \x1b[2Jaway", "InfraError: \x1b[2Jaway", "ToolError: broken"), 1):
        monitor.step(StepReport(step, {"reward/mean": 0.5}, failures={"words": text}))
    score = EvalScore("words", "greedy", 0.5, {}, 4, errors=1, error_examples={"InfraError": "the database is away"})
    monitor.evaluation(EvalReport("after", 3, 3, [score]))
    monitor.ended(Outcome("finished", 3, ""))
    text = file.getvalue()
    assert (text.count("InfraError: "), text.count("ToolError: broken")) == (3, 1)
    assert text.count("InfraError: the database is away") == 2
    assert "\x1b" not in text


def test_evaluations_on_record_keep_their_examples(tmp_path: Path) -> None:
    score = EvalScore("words", "greedy", 0.5, {}, 4, errors=1, error_examples={"InfraError": "the database is away"})
    log = JsonlMonitor(tmp_path / "metrics.jsonl")
    log.evaluation(EvalReport("after", 3, 3, [score]))
    (read,) = read_evaluations(tmp_path / EVALS)
    assert read.scores[0].error_examples == {"InfraError": "the database is away"}


def test_training_reports_the_most_frequent_error_of_each_environment(module: ModuleType, tmp_path: Path) -> None:
    tally = Tally()
    for answer in ("infra", "infra", "sandbox"):
        env = module.load_environment([answer])
        with pytest.raises(whet.Error) as caught:
            {"infra": env.infra, "sandbox": env.sandbox}[answer]()
        tally.errors[("words", describe_error(caught.value))] += 1
    place = f"({tmp_path / 'failing.py'}:{line_of('the database')})"
    assert tally.failures == {"words": f"InfraError: the database is away {place}"}
