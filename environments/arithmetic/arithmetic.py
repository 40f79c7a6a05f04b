"""Add and subtract small numbers, with the answer in \\boxed{}: one turn, checked by `MathRubric`.

Whether a sum belongs to training or to evaluation is decided by a hash of the sum itself, so the two never meet,
whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, Literal

import whet

INSTRUCTION = "Give the result in \\boxed{}.\n\nWhat is "


def split_of(expression: str) -> Literal["train", "eval"]:
    """A quarter of all sums is for evaluation."""
    return "eval" if zlib.crc32(expression.encode()) % 4 == 0 else "train"


def make_tasks(split: Literal["train", "eval"], size: int, seed: int, max_number: int) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or all there are if they are fewer. No result is negative."""
    sums: dict[str, int] = {}
    for left in range(max_number + 1):
        for right in range(max_number + 1):
            sums[f"{left} + {right}"] = left + right
            if right <= left:
                sums[f"{left} - {right}"] = left - right
    mine = sorted(expression for expression in sums if split_of(expression) == split)
    random.Random(f"{split} {seed}").shuffle(mine)
    return [{"question": f"{INSTRUCTION}{sum_}?", "answer": str(sums[sum_])} for sum_ in mine[:size]]


def exact_match(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """1 if the box holds exactly the digits of the result."""
    return float(parser.parse_answer(completion) == answer)


def load_environment(
    num_train: int = 1000, num_eval: int = 256, seed: int = 0, max_number: int = 29
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        max_number: Largest number in a sum; more is harder.
    """
    if not 5 <= max_number <= 999:
        raise ValueError(f"max_number must be between 5 and 999, got {max_number}")
    rubric = whet.MathRubric()  # its parser takes what is in the box, and nothing where there is none
    rubric.add_metric(exact_match)
    return whet.SingleTurnEnv(
        dataset=lambda: make_tasks("train", num_train, seed, max_number),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, max_number),
        parser=rubric.parser,
        rubric=rubric,
    )
