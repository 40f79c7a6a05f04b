"""Answer sums with a tool that runs Python: what the model wrote is a program, so it runs in a sandbox of its own.

The right answer is computed here and is never in the sandbox. Whether a sum belongs to training or to evaluation is
decided by a hash of the sum itself, so the two never meet, whatever the seed and the sizes.
"""

from __future__ import annotations

import operator
import random
import shlex
import zlib
from collections.abc import Callable
from typing import Any, Literal

import whet

QUESTION = "Use the calculate tool, then answer with its result only.\n\nWhat is {words}?"
OPERATIONS: dict[str, Callable[[int, int], int]] = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}


class MyEnv(whet.SandboxEnv):
    def __init__(self, with_shell: bool = False, **kwargs: Any) -> None:
        super().__init__(programs=["python3"], **kwargs)  # brings `bash`, a tool for the model
        if not with_shell:
            self.remove_tool(self.bash)
        self.add_tool(self.calculate, args_to_skip=["sandbox_id", "sandbox_state"])

    async def calculate(self, expression: str, sandbox_id: str, sandbox_state: Any) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: Numbers with + - * / and parentheses, for example 12*34.
        """
        program = f"print({expression})"
        return await self.bash(f"python3 -c {shlex.quote(program)}", sandbox_id, sandbox_state)


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


def correct(completion: whet.Messages, answer: str) -> float:
    """1 if the last message is the right number and nothing else."""
    last = completion[-1] if completion else None
    return float(last is not None and last["role"] == "assistant" and (last["content"] or "").strip() == answer)


def computed(completion: whet.Messages, answer: str) -> float:
    """1 if a program printed the right number and nothing else."""
    return float(any(message["role"] == "tool" and message["content"] == answer for message in completion))


def load_environment(
    num_train: int = 500,
    num_eval: int = 64,
    seed: int = 0,
    max_number: int = 99,
    max_turns: int = 3,
    with_shell: bool = False,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Shuffles the tasks.
        max_number: Largest number in a sum, from 20 to 999; more digits are harder to copy.
        max_turns: Turns after which an attempt ends, tool calls included.
        with_shell: Whether the model has `bash` as well, for models that can use a shell.
    """
    if not 20 <= max_number <= 999:
        raise ValueError(f"max_number must be between 20 and 999, got {max_number}")
    rubric = whet.Rubric(funcs=[correct])
    rubric.add_metric(computed)
    return MyEnv(
        dataset=lambda: make_tasks("train", num_train, seed, max_number),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, max_number),
        rubric=rubric,
        max_turns=max_turns,
        with_shell=with_shell,
        timeout_per_command_seconds=5,
        max_output_chars=2000,
    )
