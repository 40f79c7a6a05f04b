"""Held-out tasks, several rollouts each, every rollout with a seed of its own."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from whet.clients.scripted import ScriptedClient
from whet.envs.multiturn_env import SingleTurnEnv
from whet.evals.analysis.summary import sampling_name
from whet.evals.evaluate import EVAL_SEED, evaluate_environment
from whet.rollouts.jobs import seed_of
from whet.rollouts.row_log import load_outputs
from whet.rollouts.totals import EvalScore
from whet.rubrics.rubric import Rubric
from whet.types import SamplingArgs, State


def length(completion: Any) -> float:
    return len(completion[-1]["content"]) / 10


def exact_match(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def environment() -> SingleTurnEnv:
    rubric = Rubric(funcs=[length])
    rubric.add_metric(exact_match)
    train = [{"question": "never asked", "answer": ""}]
    held_out = [{"question": f"task {number}", "answer": "x" * number} for number in range(4)]
    return SingleTurnEnv(dataset=train, eval_dataset=held_out, rubric=rubric, env_id="e")


def evaluate(client: ScriptedClient, seed: int = 0, **fields: Any) -> EvalScore:
    settings: dict[str, Any] = {"num_examples": 3, "rollouts_per_example": 2, "sampling_args": {"temperature": 1.0}}
    settings |= {"max_concurrent": 4, "seed": seed, **fields}
    return asyncio.run(evaluate_environment(environment(), client, "m", **settings))


def by_seed(sampling_args: SamplingArgs) -> str:
    return "x" * (sampling_args["seed"] % 10)


def test_the_first_held_out_tasks_are_attempted_and_none_of_training() -> None:
    score = evaluate(ScriptedClient(lambda prompt: "xx"))
    assert [row["prompt"][-1]["content"] for row in score.rows] == [f"task {n}" for n in (0, 0, 1, 1, 2, 2)]


def test_means_are_over_all_rollouts() -> None:
    score = evaluate(ScriptedClient(lambda prompt: "xx"))
    assert score.reward == pytest.approx(0.2)
    assert score.metrics["exact_match"] == pytest.approx(1 / 3)
    assert (score.environment, score.sampling, score.rollouts, score.errors) == ("e", "temperature 1", 6, 0)


def test_every_rollout_has_its_own_seed_and_all_of_them_repeat() -> None:
    seen: list[int] = []

    def answer(sampling_args: SamplingArgs) -> str:
        seen.append(sampling_args["seed"])
        return "x"

    evaluate(ScriptedClient(answer))
    first = sorted(seen)
    seen.clear()
    evaluate(ScriptedClient(answer), max_concurrent=1)
    assert sorted(seen) == first
    assert len(set(first)) == 6


def test_the_same_seed_gives_the_same_scores_and_another_gives_others() -> None:
    assert evaluate(ScriptedClient(by_seed)) == evaluate(ScriptedClient(by_seed), max_concurrent=1)
    assert evaluate(ScriptedClient(by_seed)).rows != evaluate(ScriptedClient(by_seed), seed=1).rows


def test_a_seed_fits_a_signed_64_bit_number() -> None:
    assert all(0 <= seed_of(*EVAL_SEED, seed, seed, seed) < 2**63 for seed in range(100))


def test_failed_rollouts_are_counted_and_left_out() -> None:
    def answer(prompt: Any) -> str:
        if prompt[-1]["content"] == "task 1":
            raise ValueError("no answer")
        return "xx"

    score = evaluate(ScriptedClient(answer))
    assert (score.rollouts, score.errors) == (6, 2)
    assert score.reward == pytest.approx(0.2)


def test_an_evaluation_where_everything_failed_has_no_reward() -> None:
    def answer(prompt: Any) -> str:
        raise ValueError("no answer")

    score = evaluate(ScriptedClient(answer))
    assert math.isnan(score.reward)
    assert score.errors == 6


def test_at_most_so_many_rollouts_run_at_once() -> None:
    running = most = 0

    async def answer(prompt: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return "x"

    evaluate(ScriptedClient(answer), max_concurrent=2)
    assert most == 2


def test_progress_is_told_of_every_rollout() -> None:
    finished: list[State] = []
    evaluate(ScriptedClient(lambda prompt: "x"), on_progress=finished.append)
    assert len(finished) == 6


def test_a_label_names_the_environment_and_the_way_of_sampling() -> None:
    score = evaluate(ScriptedClient(lambda prompt: "x"), label=("mine", "greedy"))
    assert (score.environment, score.sampling) == ("mine", "greedy")
    assert {row["environment"] for row in score.rows} == {"mine"}


def test_rollouts_of_a_task_are_compared_with_each_other() -> None:
    score = evaluate(ScriptedClient(by_seed))
    for first, second in zip(score.rows[::2], score.rows[1::2], strict=True):
        assert first["advantage"] == pytest.approx((first["reward"] - second["reward"]) / 2)


def test_a_rollout_alone_is_compared_with_nothing() -> None:
    score = evaluate(ScriptedClient(by_seed), rollouts_per_example=1)
    assert [row["advantage"] for row in score.rows] == [None] * 3


def test_all_held_out_tasks_are_taken_when_asked() -> None:
    assert evaluate(ScriptedClient(lambda prompt: "x"), num_examples=-1).rollouts == 8


@pytest.mark.parametrize(
    ("args", "name"),
    [({"temperature": 0.0}, "greedy"), ({"temperature": 0.7}, "temperature 0.7"), ({}, "default sampling")],
)
def test_ways_of_sampling_have_names(args: SamplingArgs, name: str) -> None:
    assert sampling_name(args) == name


GROUP = """
import whet


def member(word):
    rows = [{"question": f"Say {word} {number}", "answer": word} for number in range(20)]
    return whet.SingleTurnEnv(eval_dataset=rows, rubric=whet.Rubric(funcs=[length]))


def length(completion, answer):
    return float(len(completion[-1]["content"] or "") > 4)


def load_environment():
    return whet.EnvGroup([member("a"), member("b")], env_names=["alpha", "beta"])
"""


def test_eval_run_takes_members_of_a_group_by_turns_and_reports_each(warm: Any, tmp_path: Path) -> None:
    (tmp_path / "mix.py").write_text(GROUP)
    output = warm.run("eval", "run", "./mix.py", "-n", "6", "-r", "2", "-m", "whet/tiny", "-t", "8", cwd=tmp_path)
    assert re.search(r"members +alpha: [01]\.\d.*; 3 tasks\n +beta: [01]\.\d.*; 3 tasks\n", output)
    (directory,) = tmp_path.glob("outputs/evals/*/*")
    assert [row["example_id"] for row in load_outputs(directory)][::2] == [0, 20, 1, 21, 2, 22]
    assert "Environments of the group" in (directory / "report.html").read_text()
    shown = warm.run("eval", "show", directory, "--json", cwd=tmp_path)
    assert json.loads(shown.splitlines()[-1])["members"]["beta"]["examples"] == 3
