"""A task whose best prompt is known, a model that obeys prompts, and one that proposes them: to test a search with.

    whet gepa run tests/gepa/planted -m policy -b URL -M reflection ...     # the environment
    PYTHONPATH=tests/gepa python -m planted policy --latency-ms 200          # prints the URL of an endpoint, and serves

`world.py` has the rules, `policy.py` and `reflection.py` what the two models say, `server.py` real HTTP around them.
This file is the environment: it knows nothing of prompts, only the questions and their answers.
"""

from __future__ import annotations

from typing import Any

import whet
from planted.world import SEED_PROMPT, World, answer_of


def exact_match(completion: whet.Messages, answer: str) -> float:
    """1 if the last message is the answer."""
    return float(bool(completion) and completion[-1]["content"] == answer)


def look_up(record: str) -> str:
    """Look a record up.

    Args:
        record: The question, to the letter.
    """
    return answer_of(record)


def load_environment(
    seed: int = 0,
    num_train: int = 400,
    num_eval: int = 400,
    tool: bool = False,
    kinds: int = 4,
) -> whet.Environment:
    """
    Args:
        seed: Draws the world: which instructions its questions need.
        num_train: Questions to train on.
        num_eval: Questions to evaluate on.
        tool: Whether the answer has to be looked up with a tool.
        kinds: Of things that questions are about.
    """
    world = World.of(seed, kinds=kinds)
    arguments: dict[str, Any] = {
        "dataset": lambda: world.rows("train", num_train),
        "eval_dataset": lambda: world.rows("eval", num_eval),
        "rubric": whet.Rubric(funcs=[exact_match]),
        "system_prompt": SEED_PROMPT,
    }
    return whet.ToolEnv(tools=[look_up], max_turns=3, **arguments) if tool else whet.SingleTurnEnv(**arguments)
