"""Find a hidden number: after every guess the environment says higher or lower, and fewer guesses earn more.

A task is a range and a number in it. Whether it belongs to training or to evaluation is decided by a hash of the two,
so the splits never meet, whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any, Literal

import whet

HIGHER = "My number is higher."
LOWER = "My number is lower."
NOT_A_NUMBER = "That was not a number. Answer with one number only."


def question(low: int, high: int) -> str:
    return (
        f"I think of a whole number from {low} to {high}. Guess it: I say higher or lower. Answer with one number only."
    )


def par_of(span: int) -> int:
    """Guesses that halving the range needs at most: ceil(log2(span + 1))."""
    return span.bit_length()


def split_of(low: int, number: int) -> Literal["train", "eval"]:
    """Two fifths of all tasks are for evaluation: there are only a few hundred."""
    return "eval" if zlib.crc32(f"{low} {number}".encode()) % 5 < 2 else "train"


def make_tasks(split: Literal["train", "eval"], size: int, seed: int, lows: range, span: int) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or all there are if they are fewer."""
    tasks = [(low, low + offset) for low in lows for offset in range(span) if split_of(low, low + offset) == split]
    random.Random(f"{split} {seed}").shuffle(tasks)
    return [
        {
            "question": question(low, low + span - 1),
            "answer": str(number),
            "info": {"low": low, "high": low + span - 1, "par": par_of(span)},
        }
        for low, number in tasks[:size]
    ]


def guesses_of(messages: whet.Messages) -> list[int | None]:
    """The guess of each assistant message; None where it is not exactly one number."""
    texts = [(message["content"] or "").strip() for message in messages if message["role"] == "assistant"]
    return [int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None for text in texts]


class GuessNumberEnv(whet.MultiTurnEnv):
    async def env_response(self, messages: whet.Messages, state: whet.State, **kwargs: Any) -> whet.Messages:
        guess = guesses_of(messages)[-1]
        if guess is None:
            return [whet.UserMessage(content=NOT_A_NUMBER)]
        return [whet.UserMessage(content=HIGHER if guess < int(state["answer"]) else LOWER)]

    @whet.stop
    async def found(self, state: whet.State) -> bool:
        if not state["trajectory"]:
            return False
        return guesses_of(state["trajectory"][-1]["completion"]) == [int(state["answer"])]


def load_environment(
    num_train: int = 350, num_eval: int = 256, seed: int = 0, span: int = 7, max_low: int = 93, extra_guesses: int = 2
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        span: Numbers in the range; more is harder.
        max_low: Ranges start between 1 and this number.
        extra_guesses: Guesses allowed beyond those that halving the range needs.
    """
    if span < 2 or max_low < 1 or extra_guesses < 0:
        raise ValueError(
            f"need span >= 2, max_low >= 1 and extra_guesses >= 0, got {span}, {max_low} and {extra_guesses}"
        )

    def few_guesses(completion: whet.Messages, answer: str, info: dict[str, Any]) -> float:
        """1 if found in as many guesses as halving the range needs; less for each guess beyond; 0 if not found."""
        guesses = guesses_of(completion)
        if int(answer) not in guesses:
            return 0.0
        beyond = max(0, guesses.index(int(answer)) + 1 - info["par"])
        return 1.0 - beyond / (extra_guesses + 1)

    def exact_match(completion: whet.Messages, answer: str) -> float:
        """1 if the number was found at all."""
        return float(int(answer) in guesses_of(completion))

    def guesses_used(completion: whet.Messages) -> float:
        """Guesses made, found or not."""
        return float(len(guesses_of(completion)))

    lows = range(1, max_low + 1)
    rubric = whet.Rubric(funcs=[few_guesses])
    rubric.add_metric(exact_match)
    rubric.add_metric(guesses_used)
    return GuessNumberEnv(
        dataset=lambda: make_tasks("train", num_train, seed, lows, span),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, lows, span),
        max_turns=par_of(span) + extra_guesses,
        rubric=rubric,
    )
