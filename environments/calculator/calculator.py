"""Answer sums by calling a calculator: the right number counts only if a real call of the tool brought it.

The tool reads an expression through `ast` and computes it itself; nothing is passed to `eval`. Whether a task belongs
to training or to evaluation is decided by a hash of the task itself, so the two never meet, whatever the seed and the
sizes.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import random
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import whet

INSTRUCTION = "Use the calculate tool, then answer with its result only.\n\nWhat is "
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "plus": operator.add,
    "minus": operator.sub,
    "times": operator.mul,
}
SIGNS = {"plus": "+", "minus": "-", "times": "*"}

BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
MAX_EXPRESSION_LENGTH = 200
MAX_EXAMPLES = 16


def value_of(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](value_of(left), value_of(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return UNARY[type(op)](value_of(operand))
    raise ValueError("only numbers, + - * / and parentheses are allowed")


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, for example 12*34.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_EXPRESSION_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise ValueError("this is not an arithmetic expression") from None
    value = value_of(tree.body)
    if not math.isfinite(value):
        raise ValueError("the result is too large")
    return str(int(value)) if value == int(value) else f"{value:.10g}"


def split_of(sum_in_words: str) -> Literal["train", "eval"]:
    """A quarter of all sums is for evaluation."""
    return "eval" if zlib.crc32(sum_in_words.encode()) % 4 == 0 else "train"


@cache
def sums_of(split: Literal["train", "eval"], numbers: range, operations: tuple[str, ...]) -> tuple[str, ...]:
    """All sums of a split in words, in order."""
    sums = {f"{left} {name} {right}" for left in numbers for right in numbers for name in operations}
    return tuple(sorted(words for words in sums if split_of(words) == split))


def answer_of(sum_in_words: str) -> str:
    left, name, right = sum_in_words.split()
    return str(OPERATIONS[name](int(left), int(right)))


def make_tasks(
    split: Literal["train", "eval"], size: int, seed: int | str, numbers: range, operations: list[str]
) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or all there are if they are fewer."""
    mine = list(sums_of(split, numbers, tuple(operations)))
    random.Random(f"{split} {seed}").shuffle(mine)
    return [{"question": f"{INSTRUCTION}{words}?", "answer": answer_of(words)} for words in mine[:size]]


def worked_examples(count: int, seed: int, numbers: range, operations: list[str]) -> list[dict[str, Any]]:
    """`count` sums of training, operations in turn, as finished conversations: question, call, result, answer."""
    pools = [make_tasks("train", count, f"examples {seed}", numbers, [name]) for name in operations]
    messages: list[dict[str, Any]] = []
    for number in range(count):
        task = pools[number % len(pools)][number // len(pools)]
        left, name, right = task["question"].removeprefix(INSTRUCTION).rstrip("?").split()
        arguments = json.dumps({"expression": f"{left}{SIGNS[name]}{right}"})
        call = {"id": f"example-{number}", "name": "calculate", "arguments": arguments}
        messages += [
            {"role": "user", "content": task["question"]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": task["answer"]},
            {"role": "assistant", "content": task["answer"]},
        ]
    return messages


def final_answer(completion: whet.Messages) -> str:
    last = completion[-1] if completion else None
    return (last["content"] or "").strip() if last is not None and last["role"] == "assistant" else ""


def tool_found_it(completion: whet.Messages, answer: str) -> float:
    """1 if a call of the tool returned the right number."""
    return float(any(message["role"] == "tool" and message["content"] == answer for message in completion))


def exact_match(completion: whet.Messages, answer: str) -> float:
    """1 if the last message is the right number, wherever it came from."""
    return float(final_answer(completion) == answer)


def correct_by_tool(completion: whet.Messages, answer: str) -> float:
    """1 if the tool returned the right number and the last message says it."""
    return tool_found_it(completion, answer) * exact_match(completion, answer)


def load_environment(
    num_train: int = 2000,
    num_eval: int = 256,
    seed: int = 0,
    max_number: int = 99,
    operations: tuple[str, ...] = ("plus", "minus", "times"),
    max_turns: int = 3,
    examples: int = 0,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the tasks.
        max_number: Largest number in a sum; more digits are harder to copy.
        operations: Which of plus, minus and times come up.
        max_turns: Turns after which an attempt ends, tool calls included.
        examples: Worked examples before each question, for a pretrained model that does not call tools by itself.
    """
    if max_number < 20 or max_number > 999:
        raise ValueError(f"max_number must be between 20 and 999, got {max_number}")
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown or not operations:
        raise ValueError(f"operations must be some of {', '.join(OPERATIONS)}, got {', '.join(operations) or 'none'}")
    numbers = range(2, max_number + 1)
    if not 0 <= examples <= MAX_EXAMPLES:
        raise ValueError(f"examples must be between 0 and {MAX_EXAMPLES}, got {examples}")
    rubric = whet.Rubric(funcs=[correct_by_tool])
    rubric.add_metric(exact_match)
    rubric.add_metric(tool_found_it)
    return whet.ToolEnv(
        tools=[calculate],
        max_turns=max_turns,
        dataset=lambda: make_tasks("train", num_train, seed, numbers, list(operations)),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, numbers, list(operations)),
        few_shot=worked_examples(examples, seed, numbers, list(operations)),
        rubric=rubric,
    )
