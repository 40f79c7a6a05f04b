"""What an answer earns, with a real interpreter in a real sandbox; and whether the problems are what they say."""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction
from typing import Any

import pytest

import whet
from math_python import load_environment
from math_python.problems import KINDS, written
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import host as bubblewrap_host

# A program for each kind that goes through all the cases, as the statement says it and no formula does.
BY_BRUTE_FORCE = {
    "tower": "x = 1\nfor _ in range(p['middle'] ** p['top']): x = x * p['base'] % p['modulus']\nx",
    "coprime": "sum(all(n % q for q in p['primes']) for n in range(1, p['limit'] + 1))",
    "power-sum": "sum(k ** p['exponent'] for k in range(1, p['limit'] + 1)) % p['modulus']",
    "paths": """
closed = {tuple(c) for c in p['closed']}
def walk(x, y):
    if (x, y) in closed or x > p['width'] or y > p['height']: return 0
    return 1 if (x, y) == (p['width'], p['height']) else walk(x + 1, y) + walk(x, y + 1)
walk(0, 0)""",
    "remainders": "n = 1\nwhile any(n % m != r for m, r in p['congruences']): n += 1\nn",
    "partitions": """
def ways(total, parts):
    if not parts: return total == 0
    return sum(ways(total - used, parts[1:]) for used in range(0, total + 1, parts[0]))
int(ways(p['total'], p['parts']))""",
    "digit-sum": "sum(sum(map(int, str(n))) == p['total'] for n in range(10 ** p['digits']))",
    "telescope": """
from fractions import Fraction
print(sum(Fraction(1, k * (k + p['distance'])) for k in range(1, p['limit'] + 1)))""",
    "dice": """
from fractions import Fraction
from itertools import product
throws = [sum(throw) for throw in product(range(1, p['faces'] + 1), repeat=p['dice'])]
print(Fraction(sum(total % p['modulus'] == 0 for total in throws), len(throws)))""",
}


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    try:
        bubblewrap_host.host()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def python(code: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "name": "python", "arguments": json.dumps({"code": code})}]}


def attempts(rows: list[dict[str, Any]], *scripts: Any) -> list[whet.State]:
    """One rollout for each of these tasks, scored; with one script for all of them, or one for each."""
    env = load_environment(num_train=1, num_eval=1)

    async def run() -> list[whet.State]:
        clients = [whet.ScriptedClient(script) for script in scripts] * (len(rows) // len(scripts))
        pairs = zip(rows, clients, strict=True)
        states = list(await asyncio.gather(*(env.rollout(row, client, "m", {}) for row, client in pairs)))
        await env.rubric.score_group(states)
        await env.close()
        return states

    return asyncio.run(run())


def tasks(size: int, split: str = "eval", **args: Any) -> list[dict[str, Any]]:
    env = load_environment(num_train=size, num_eval=size, **args)
    return list(env.get_eval_dataset() if split == "eval" else env.get_dataset())


def rewards(row: dict[str, Any], texts: list[str]) -> list[float]:
    """What these answers to a task earn, each given without calling the tool."""
    return [state["reward"] for state in attempts([row] * len(texts), *([text] for text in texts))]


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_whoever_computes_the_answer_with_the_tool_and_boxes_it_earns_everything(seed: int) -> None:
    rows = [row for kind in KINDS for row in tasks(1, seed=seed, kinds=(kind,), difficulty="easy")]

    def model(prompt: Any, state: whet.State, turn: int) -> Any:
        if turn == 0:
            info = state["info"]
            return python(f"p = {info['parameters']!r}\n{BY_BRUTE_FORCE[info['kind']]}")
        return f"So it is \\boxed{{{prompt[-1]['content'].removeprefix('Out[1]: ')}}}."

    states = attempts(rows, model)
    assert [(state["error"], state["reward"]) for state in states] == [(None, 1.0)] * 9
    assert all(state["metrics"]["used_python"] == 1.0 for state in states)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_answers_are_those_of_a_program_that_tries_every_case(kind: str) -> None:
    rows = tasks(6, difficulty="easy", kinds=(kind,)) + tasks(2, "train", difficulty="easy", kinds=(kind,), seed=5)
    for row in rows:
        *body, last = BY_BRUTE_FORCE[kind].strip().splitlines()
        names: dict[str, Any] = {"p": row["info"]["parameters"]}
        exec("\n".join(body), names)
        value = eval(last.removeprefix("print"), names)
        assert written(value if isinstance(value, Fraction) else int(value)) == row["answer"], row["question"]


def test_the_answer_without_the_tool_counts_as_well() -> None:
    (row,) = tasks(1)
    (state,) = attempts([row], [f"\\boxed{{{row['answer']}}}"])
    assert (state["reward"], state["metrics"]["used_python"]) == (1.0, 0.0)


def test_a_fraction_may_be_written_in_another_way() -> None:
    (row,) = tasks(1, kinds=("telescope",))
    above, below = row["answer"].removeprefix("\\frac{").removesuffix("}").split("}{")
    texts = [f"\\boxed{{{above}/{below}}}", f"\\boxed{{\\dfrac{{{int(above) * 2}}}{{{int(below) * 2}}}}}"]
    assert rewards(row, texts) == [1.0, 1.0]


def test_what_is_no_answer_earns_nothing() -> None:
    (row,) = tasks(1)
    right, wrong = row["answer"], int(row["answer"]) + 1
    texts = [
        "",
        right,
        "\\boxed{}",
        f"\\boxed{{{wrong}}}",
        f"\\boxed{{{right}}} or rather \\boxed{{{wrong}}}",
        f"\\boxed{{{right} or {wrong}}}",
        " ".join(f"\\boxed{{{number}}}" for number in range(200) if number != int(right)),
        row["question"],
        "\\boxed{x = x}",
        "\\boxed{" * 5000,
    ]
    assert rewards(row, texts) == [0.0] * len(texts)


@pytest.mark.usefixtures("bubblewrap")
def test_code_that_attacks_its_interpreter_earns_nothing_and_breaks_nothing() -> None:
    hostile = ["import os; os._exit(0)", "print('\\\\boxed{1}')", "import os; os.kill(os.getppid(), 9)"]
    states = attempts(tasks(3), [*map(python, hostile), "\\boxed{?}"])
    assert [(state["error"], state["reward"]) for state in states] == [(None, 0.0)] * 3
    assert [state["metrics"]["python_calls"] for state in states] == [3.0] * 3


def test_training_and_evaluation_share_no_problem_whatever_the_seeds() -> None:
    def questions(split: str, seed: int) -> set[str]:
        return {row["question"] for row in tasks(400, split, seed=seed, difficulty="mixed")}

    assert (questions("train", 0) | questions("train", 1)).isdisjoint(questions("eval", 0) | questions("eval", 1))


def test_the_same_seed_makes_the_same_tasks() -> None:
    assert tasks(20, seed=3) == tasks(20, seed=3)
    assert tasks(20, seed=3) != tasks(20, seed=4)


def test_difficulty_and_kinds_choose_the_tasks() -> None:
    for level, difficulty in enumerate(("easy", "medium", "hard"), 1):
        rows = tasks(20, difficulty=difficulty, kinds=("paths", "tower"))
        assert {(row["info"]["level"], row["info"]["kind"]) for row in rows} == {(level, "paths"), (level, "tower")}
    assert {row["info"]["level"] for row in tasks(30, difficulty="mixed")} == {1, 2, 3}


@pytest.mark.parametrize("args", [{"difficulty": "harder"}, {"kinds": ("algebra",)}, {"kinds": ()}])
def test_arguments_that_make_no_sense_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        load_environment(**args)
