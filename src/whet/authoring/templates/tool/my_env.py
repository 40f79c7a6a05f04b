"""Answer sums with the help of a calculator: the model may call a tool before it answers.

Whether a sum belongs to training or to evaluation is decided by a hash of the sum itself, so the two never meet,
whatever the seed and the sizes.
"""

from __future__ import annotations

import operator
import random
import re
import zlib
from collections.abc import Callable
from typing import Any, Literal

import whet

QUESTION = "Use the calculate tool, then answer with its result only.\n\nWhat is {words}?"
OPERATIONS: dict[str, Callable[[int, int], int]] = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, for example 12*34.
    """
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*([-+*])\s*([0-9]{1,9})\s*", expression)
    if match is None:  # the model reads what an exception says, and may try again
        raise ValueError("this calculator knows two numbers with +, - or * between them")
    return str(SIGNS[match[2]](int(match[1]), int(match[3])))


def split_of(words: str) -> Literal["train", "eval"]:
    """A quarter of all sums is for evaluation."""
    return "eval" if zlib.crc32(words.encode()) % 4 == 0 else "train"


def make_tasks(split: Literal["train", "eval"], size: int, seed: int, max_number: int) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or all there are if they are fewer."""
    numbers = range(2, max_number + 1)
    sums = {
        f"{left} {name} {right}": str(operation(left, right))
        for left in numbers
        for right in numbers
        for name, operation in OPERATIONS.items()
    }
    mine = [words for words in sums if split_of(words) == split]
    random.Random(f"{split} {seed}").shuffle(mine)
    return [{"question": QUESTION.format(words=words), "answer": sums[words]} for words in mine[:size]]


def final_answer(completion: whet.Messages) -> str:
    last = completion[-1] if completion else None
    return (last["content"] or "").strip() if last is not None and last["role"] == "assistant" else ""


def correct(completion: whet.Messages, answer: str) -> float:
    """1 if the last message is the right number and nothing else."""
    return float(final_answer(completion) == answer)


def tool_found_it(completion: whet.Messages, answer: str) -> float:
    """1 if a call of the tool returned the right number."""
    return float(any(message["role"] == "tool" and message["content"] == answer for message in completion))


def load_environment(
    num_train: int = 1000, num_eval: int = 128, seed: int = 0, max_number: int = 99, max_turns: int = 3
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        max_number: Largest number in a sum, from 20 to 999; more digits are harder to copy.
        max_turns: Turns after which an attempt ends, tool calls included.
    """
    if not 20 <= max_number <= 999:
        raise ValueError(f"max_number must be between 20 and 999, got {max_number}")
    rubric = whet.Rubric(funcs=[correct])
    rubric.add_metric(tool_found_it)
    return whet.ToolEnv(
        tools=[calculate],
        max_turns=max_turns,
        dataset=lambda: make_tasks("train", num_train, seed, max_number),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, max_number),
        rubric=rubric,
    )
