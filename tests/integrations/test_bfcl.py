"""Answers of the environment bfcl are judged as by the package's own checker, in a virtual environment of its own."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bfcl import CATEGORIES
from bfcl.data import questions
from bfcl.scoring import OPTIONAL, is_correct, name_of_tool

pytestmark = pytest.mark.parts

CHECKER = Path(__file__).with_name("bfcl_checker.py")
COMPARED = [category for category in CATEGORIES if "relevance" not in category]


def one_of(possible: list[Any], rng: random.Random) -> Any:
    return rng.choice([value for value in possible if value != OPTIONAL] or [OPTIONAL])


def value_of(possible: list[Any], rng: random.Random) -> Any:
    """A value as a model writes it. Where it is an object, or a list of some, each key of theirs has a list too."""

    def written(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: one_of(values, rng) for key, values in one.items() if values != [OPTIONAL]}
        return one

    one = one_of(possible, rng)
    return [written(item) for item in one] if isinstance(one, list) else written(one)


def right(answers: list[Any], rng: random.Random) -> list[Any]:
    calls = []
    for answer in answers:
        ((name, possible),) = answer.items()
        given = {
            key: value_of(values, rng)
            for key, values in possible.items()
            if OPTIONAL not in values or rng.random() < 0.5
        }
        calls.append({name_of_tool(name): given})
    rng.shuffle(calls)
    return calls


def other_value(value: Any, rng: random.Random) -> Any:
    """Nearly the same: another spelling, another type, a little more."""
    choices = [None, str(value), [value], value]
    if isinstance(value, str):
        choices += [value.upper(), f" {value.replace(' ', '-')}.", f"{value}s", value[:-1], value.replace('"', "'")]
    elif isinstance(value, bool):
        choices += [not value, int(value)]
    elif isinstance(value, int | float):
        choices += [value + 1, float(value), -value, int(value)]
    elif isinstance(value, list):
        choices += [value[::-1], value[:-1], value * 2, [other_value(item, rng) for item in value]]
    elif isinstance(value, dict) and value:
        key = rng.choice(list(value))
        choices += [
            {**value, key: other_value(value[key], rng)},
            {**value, "more": 1},
            {k: value[k] for k in value if k != key},
        ]
    return rng.choice(choices)


def changed(calls: list[Any], rng: random.Random) -> list[Any]:
    """One thing of one call is another; or a call is missing, or there twice."""
    calls = [dict(call) for call in calls]
    place = rng.randrange(len(calls))
    ((name, given),) = calls[place].items()
    kind = rng.choice(["value", "value", "value", "value", "less", "more", "name", "calls"])
    if kind == "calls":
        return rng.choice([calls[:-1], [*calls, calls[place]], [*calls[:-1], calls[0]]])
    if kind == "name":
        calls[place] = {f"{name}_of": given}
    elif kind == "more":
        calls[place] = {name: {**given, "unit_of_it": "m"}}
    elif given:
        key = rng.choice(list(given))
        less = {one: value for one, value in given.items() if one != key}
        calls[place] = {name: less if kind == "less" else {**given, key: other_value(given[key], rng)}}
    return calls


def cases_of(category: str) -> list[Any]:
    """Each question's right answer, and two that are changed in one thing."""
    rng, cases = random.Random(category), []
    for row in questions(category):
        calls = right(row["ground_truth"], rng)
        for answer in (calls, changed(calls, rng), changed(calls, rng)):
            cases.append([category, row["function"], answer, row["ground_truth"]])
    return cases


@pytest.fixture(scope="module")
def judged(need: Callable[..., Path]) -> dict[str, tuple[list[Any], list[bool]]]:
    """For each category the cases, and what the package's checker says of them: it takes seconds to import."""
    python = need("bfcl", "bfcl-eval") / "bin" / "python"
    cases = {category: cases_of(category) for category in COMPARED}
    lines = "".join(json.dumps(case) + "\n" for several in cases.values() for case in several)
    done = subprocess.run([python, CHECKER], input=lines, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts = iter([json.loads(line) for line in done.stdout.splitlines()])
    found = {category: (several, list(itertools.islice(verdicts, len(several)))) for category, several in cases.items()}
    assert next(verdicts, None) is None
    return found


@pytest.mark.parametrize("category", COMPARED)
def test_answers_are_judged_as_by_the_package(category: str, judged: dict[str, tuple[list[Any], list[bool]]]) -> None:
    cases, theirs = judged[category]
    ours = [
        is_correct(category, functions, [next(iter(call.items())) for call in calls], answers)
        for category, functions, calls, answers in cases
    ]
    wrong = [case for case, one, other in zip(cases, ours, theirs, strict=True) if one != other]
    assert not wrong, wrong[:3]
    assert 0.3 < sum(theirs) / len(theirs) < 0.95
