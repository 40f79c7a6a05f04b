r"""GSM8K: grade school word problems, and the final number in `\boxed{}`.

The problems are those of the Hugging Face data set `openai/gsm8k` (`hub.py`); where it cannot be reached, made-up ones
stand in for them and say so (`stand_in.py`).
"""

from __future__ import annotations

import logging
import random
import re
from decimal import Decimal
from functools import cache, partial
from typing import Any, Literal, get_args

import whet
from whet.errors import DatasetError

from .hub import Rows, UnreachableError, read_splits
from .stand_in import STEPS, make_problems

Source = Literal["auto", "hub", "stand-in"]
STAND_IN = "stand-in"
STAND_IN_SIZES = {"train": 2000, "eval": 500}

SYSTEM_PROMPT = r"Think step by step. Then give the final answer, a number and nothing else, in \boxed{}."

MAX_ANSWER_CHARS = 100
CALCULATION = re.compile(r"<<[^<>]*>>")
DECORATION = re.compile(r"\\text\{[^{}]*\}|\\[$,!;% ]|[$%]")
NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")

logger = logging.getLogger(__name__)


def number_of(text: str) -> Decimal | None:
    """The one number that `text` is, apart from currency, units in `\\text{}` and commas between thousands."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    plain = DECORATION.sub("", text.replace("{,}", ",")).strip().rstrip(".")
    return Decimal(plain.replace(",", "")) if NUMBER.fullmatch(plain) else None


def steps_of(solution: str) -> int:
    """Calculations in a solution: those that are marked, or its lines where none is."""
    steps = solution.partition("####")[0].strip()
    return len(CALCULATION.findall(steps)) or steps.count("\n") + 1


def make_tasks(rows: Rows, source: str, size: int, seed: int, steps: range) -> list[dict[str, Any]]:
    """`size` of the rows that take so many steps, or all there are if they are fewer or `size` is -1."""
    for row in rows:
        if number_of(whet.extract_hash_answer(row["answer"])) is None:
            raise DatasetError(f"a solution of {source} does not end in '#### ' and a number: {row['answer'][-80:]!r}.")
    chosen = [row for row in rows if steps_of(row["answer"]) in steps]
    if not chosen:
        raise DatasetError(f"no problem of {source} takes {steps.start} to {steps.stop - 1} calculation steps.")
    if 0 <= size < len(chosen):
        chosen = random.Random(seed).sample(chosen, size)
    return [
        {
            "question": row["question"],
            "answer": whet.extract_hash_answer(row["answer"]).replace(",", ""),
            "info": {"source": source, "steps": steps_of(row["answer"])},
        }
        for row in chosen
    ]


def without(rows: Rows, held_out: Rows) -> Rows:
    """The rows whose question is not among those held out, whatever its spaces and capitals."""

    def plain(row: dict[str, Any]) -> str:
        return " ".join(row["question"].lower().split())

    taken = {plain(row) for row in held_out}
    return [row for row in rows if plain(row) not in taken]


def correct_answer(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """1 if the last box holds the right number and nothing else."""
    given = number_of(parser.parse_answer(completion) or "")
    return float(given is not None and given == number_of(answer))


def boxed_number(completion: whet.Messages, parser: whet.Parser) -> float:
    """1 if the last box holds a number, right or wrong."""
    return float(number_of(parser.parse_answer(completion) or "") is not None)


def stand_in(info: dict[str, Any]) -> float:
    """1 if the problem is a made-up one, which says nothing about GSM8K."""
    return float(info["source"] == STAND_IN)


def load_environment(
    source: Source = "auto",
    dataset: str = "openai/gsm8k",
    num_train: int = -1,
    num_eval: int = -1,
    seed: int = 0,
    min_steps: int = 1,
    max_steps: int | None = None,
) -> whet.Environment:
    """
    Args:
        source: `hub`: the real problems; `stand-in`: made-up ones; `auto`: made-up ones where the real cannot be had.
        dataset: The data set on the Hugging Face hub, or a directory laid out like it.
        num_train: Problems to train on; -1 takes all.
        num_eval: Problems to evaluate on; -1 takes all.
        seed: Draws the problems where not all are taken, and makes up those that stand in.
        min_steps: Fewest calculations in a problem's solution.
        max_steps: Most calculations in a problem's solution; more are harder.
    """
    if source not in get_args(Source):
        raise ValueError(f"source must be one of {', '.join(get_args(Source))}, got {source!r}")
    if min_steps < 1 or (max_steps is not None and max_steps < min_steps):
        raise ValueError(f"need 1 <= min_steps <= max_steps, got {min_steps} and {max_steps}")
    steps = range(min_steps, 1000 if max_steps is None else max_steps + 1)

    @cache
    def real() -> tuple[Rows, Rows] | None:
        """Training and evaluation rows, or None where made-up ones have to stand in."""
        try:
            train, test = read_splits(dataset)
        except UnreachableError as error:
            if source == "hub":
                raise
            logger.warning("GSM8K cannot be had (%s): made-up problems STAND IN for it. This is not GSM8K.", error)
            return None
        return without(train, test), test

    def tasks(split: Literal["train", "eval"], size: int) -> list[dict[str, Any]]:
        splits = None if source == STAND_IN else real()
        if splits is not None:
            return make_tasks(splits[split == "eval"], dataset, size, seed, steps)
        # By default they take as many steps as most of the real ones.
        fewest = max(min_steps, STEPS.start) if max_steps is None else min_steps
        most = max(min_steps, STEPS.stop - 1) if max_steps is None else max_steps
        made_up = range(fewest, most + 1)
        problems = make_problems(split, STAND_IN_SIZES[split] if size < 0 else size, seed, made_up)
        return make_tasks(problems, STAND_IN, -1, seed, steps)

    parser = whet.MaybeThinkParser(extract_fn=partial(whet.extract_boxed_answer, strict=True))
    rubric = whet.Rubric(funcs=[correct_answer], parser=parser)
    rubric.add_metric(boxed_number)
    rubric.add_metric(stand_in)
    return whet.SingleTurnEnv(
        dataset=lambda: tasks("train", num_train),
        eval_dataset=lambda: tasks("eval", num_eval),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
