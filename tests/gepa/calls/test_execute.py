"""A call as a rollout: with the candidate's texts, a seed of its own, and its row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import whet
from whet.clients.scripted import ScriptedClient
from whet.errors import EndpointDownError
from whet.gepa.calls.calls import Attempt, RolloutExecutor
from whet.gepa.types import Candidate, RolloutCall, SearchExample
from whet.rollouts.jobs import seed_of

CALL = RolloutCall("abc", "val/env/0", 0)


def is_right(completion: whet.Messages, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def share(completions: list[Any]) -> list[float]:
    return [1 / len(completions)] * len(completions)


def attempt(
    says: Callable[..., Any],
    candidate: Candidate | None = None,
    *,
    rubric: whet.Rubric | None = None,
    seed: int | None = None,
    call: RolloutCall = CALL,
    **settings: Any,
) -> Attempt:
    env = whet.SingleTurnEnv(
        dataset=[{"question": "?", "answer": "!"}], system_prompt="Be.", rubric=rubric or whet.Rubric([is_right])
    )
    example = SearchExample("env", "val", 0, 0, env.get_dataset()[0])

    async def run() -> Attempt:
        execute = RolloutExecutor(
            {"env": env}, ScriptedClient(says), "scripted", {"env": {"top_p": 0.5}}, seed=seed, **settings
        )
        return await execute(candidate or {"system_prompt": "Be right."}, example, call, asyncio.Semaphore(1))

    return asyncio.run(run())


def test_the_model_is_shown_the_candidates_texts_and_the_row_says_so() -> None:
    made = attempt(lambda prompt: "!" if prompt[0]["content"] == "Be right." else "no")
    assert made.failure is None
    assert made.row["reward"] == 1.0
    assert made.row["metrics"]["is_right"] == 1.0
    assert made.row["prompt"][0]["content"] == "Be right."
    assert made.row["task_id"] == 0


def test_every_call_has_a_seed_of_its_own_where_seeds_are_sent() -> None:
    seen = []

    def says(sampling_args: Any) -> str:
        seen.append(sampling_args)
        return "!"

    attempt(says, seed=3)
    attempt(says, seed=3, call=RolloutCall("abc", "val/env/0", 1))
    attempt(says)
    assert seen == [
        {"top_p": 0.5, "seed": seed_of("gepa", 3, CALL.key)},
        {"top_p": 0.5, "seed": seed_of("gepa", 3, "abc/val/env/0/1")},
        {"top_p": 0.5},
    ]
    assert seen[0]["seed"] != seen[1]["seed"]


def test_an_endpoint_that_fails_is_told_apart_from_a_model_that_does() -> None:
    def down(prompt: Any) -> str:
        raise EndpointDownError("connection refused")

    assert attempt(down).failure == "EndpointDownError: connection refused"

    def broken(completion: Any) -> float:
        raise ValueError("a bug")

    made = attempt(lambda prompt: "!", rubric=whet.Rubric([broken]))
    assert made.failure is None
    assert made.row["error"]["error"] == "RewardError"


def test_an_environment_that_compares_attempts_compares_this_one_with_none() -> None:
    assert attempt(lambda prompt: "!", rubric=whet.Rubric([share])).row["reward"] == 1.0


def test_state_columns_are_in_the_row() -> None:
    made = attempt(lambda prompt: "!", state_columns=["trajectory_id"])
    assert made.row["trajectory_id"] == CALL.key
