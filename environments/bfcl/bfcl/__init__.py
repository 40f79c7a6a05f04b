"""BFCL, the Berkeley function calling leaderboard (v4): call the functions that a question needs, or none.

One turn, with the categories whose answers are compared as syntax trees of Python and those that ask whether a function
is called at all. Questions and possible answers are read from the package `bfcl-eval`; `scoring.py` decides as its
checker does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import whet
from bfcl.data import questions
from bfcl.scoring import Call, is_correct, name_of_tool
from whet.parsing import parse_json

CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("irrelevance", "live_irrelevance", "live_relevance"),
)
JSON_TYPES = {"float": "number", "dict": "object", "tuple": "array", "any": "string"}


def as_schema(described: Any) -> Any:
    """JSON Schema of a description, whose types are Python's."""
    if isinstance(described, Mapping):
        schema = {key: as_schema(value) for key, value in described.items()}
        if isinstance(described.get("type"), str):
            schema["type"] = JSON_TYPES.get(described["type"], described["type"])
        return schema
    return [as_schema(one) for one in described] if isinstance(described, list) else described


def as_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name_of_tool(function["name"]),
        "description": function["description"],
        "parameters": as_schema(function["parameters"]),
    }


def make_tasks(categories: Sequence[str], size: int) -> list[dict[str, Any]]:
    """The first `size` questions of each category, all of them for -1."""
    tasks = []
    for category in categories:
        rows = questions(category)
        for row in rows if size < 0 else rows[:size]:
            info = {
                "id": row["id"],
                "category": category,
                "tool_defs": [as_tool(function) for function in row["function"]],
                "functions": json.dumps(row["function"]),
                "ground_truth": json.dumps(row.get("ground_truth")),
            }
            tasks.append({"prompt": row["question"][0], "answer": "", "info": info})
    return tasks


def calls_of(completion: whet.Messages) -> list[Call] | None:
    """Names and arguments of the calls in a model's turn; None where the arguments of one are no JSON object."""
    calls: list[Call] = []
    for call in (completion[-1].get("tool_calls") or []) if completion else []:
        try:
            arguments = parse_json(call["arguments"])
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        calls.append((call["name"], arguments))
    return calls


def correct(completion: whet.Messages, info: dict[str, Any]) -> float:
    """1 if the calls are among the possible answers, or a function is called exactly where one is of use."""
    calls, category = calls_of(completion), info["category"]
    if category.endswith("irrelevance"):
        return float(not calls)
    if category.endswith("relevance"):
        return float(bool(calls))
    known = json.loads(info["functions"]), json.loads(info["ground_truth"])
    return float(calls is not None and is_correct(category, known[0], calls, known[1]))


def load_environment(
    categories: Sequence[str] = CATEGORIES,
    train_categories: Sequence[str] = (),
    num_eval: int = -1,
    num_train: int = -1,
) -> whet.Environment:
    """
    Args:
        categories: What is evaluated.
        train_categories: What is trained on, none of `categories`; by default nothing.
        num_eval: The first so many questions of each category; -1 takes all.
        num_train: Likewise, of each category that is trained on.
    """
    for name, chosen in (("categories", categories), ("train_categories", train_categories)):
        unknown = sorted(set(chosen) - set(CATEGORIES))
        if unknown:
            raise ValueError(f"{name} must be some of {', '.join(CATEGORIES)}, got {', '.join(unknown)}")
    both = sorted(set(categories) & set(train_categories))
    if both or not categories:
        raise ValueError(f"categories must be one or more that are not trained on, got {', '.join(both) or 'none'}")
    train = {"dataset": lambda: make_tasks(train_categories, num_train)} if train_categories else {}
    return whet.SingleTurnEnv(
        eval_dataset=lambda: make_tasks(categories, num_eval), rubric=whet.Rubric(funcs=[correct]), **train
    )
