"""What whet's integrations do that 0.1.14 has not: games without a list of words, and mistakes in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import whet

FUNCTIONS: dict[str, Callable[[], Any]] = {}


def function(call: Callable[[], Any]) -> Callable[[], Any]:
    FUNCTIONS[call.__name__] = call
    return call


def said(mistake: Callable[[], Any]) -> str:
    try:
        mistake()
    except whet.WhetError as error:
        return str(error)
    return "nothing"


@function
def game_by_seed() -> dict[str, Any]:
    """GuessTheNumber, by halving; each deal is played twice."""

    def halve(prompt: list[Any]) -> str:
        low, high = 1, 20
        for message, reply in zip(prompt[1::2], prompt[2::2], strict=False):
            number = int(message.content.split("[")[1].split("]")[0])
            low, high = (number + 1, high) if reply.content.endswith("higher.") else (low, number - 1)
        return f"<guess>[{(low + high) // 2}]</guess>"

    def won(completion: list[Any]) -> float:
        return float("correct number" in completion[-1].content)

    env = whet.TextArenaEnv(
        "GuessTheNumber-v0",
        num_train_examples=3,
        num_eval_examples=4,
        parser=whet.XMLParser(["guess"], answer_field="guess"),
        rubric=whet.Rubric([won]),
        seed=5,
    )
    outputs = env.evaluate_sync(whet.ScriptedClient(halve), "m", rollouts_per_example=2)["outputs"]
    return {
        "seeds": [[row["info"]["seed"] for row in rows] for rows in (env.get_dataset(), env.get_eval_dataset())],
        "rewards": [row["reward"] for row in outputs],
        "turns": [row["metrics"]["num_turns"] for row in outputs],
        "errors": [row["error"] for row in outputs],
    }


@function
def game_without_rubric() -> list[list[float]]:
    """The rewards of every first guess of one deal, and of a game that was lost by two invalid moves."""
    guesses = [[f"<guess>[{number}]</guess>"] for number in range(1, 21)]
    rewards = []
    for scripts in (guesses, [["<guess>[77]</guess>"] * 2]):
        rewards.append([])
        for script in scripts:
            env = whet.TextArenaEnv("GuessTheNumber-v0", num_train_examples=1, seed=3, max_turns=len(script))
            rewards[-1].append(env.evaluate_sync(whet.ScriptedClient(script), "m")["outputs"][0]["reward"])
    return rewards


@function
def game_of_two_players() -> str:
    return said(lambda: whet.TextArenaEnv("TicTacToe-v0"))


@function
def word_game_without_words() -> str:
    return said(lambda: whet.TextArenaEnv("Wordle-v0"))


@function
def no_such_game() -> str:
    return said(lambda: whet.TextArenaEnv("Wurdle-v0"))


@function
def no_such_tasks() -> list[str]:
    return [
        said(lambda: whet.ReasoningGymEnv("chain_sums")),
        said(lambda: whet.ReasoningGymEnv([{"nam": "chain_sum"}])),
    ]


@function
def misspelt_argument() -> str:
    return said(lambda: whet.ReasoningGymEnv("chain_sum", num_train_example=3))


@function
def tasks_are_made_on_first_use() -> list[bool]:
    env = whet.ReasoningGymEnv("chain_sum", num_train_examples=2, num_eval_examples=2)
    before = env.dataset is None
    env.get_dataset()
    return [before, env.dataset is None]


@function
def turns_of_tasks() -> list[dict[str, float]]:
    env = whet.ReasoningGymEnv("chain_sum", num_train_examples=1, num_eval_examples=2, seed=3)
    return [row["metrics"] for row in env.evaluate_sync(whet.ScriptedClient(lambda state: "1"), "m")["outputs"]]
