"""Reverse a short text, letter by letter: one turn, and a reward that grows with every letter in its place.

Tasks are random words, drawn from a seed. Whether a word belongs to training or to evaluation is decided by a hash of
the word itself, so the two never meet, whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import zlib
from difflib import SequenceMatcher
from string import ascii_lowercase
from typing import Any, Literal

import whet

INSTRUCTION = "Reverse the text. Answer with the reversed text only.\n\n"


def split_of(text: str) -> Literal["train", "eval"]:
    """A quarter of all texts is for evaluation."""
    return "eval" if zlib.crc32(text.encode()) % 4 == 0 else "train"


def make_tasks(split: Literal["train", "eval"], size: int, seed: int, lengths: range) -> list[dict[str, Any]]:
    """`size` different tasks of one split."""
    rng = random.Random(f"{split} {seed}")
    texts: dict[str, None] = {}
    while len(texts) < size:
        text = "".join(rng.choices(ascii_lowercase, k=rng.choice(lengths)))
        if split_of(text) == split:
            texts[text] = None
    return [{"question": INSTRUCTION + text, "answer": text[::-1]} for text in texts]


def answer_of(completion: whet.Messages, parser: whet.Parser) -> str:
    return (parser.parse_answer(completion) or "").strip()


def similarity(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """Between 0 and 1: twice the letters that match in order, over all letters (difflib's ratio)."""
    return SequenceMatcher(None, answer_of(completion, parser), answer, autojunk=False).ratio()


def exact_match(completion: whet.Messages, answer: str, parser: whet.Parser) -> float:
    """1 if every letter is right."""
    return float(answer_of(completion, parser) == answer)


def load_environment(
    num_train: int = 2000, num_eval: int = 256, seed: int = 0, min_length: int = 8, max_length: int = 12
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the tasks.
        min_length: Fewest letters of a text.
        max_length: Most letters of a text; more is harder.
    """
    if not 4 <= min_length <= max_length:
        raise ValueError(f"lengths must satisfy 4 <= min_length <= max_length, got {min_length} and {max_length}")
    lengths = range(min_length, max_length + 1)
    rubric = whet.Rubric(funcs=[similarity])
    rubric.add_metric(exact_match)
    return whet.SingleTurnEnv(
        dataset=lambda: make_tasks("train", num_train, seed, lengths),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, lengths),
        rubric=rubric,
    )
