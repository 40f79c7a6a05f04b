"""What the usage of a model is charged to: the rollouts that it judges, and the open `spending()`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import whet
from whet.clients.usage import charge, judging, spending
from whet.types import Response, ResponseMessage, Usage


def answer(text: str = "yes", cost: float | None = None) -> Response:
    usage = Usage(prompt_tokens=100, completion_tokens=4)
    if cost is not None:
        usage["cost"] = cost
    message = ResponseMessage(text, finish_reason="stop", is_truncated=False)
    return Response(id="", model="judge", message=message, usage=usage)


def test_outside_of_scoring_nobody_is_charged_as_a_judge() -> None:
    with spending() as spent:
        charge(answer(cost=0.5))
        charge(answer())
    assert (spent.cost, spent.unpriced_tokens) == (0.5, 0)
    charge(answer(cost=0.5))
    assert spent.cost == 0.5


def test_rollouts_that_are_judged_together_share_what_is_used() -> None:
    states = [whet.State(), whet.State()]
    with judging(states):
        charge(answer(cost=0.5))
    assert states[0]["judge_usage"] == {"input_tokens": 50, "output_tokens": 2, "cost": 0.25}
    assert states[0]["judge_usage"] == states[1]["judge_usage"]


def test_what_an_unpriced_judge_uses_is_known_to_be_missing() -> None:
    with spending() as spent, judging([whet.State()]):
        charge(answer(cost=0.5))
        charge(answer())
    assert (spent.cost, spent.unpriced_tokens) == (0.5, 104)


def test_a_response_that_does_not_say_what_it_used_charges_nobody() -> None:
    state = whet.State()
    with judging([state]):
        charge(object())
    assert "judge_usage" not in state


def outputs(rubric: whet.Rubric, **options: Any) -> list[dict[str, Any]]:
    env = whet.SingleTurnEnv(dataset=[{"question": "2+2", "answer": "4"}], rubric=rubric)
    policy = whet.ScriptedClient(["4"])
    found = env.evaluate_sync(policy, "m", rollouts_per_example=2, **options)["outputs"]
    assert [output["error"] for output in found] == [None, None]
    return found


@pytest.mark.parametrize("independent", [False, True])
def test_a_reward_function_that_asks_a_client_of_its_own_charges_its_rollout(independent: bool) -> None:
    judge = whet.ScriptedClient(lambda prompt: answer(cost=0.25))

    async def ask(completion: Any) -> float:
        await asyncio.sleep(0)
        await judge.get_response(completion, "judge", {})
        return 1.0

    for output in outputs(whet.Rubric(funcs=[ask]), independent_scoring=independent):
        assert output["judge_usage"] == {"input_tokens": 100, "output_tokens": 4, "cost": 0.25}
        assert "token_usage" not in output  # the scripted policy reports none, and a judge's is not the policy's


def test_a_function_that_scores_a_group_charges_its_rollouts_alike() -> None:
    judge = whet.ScriptedClient(lambda prompt: answer(cost=0.25))

    async def rank(completions: Any) -> list[float]:
        await judge.get_response(completions[0], "judge", {})
        return [1.0, 0.0]

    for output in outputs(whet.Rubric(funcs=[rank])):
        assert output["judge_usage"] == {"input_tokens": 50, "output_tokens": 2, "cost": 0.125}


def test_without_a_judge_a_row_says_nothing_of_one() -> None:
    assert all("judge_usage" not in output for output in outputs(whet.Rubric(funcs=[lambda completion: 1.0])))
