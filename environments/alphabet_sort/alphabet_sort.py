"""Keep a growing list of names in alphabetical order: names arrive over two to four turns, and after each of them the
whole list so far has to be given, sorted.

Tasks are drawn from a seed. Whether one belongs to training or to evaluation is decided by a hash of its names, so the
two never meet, whatever the seed and the sizes.
"""

from __future__ import annotations

import random
import zlib
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any, Literal

import whet

FIRST = "Sort these names alphabetically. Answer with the sorted names only, one per line.\n\n"
NEXT = "Add these names. Answer with all names so far, sorted, one per line.\n\n"

NAMES: list[str] = (  # noqa: SIM905
    "Abe Ada Ali Amy Ana Ann Ava Bea Ben Bob Cal Dan Dee Don Eli Ema Eva Eve Fay Flo Gil Gus Hal Ian Ida Ike Ina Ira "
    "Ivy Jan Jay Jed Jim Joe Jon Joy Kai Kay Ken Kim Kit Lea Lee Leo Liv Liz Lou Lua Mae Max May Meg Mel Mia Ned Nia "
    "Nic Noa Noe Ola Ori Ora Pam Pat Pia Rae Ray Rex Rob Ron Roy Sal Sam Sid Sky Sue Tad Ted Tia Tim Tom Una Uma Val "
    "Van Vic Viv Wes Wil Yan Zac Zed Zoe"
).split()


def split_of(turns: list[list[str]]) -> Literal["train", "eval"]:
    """A quarter of all tasks is for evaluation."""
    return "eval" if zlib.crc32(repr(turns).encode()) % 4 == 0 else "train"


def make_tasks(
    split: Literal["train", "eval"], size: int, seed: int, turn_counts: range, names_per_turn: range
) -> list[dict[str, Any]]:
    """`size` different tasks of one split; no name comes twice in a task."""
    rng = random.Random(f"{split} {seed}")
    tasks: dict[str, list[list[str]]] = {}
    while len(tasks) < size:
        counts = [max(2, rng.choice(names_per_turn)), *rng.choices(names_per_turn, k=rng.choice(turn_counts) - 1)]
        names = rng.sample(NAMES, sum(counts))
        turns = [names[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
        if split_of(turns) == split:
            tasks[repr(turns)] = turns
    return [{"question": FIRST + "\n".join(turns[0]), "info": {"turns": turns}} for turns in tasks.values()]


def sorted_so_far(turns: list[list[str]]) -> list[list[str]]:
    """What the right answer is after each turn."""
    return [sorted(names) for names in accumulate(turns)]


def answers_of(completion: whet.Messages) -> list[list[str]]:
    """The names the model gave, turn by turn."""
    texts = [message["content"] or "" for message in completion if message["role"] == "assistant"]
    return [[line.strip() for line in text.strip().split("\n")] for text in texts]


def order(completion: whet.Messages, info: dict[str, Any]) -> float:
    """Mean over the turns of how much of the sorted list was given in order, each between 0 and 1 (difflib's ratio on
    whole names). A turn that was never reached counts 0."""
    expected = sorted_so_far(info["turns"])
    scores = [
        SequenceMatcher(None, given, right, autojunk=False).ratio()
        for given, right in zip(answers_of(completion), expected, strict=False)
    ]
    return sum(scores) / len(expected)


def exact_match(completion: whet.Messages, info: dict[str, Any]) -> float:
    """1 if the list was right after every turn."""
    return float(answers_of(completion) == sorted_so_far(info["turns"]))


class AlphabetSortEnv(whet.MultiTurnEnv):
    async def env_response(self, messages: whet.Messages, state: whet.State, **kwargs: Any) -> whet.Messages:
        names = state["info"]["turns"][len(state["trajectory"])]
        return [whet.UserMessage(content=NEXT + "\n".join(names))]

    @whet.stop
    async def all_names_given(self, state: whet.State) -> bool:
        return len(state["trajectory"]) == len(state["info"]["turns"])


def load_environment(
    num_train: int = 2000,
    num_eval: int = 256,
    seed: int = 0,
    min_turns: int = 2,
    max_turns: int = 3,
    min_names_per_turn: int = 1,
    max_names_per_turn: int = 2,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the tasks.
        min_turns: Fewest turns over which names arrive.
        max_turns: Most turns over which names arrive; more is harder.
        min_names_per_turn: Fewest names of a turn (the first turn always brings two or more).
        max_names_per_turn: Most names of a turn; more is harder.
    """
    if not 1 <= min_turns <= max_turns:
        raise ValueError(f"turns must satisfy 1 <= min_turns <= max_turns, got {min_turns} and {max_turns}")
    if not 1 <= min_names_per_turn <= max_names_per_turn:
        raise ValueError(
            "names must satisfy 1 <= min_names_per_turn <= max_names_per_turn, "
            f"got {min_names_per_turn} and {max_names_per_turn}"
        )
    if max_turns * max(2, max_names_per_turn) > len(NAMES):
        raise ValueError(f"max_turns * max_names_per_turn must not exceed the {len(NAMES)} names there are")
    turn_counts = range(min_turns, max_turns + 1)
    names_per_turn = range(min_names_per_turn, max_names_per_turn + 1)
    rubric = whet.Rubric(funcs=[order])
    rubric.add_metric(exact_match)
    return AlphabetSortEnv(
        dataset=lambda: make_tasks("train", num_train, seed, turn_counts, names_per_turn),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, turn_counts, names_per_turn),
        rubric=rubric,
    )
