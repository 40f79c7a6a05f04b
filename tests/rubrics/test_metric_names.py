"""Metrics of any name: rows keep their fields, and every mean is that of the reward.

The names are all fields of a row, the metrics that environments add, and what stands beside metrics in flat tables.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import whet
from whet.clients.scripted import ScriptedClient
from whet.dashboard.data.series import MetricColumns
from whet.evals.config import EvalConfig
from whet.evals.evaluate import evaluate_environment
from whet.evals.observer import EvalObserver
from whet.evals.sessions.session import run_evals
from whet.evals.stored.export import export
from whet.evals.stored.stored import open_stored
from whet.gepa.calls.calls import RolloutExecutor
from whet.gepa.types import RolloutCall, SearchExample
from whet.records.entries import entry_of
from whet.rl.data.metrics import reward_metrics
from whet.rl.loop.group import Group
from whet.rl.monitors.jsonl import JsonlMonitor, read_evaluations
from whet.rl.monitors.protocol import EvalReport, StepReport, evaluation_metrics
from whet.rl.supervision.ending import EarlyStopConfig, check_metric, value_of
from whet.rollouts.row_log import load_outputs
from whet.rubrics.metric_names import STATISTICS, flat_name, metric_names
from whet.system import cancellation
from whet.system.files import read_lines
from whet.types import ROW_FIELDS, RolloutOutput

BUILT_IN = {"num_turns", "total_tool_calls", "search_calls", "sandbox_ready_wait_time", "python_ready_wait_time"}
OTHERS = {"pass@1", "pass@2", "metric_mean", "environment", "group", "turns"}
NAMES = sorted(ROW_FIELDS | STATISTICS | BUILT_IN | OTHERS)
SAID = "the answer is 4"


def named(name: str, value: float) -> Any:
    def function(completion: Any) -> float:
        return value

    function.__name__ = name
    return function


def make(names: list[str], values: list[float] | None = None) -> whet.SingleTurnEnv:
    """Reward 0.6: 0.5 of `right`, and half of 0.2 by the first of `names`; the others are metrics without a weight."""

    def right(completion: Any, answer: str) -> float:
        return 0.5

    first, *others = [named(name, 0.2 + index) for index, name in enumerate(names)]
    rubric = whet.Rubric([right, first, *others], [1.0, 0.5, *[0.0] * len(others)])
    rows = [{"question": str(number), "answer": "4", "info": {"n": number}} for number in range(2)]
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=rubric)


def plain(row: RolloutOutput) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("metrics", "timing")}


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_means_do_not_depend_on_names(seed: int, tmp_path: Path) -> None:
    names = NAMES.copy()
    random.Random(seed).shuffle(names)
    results = make(names).evaluate_sync(ScriptedClient([SAID]), "m", results_path=tmp_path, rollouts_per_example=2)
    usual = make(["a"]).evaluate_sync(ScriptedClient([SAID]), "m", rollouts_per_example=2)
    assert [plain(row) for row in results["outputs"]] == [plain(row) for row in usual["outputs"]]
    assert [plain(row) for row in load_outputs(tmp_path)] == [plain(row) for row in usual["outputs"]]
    assert results["metadata"]["avg_reward"] == pytest.approx(0.6)
    expected = {name: 0.2 + index for index, name in enumerate(names)}
    assert expected.items() <= results["metadata"]["avg_metrics"].items()
    assert set(results["metadata"]["avg_metrics"]) == {*names, "right", "num_turns_2"}
    for row in results["outputs"]:
        head = entry_of(dict(row))
        assert head.reward == pytest.approx(0.6)
        assert (head.error, head.truncated, head.turns) == (None, False, 1)
        assert row["search_calls"] == row["metrics"]["search_calls"]
        with pytest.raises(KeyError):
            row["error_chain"]


@pytest.mark.parametrize("name", ["reward", "completion", "is_truncated", "error", "metrics", "rollout", "example_id"])
def test_a_saved_evaluation_counts_the_reward(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def close() -> None:
        pass

    policy = SimpleNamespace(client=ScriptedClient(lambda **_: SAID), engine=SimpleNamespace(close=close))
    monkeypatch.setattr("whet.inference.loading.load_policy", lambda *_, **__: policy)  # an engine loads torch: seconds
    module = f"named_{name}"
    (tmp_path / f"{module}.py").write_text(
        "import whet\n"
        "def bonus(completion):\n    return 0.2\n"
        f"bonus.__name__ = {name!r}\n"
        "def right(completion):\n    return 0.5\n"
        "def load_environment():\n"
        "    rows = [{'question': str(number), 'answer': '4'} for number in range(2)]\n"
        "    return whet.SingleTurnEnv(eval_dataset=rows, rubric=whet.Rubric([right, bonus], [1.0, 0.5]))\n"
    )
    config = EvalConfig(environment=str(tmp_path / f"{module}.py"), output_directory=tmp_path / "out", num_examples=2)
    (summary,) = run_evals([config.model_copy(update={"max_tokens": 4})], EvalObserver())
    assert summary.reward is not None
    assert summary.reward.mean == pytest.approx(0.6)
    assert summary.errors == 0
    assert summary.metrics[name] == pytest.approx(0.2)
    assert summary.results is not None
    stored = open_stored(summary.results).summary()
    assert (stored.reward, stored.truncated_frac) == (summary.reward, summary.truncated_frac)
    table = export(summary.results, "csv", tmp_path / "table.csv", overwrite=False)
    assert table.rollouts == 6
    head = (tmp_path / "table.csv").read_text(encoding="utf-8-sig").splitlines()[0].split(",")
    assert f'"metric_{name}"' in head
    assert len(head) == len(set(head))


def test_training_and_held_out_figures_hold_every_metric_and_the_reward(tmp_path: Path) -> None:
    env = make(NAMES)

    async def run() -> Any:
        kwargs = {"num_examples": 2, "rollouts_per_example": 2, "sampling_args": {}, "max_concurrent": 4, "seed": 0}
        return await evaluate_environment(env, ScriptedClient([SAID]), "m", **kwargs, label=("words", "greedy"))  # type: ignore[arg-type]

    score = cancellation.run(run())
    assert score.reward == pytest.approx(0.6)
    report = EvalReport("after", 1, 1, [score])
    figures = evaluation_metrics(report)
    assert figures["eval/words/reward"] == pytest.approx(0.6)
    assert figures["eval/words/errored_frac"] == 0.0
    assert figures["eval/words/pass@1"] == 1.0
    assert len(figures) == 1 + 4 + len(score.metrics)  # the version, reward, errored_frac, pass@1 and pass@2
    assert figures["eval/words/metric_reward"] == pytest.approx(score.metrics["reward"])
    assert figures["eval/words/metric_metric_mean"] == pytest.approx(score.metrics["metric_mean"])

    states = [{"reward": row["reward"], "metrics": row["metrics"]} for row in score.rows]
    found = reward_metrics([Group(0, None, "words", states)])  # type: ignore[arg-type]
    assert found["reward/mean"] == pytest.approx(0.6)
    assert found["reward/words/mean"] == pytest.approx(0.6)
    assert found["reward/std"] == pytest.approx(0.0)
    assert len(found) == 3 + len(score.metrics)
    assert found["reward/words/metric_mean"] == pytest.approx(score.metrics["mean"])

    monitor = JsonlMonitor(tmp_path / "metrics.jsonl")
    monitor.step(StepReport(1, {**found, "time/step": 2.0}))
    monitor.evaluation(report)
    (step,) = read_lines(tmp_path / "metrics.jsonl")
    assert step == {"step": 1, **found, "time/step": 2.0}
    (saved,) = read_evaluations(tmp_path / "evals.jsonl")
    assert evaluation_metrics(saved) == figures
    columns = MetricColumns()  # of the dashboard
    columns.add(step)
    assert {name: values[0] for name, values in columns.values.items()} == pytest.approx(found | {"time/step": 2.0})

    watched = {metric: EarlyStopConfig(metric=metric, patience=1) for metric in ("reward", "metric_reward", "answer")}
    for config in watched.values():
        check_metric(config, report)
    assert value_of(watched["reward"], report) == pytest.approx(0.6)
    assert value_of(watched["metric_reward"], report) == pytest.approx(score.metrics["reward"])


def test_a_prompt_search_optimises_the_reward() -> None:
    env = make(NAMES)
    execute = RolloutExecutor({"e": env}, ScriptedClient([SAID]), "m", {"e": {}}, seed=0)
    example = SearchExample("e", "val", 0, 0, dict(env.get_eval_dataset()[0]))
    attempt = cancellation.run(execute({}, example, RolloutCall("c", example.key, 0), asyncio.Semaphore(1)))
    assert attempt.row["reward"] == pytest.approx(0.6)
    assert (attempt.row["error"], attempt.row["completion"][-1]["content"]) == (None, SAID)


def test_different_functions_of_one_name_are_numbered() -> None:
    def weigh(completion: Any, value: float) -> float:
        return value

    partials = [functools.partial(weigh, value=value) for value in (0.25, 0.5)]
    funcs = [lambda completion: 1.0, lambda completion: 2.0, *partials, named("weigh_2", 4.0), named("num_turns", 8.0)]
    rubric = whet.RubricGroup([whet.Rubric(funcs), whet.Rubric([lambda completion: 16.0, funcs[0]])])
    env = whet.SingleTurnEnv(dataset=[{"question": "q", "answer": "4"}], rubric=rubric)
    (row,) = env.evaluate_sync(ScriptedClient([SAID]), "m")["outputs"]
    assert row["reward"] == 32.75
    assert row["metrics"] == {
        **{"<lambda>": 2.0, "<lambda>_2": 2.0, "<lambda>_3": 16.0},  # the first one is in both rubrics, and adds up
        **{"weigh": 0.25, "weigh_3": 0.5, "weigh_2": 4.0, "num_turns": 8.0, "num_turns_2": 1.0},
    }
    assert len(env.rubric._get_reward_func_names()) == len(env.rubric._get_reward_weights())


def test_a_tool_called_like_the_total_has_a_metric_of_its_own() -> None:
    def total_tool(text: str) -> str:
        """Repeats a text."""
        return text

    env = whet.ToolEnv(tools=[total_tool], dataset=[{"question": "q", "answer": "4"}], rubric=whet.Rubric([]))
    call = {"tool_calls": [{"id": "1", "name": "total_tool", "arguments": '{"text": "a"}'}]}
    client = ScriptedClient([call, SAID])
    (row,) = env.evaluate_sync(client, "m")["outputs"]
    assert (row["metrics"]["total_tool_calls"], row["metrics"]["total_tool_calls_2"]) == (1.0, 1.0)
    env.remove_tool(total_tool)
    assert "total_tool_calls_2" not in env.rubric._get_reward_func_names()
    assert "total_tool_calls" in env.rubric._get_reward_func_names()


def test_flat_names_stay_different() -> None:
    names = [*NAMES, *(f"metric_{name}" for name in NAMES), *(f"metric_metric_{name}" for name in NAMES)]
    flat = [flat_name(name) for name in dict.fromkeys(names)]
    assert len(set(flat)) == len(flat)
    assert not (STATISTICS | {"pass@1", "pass@16"}) & set(flat)
    functions = [(random.Random(seed).choice(["f", "f_2", "f_3", "g"]), named("f", seed)) for seed in range(60)]
    assert len(set(metric_names(functions))) == len(functions)


def test_state_columns_called_like_fields_leave_the_fields(tmp_path: Path) -> None:
    env = make(["a"])
    env.rubric.add_metric(named("board", 1.0))
    columns = sorted({"board", *ROW_FIELDS} - {"rollout", "judge_usage", "parse_failed"})
    results = env.evaluate_sync(ScriptedClient([SAID]), "m", state_columns=columns, results_path=tmp_path)
    usual = env.evaluate_sync(ScriptedClient([SAID]), "m")
    assert {row.pop("board") for row in results["outputs"]} == {None}  # the column, not the metric
    for row, other in zip(results["outputs"], usual["outputs"], strict=True):
        assert {name: plain(row)[name] for name in plain(other)} == plain(other)
        assert row["advantage"] is not None  # of the state, where rows have none
    assert results["metadata"]["avg_reward"] == pytest.approx(0.6)


def test_rows_of_older_versions_are_read(tmp_path: Path) -> None:
    old = {
        **{"example_id": 0, "prompt": [], "completion": [], "reward": 0.5, "metrics": {"right": 0.5, "num_turns": 1.0}},
        **{"right": 0.5, "num_turns": 1.0, "error": None, "is_truncated": False},
    }
    broken = {**old, "example_id": 1, "error": 0.25}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (old, broken)))
    (tmp_path / "metadata.json").write_text(json.dumps({"env_id": "e", "model": "m", "state": "finished"}))
    summary = open_stored(tmp_path).summary()
    assert (summary.metrics, summary.errors) == ({"num_turns": 1.0, "right": 0.5}, 1)
    assert export(tmp_path, "csv", tmp_path / "table.csv", overwrite=False).rollouts == 2
