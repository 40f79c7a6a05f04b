"""Find a hidden number: after every guess the environment says whether the number is higher or lower.

Whether a task belongs to training or to evaluation is decided by a hash of its range and number, so the two never
meet, whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any, Literal

import whet

QUESTION = (
    "I think of a whole number from {low} to {high}. Guess it: I say higher or lower. Answer with one number only."
)
HIGHER = "My number is higher."
LOWER = "My number is lower."
INVALID = "That was not a number. Answer with one number only."
MAX_LOW = 90


def split_of(low: int, number: int) -> Literal["train", "eval"]:
    """A quarter of all tasks is for evaluation."""
    return "eval" if zlib.crc32(f"{low} {number}".encode()) % 4 == 0 else "train"


def make_tasks(split: Literal["train", "eval"], size: int, seed: int, span: int) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or all there are if they are fewer."""
    games = [(low, number) for low in range(1, MAX_LOW + 1) for number in range(low, low + span)]
    mine = [game for game in games if split_of(*game) == split]
    random.Random(f"{split} {seed}").shuffle(mine)
    return [
        {"question": QUESTION.format(low=low, high=low + span - 1), "answer": str(number)}
        for low, number in mine[:size]
    ]


def guess_of(text: str | None) -> int | None:
    """The guess in a message; None where the message is not one number."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def guesses_of(completion: whet.Messages) -> list[int | None]:
    """What the model guessed, turn by turn; what the environment said is left out."""
    return [guess_of(message["content"]) for message in completion if message["role"] == "assistant"]


class MyEnv(whet.MultiTurnEnv):
    async def env_response(self, messages: whet.Messages, state: whet.State, **kwargs: Any) -> whet.Messages:
        """The environment's turn: what it says to the last guess."""
        guess = guess_of(messages[-1]["content"])
        if guess is None:
            return [whet.UserMessage(content=INVALID)]
        return [whet.UserMessage(content=HIGHER if guess < int(state["answer"]) else LOWER)]

    @whet.stop
    async def found(self, state: whet.State) -> bool:
        """Whether the game is over; called after every turn of the model."""
        steps = state["trajectory"]
        return bool(steps) and guesses_of(steps[-1]["completion"]) == [int(state["answer"])]


def load_environment(
    num_train: int = 400, num_eval: int = 128, seed: int = 0, span: int = 7, extra_guesses: int = 2
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        span: Numbers in the range, from 3 to 99; more is harder.
        extra_guesses: Guesses that may be made beyond those that halving the range needs; fewer is harder.
    """
    if not 3 <= span <= 99 or extra_guesses < 0:
        raise ValueError(f"need a span from 3 to 99 and extra_guesses of at least 0, got {span} and {extra_guesses}")
    enough = span.bit_length()  # guesses that halving needs at most

    def few_guesses(completion: whet.Messages, answer: str) -> float:
        """1 if found with as many guesses as halving needs, less for each one beyond; 0 if not found."""
        guesses = guesses_of(completion)
        if int(answer) not in guesses:
            return 0.0
        beyond = max(0, guesses.index(int(answer)) + 1 - enough)
        return 1.0 - beyond / (extra_guesses + 1)

    def exact_match(completion: whet.Messages, answer: str) -> float:
        """1 if the number was found."""
        return float(int(answer) in guesses_of(completion))

    rubric = whet.Rubric(funcs=[few_guesses])
    rubric.add_metric(exact_match)
    return MyEnv(
        dataset=lambda: make_tasks("train", num_train, seed, span),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, span),
        max_turns=enough + extra_guesses,
        rubric=rubric,
    )
