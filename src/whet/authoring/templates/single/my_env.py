"""Add and subtract small numbers: one question, one answer in `\\boxed{}`.

Whether a sum belongs to training or to evaluation is decided by a hash of the sum itself, so the two never meet,
whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import zlib
from functools import partial
from typing import Any, Literal

import whet

QUESTION = "Give the result in \\boxed{{}}.\n\nWhat is {expression}?"
PARSER = whet.Parser(extract_fn=partial(whet.extract_boxed_answer, strict=True))


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
    mine = [expression for expression in sums if split_of(expression) == split]
    random.Random(f"{split} {seed}").shuffle(mine)
    return [{"question": QUESTION.format(expression=each), "answer": str(sums[each])} for each in mine[:size]]


def boxed(completion: whet.Messages, parser: whet.Parser) -> str:
    """What is in the box; nothing where there is none."""
    return (parser.parse_answer(completion) or "").strip()


def exact_match(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """1 if the number is right."""
    return float(boxed(completion, parser) == answer)


def closeness(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """1 for the right number, 0.5 for a neighbour, less for each further away, so that wrong answers differ too."""
    given = boxed(completion, parser)
    return 1 / (1 + abs(int(given) - int(answer))) if given.isdecimal() and len(given) < 10 else 0.0


def load_environment(
    num_train: int = 1000, num_eval: int = 128, seed: int = 0, max_number: int = 29
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        max_number: Largest number in a sum, from 9 to 999; more is harder.
    """
    if not 9 <= max_number <= 999:
        raise ValueError(f"max_number must be between 9 and 999, got {max_number}")
    rubric = whet.Rubric(funcs=[exact_match, closeness], weights=[0.8, 0.2], parser=PARSER)
    return whet.SingleTurnEnv(
        dataset=lambda: make_tasks("train", num_train, seed, max_number),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, max_number),
        parser=PARSER,
        rubric=rubric,
    )
