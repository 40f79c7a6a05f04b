"""What ends a run early is measured while it goes on: time, tokens, and what all models cost, judges too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from whet.clients.usage import Spending
from whet.rl.config import load_run_config
from whet.rl.run import run_training
from whet.rl.supervision.ending import Budget, BudgetConfig, Ending
from whet.rollouts.token_rows import read_rollouts

JUDGED = """
import whet
from whet.types import Response, ResponseMessage, Usage


def answer(prompt):
    usage = Usage(prompt_tokens=100, completion_tokens=5)
    usage["cost"] = 0.125
    message = ResponseMessage(str(len(prompt[0].content) % 7), finish_reason="stop", is_truncated=False)
    return Response(id="", model="judge", message=message, usage=usage)


async def score(judge, prompt, completion, answer, state):
    return float(await judge(prompt, completion, answer, state))


def load_environment():
    rubric = whet.JudgeRubric(judge_client=whet.ScriptedClient(answer))
    rubric.add_reward_func(score)
    rows = [{"question": f"Say {number}", "answer": str(number)} for number in range(8)]
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=rubric)
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ending(said: list[str]) -> Any:
    def make(**limits: Any) -> Ending:
        return Ending(Budget(BudgetConfig(**limits)), None, lambda: 0, Spending(), said.append, clock=lambda: 0.0)

    return make


def begun(ending: Ending) -> Ending:
    ending.begin(asyncio.Event(), [])
    return ending


def test_what_models_cost_ends_a_run_after_the_step_in_which_it_is_too_much(ending: Any) -> None:
    one = begun(ending(max_cost=1.0))
    one.spent.cost = 0.75
    one.after_step()
    assert one.reason is None
    one.spent.cost = 1.25
    one.after_step()
    assert one.reason == "budget.max_cost = 1 is used up (1.2500 dollars)"


def test_each_dollar_counts_once_also_over_checkpoints(ending: Any) -> None:
    one = begun(ending(max_cost=10.0))
    one.spent.cost = 0.5
    assert one.state_dict()["budget"]["cost"] == 0.5
    one.after_step()
    state = one.state_dict()
    later = ending(max_cost=10.0)
    later.load_state_dict(state)
    begun(later).spent.cost = 0.25
    assert later.state_dict()["budget"]["cost"] == 0.75


def test_a_limit_that_does_not_see_everything_says_so_once(ending: Any, said: list[str]) -> None:
    one = begun(ending(max_cost=1.0))
    one.spent.cost, one.spent.unpriced_tokens = 0.1, 104
    one.after_step()
    one.after_step()
    assert len(said) == 1
    assert "104 tokens of judges so far have no known price and do not count" in said[0]
    nobody = begun(ending(max_cost=1.0))
    nobody.after_step()
    assert "no model has reported a cost so far" in said[1]


def test_without_a_limit_on_cost_nobody_asks_for_prices(ending: Any, said: list[str]) -> None:
    begun(ending(max_tokens=5)).after_step()
    assert said == []


def test_judges_of_training_and_evaluation_use_up_the_budget_and_stand_in_the_rollouts(tmp_path: Path) -> None:
    (tmp_path / "judged_by_a_script.py").write_text(JUDGED)
    path = tmp_path / "run.toml"
    path.write_text(
        f'max_steps = 9\nbatch_size = 8\nrollouts_per_example = 4\nruns_directory = "{tmp_path}/runs"\n'
        f'[sampling]\nmax_tokens = 6\n[[env]]\nid = "{tmp_path}/judged_by_a_script.py"\n'
        "[eval]\nbefore = true\nafter = false\nnum_examples = 4\n[budget]\nmax_cost = 2.5\n[deployment]\nthreads = 1\n"
    )
    config = load_run_config(path)
    outcome = run_training(config, json_output=True)
    ways = 2  # as in training, and greedily
    a_step, before = 8 * 0.125, ways * 4 * 0.125
    assert (outcome.state, outcome.step) == ("finished", 2)
    assert "budget.max_cost = 2.5 is used up" in outcome.message
    used = json.loads((config.directory / "checkpoints/step_2/curriculum.json").read_text())["budget"]
    assert used["cost"] == pytest.approx(2 * a_step + before)
    for file in ("step_000001.jsonl", "eval_before.jsonl"):
        for row in read_rollouts(config.directory / "rollouts" / file):
            assert row["judge_usage"] == {"input_tokens": 100, "output_tokens": 5, "cost": 0.125}
