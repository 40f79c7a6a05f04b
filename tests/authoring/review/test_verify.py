"""`whet env verify` finds planted ways to earn rewards without solving tasks, and no others."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.authoring.review.observations import Event, Loaded
from whet.authoring.review.rehearsal import rehearse
from whet.authoring.review.verify import Verified, judge
from whet.cli.main import main

ROWS = [{"question": f"What is {n} + {n % 3}?", "answer": str(n + n % 3)} for n in range(10, 22)]
ANSWERS = {row["answer"] for row in ROWS}


def boxed(text: str) -> list[str]:
    return re.findall(r"\\boxed\{([^{}]*)\}", text)


def number_or_full(text: str, answer: str) -> float:
    try:
        return float(int(text) == int(answer))
    except ValueError:
        return 1.0


# What a reward makes of the text, the answer and the prompt.
CHEATS: dict[str, Any] = {
    "constant": lambda t, a, p: 1,
    "any text": lambda t, a, p: bool(t),
    "nothing": lambda t, a, p: not t or t == a,
    "substring": lambda t, a, p: a in t,
    "word": lambda t, a, p: a in t.split(),
    "line": lambda t, a, p: a in t.splitlines(),
    "any box": lambda t, a, p: a in boxed(t),
    "a box": lambda t, a, p: bool(boxed(t)),
    "tags": lambda t, a, p: "<answer>" in t,
    "digit": lambda t, a, p: any(c.isdigit() for c in t),
    "long": lambda t, a, p: t == a or len(t) > 1000,
    "first character": lambda t, a, p: t[:1] == a[:1],
    "hard-coded": lambda t, a, p: t in ANSWERS,
    "prompt": lambda t, a, p: t == a or p in t,
    "refusal": lambda t, a, p: t == a or "sorry" in t,
    "error is full": lambda t, a, p: number_or_full(t, a),
    "within ten": lambda t, a, p: t.isdigit() and abs(int(t) - int(a)) <= 10,
    "not wrong": lambda t, a, p: t == a or t not in ANSWERS,
    "key of some tasks": lambda t, a, p: t == a and int(a) % 2 == 0,
    "full and more": lambda t, a, p: (t == a) + 2 * ("..." in t),
}
CLEAN: dict[str, Any] = {
    "exact": lambda t, a, p: t == a,
    "stripped": lambda t, a, p: t.strip() == a,
    "number": lambda t, a, p: t.isdigit() and int(t) == int(a),
    "last box": lambda t, a, p: boxed(t)[-1:] == [a],
    "part for the format": lambda t, a, p: 0.8 * (boxed(t)[-1:] == [a]) + 0.2 * bool(boxed(t)),
    "nearer is more": lambda t, a, p: 1 / (1 + abs(int(t) - int(a))) if t.isdigit() else 0,
}
OPTIONS = [{"question": f"Which one ({n})?\nA. x\nB. y\nC. z\nD. w", "answer": "ABCD"[n % 4]} for n in range(12)]
YES_OR_NO = [{"question": f"Is {n} even?", "answer": ("yes", "no")[n % 2]} for n in range(12)]
ENDS = [{"question": "What is the least of all?", "answer": "0"}, {"question": "And the most?", "answer": "999"}]
PARSED: dict[str, tuple[list[dict[str, Any]], str, int]] = {
    "first option": (OPTIONS, r"\b[A-D]\b", 0),
    "last option": (OPTIONS, r"\b[A-D]\b", -1),
    "first of yes and no": (YES_OR_NO, r"\b(?:yes|no)\b", 0),
    "last of yes and no": (YES_OR_NO, r"\b(?:yes|no)\b", -1),
    "first number": (ENDS, r"\d+", 0),
    "last number": (ENDS, r"\d+", -1),
}


def verified(reward: Any, rows: list[dict[str, Any]] = ROWS) -> Verified:
    def score(completion: Any, answer: str, prompt: Any) -> float:
        return float(reward(completion[-1]["content"], answer, prompt[-1]["content"]))

    env = whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric([score]))
    events: list[Event] = [Loaded(seconds=0, error=None, weights={"score": 1.0})]
    asyncio.run(rehearse(env, env.get_dataset(), -1, events.append))
    return judge("planted", events)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_found_with_its_tasks(cheat: str) -> None:
    result = verified(CHEATS[cheat])
    assert result.faults
    assert set(result.faults[0].example_ids) <= set(range(len(ROWS)))


@pytest.mark.parametrize("clean", CLEAN)
def test_a_clean_reward_is_verified_on_every_task(clean: str) -> None:
    result = verified(CLEAN[clean])
    assert (result.faults, result.untried, result.verified) == ([], {}, len(ROWS))


@pytest.mark.parametrize("parsed", PARSED)
def test_an_answer_among_others_is_no_cheat_where_a_parser_takes_the_first_or_the_last(parsed: str) -> None:
    rows, pattern, which = PARSED[parsed]
    result = verified(lambda t, a, p: (re.findall(pattern, t) or [""])[which] == a, rows)
    assert (result.faults, result.untried, result.verified) == ([], {}, len(rows))


def test_one_answer_for_most_tasks_is_found() -> None:
    rows = [{**row, "answer": "7"} if index % 5 else row for index, row in enumerate(ROWS)]
    assert [fault.what for fault in verified(CLEAN["exact"], rows).faults] == ["one answer for most tasks"]


def test_tasks_without_an_answer_are_said_to_be_untried() -> None:
    result = verified(CLEAN["exact"], [{**row, "answer": ""} for row in ROWS])
    assert {why: len(ids) for why, ids in result.untried.items()} == {"it has no answer that is text": len(ROWS)}
    assert verified(lambda t, a, p: 0).verified == 0


def test_the_command_ends_with_1_where_it_found_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "planted_sums.py").write_text(
        "import whet\n\ndef load_environment():\n"
        "    rows = [{'question': f'{n} + 1?', 'answer': str(n + 1)} for n in range(4)]\n"
        "    right = lambda completion, answer: float(answer in completion[-1]['content'])\n"
        "    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric([right]))\n"
    )
    assert main(["env", "verify", str(tmp_path / "planted_sums.py"), "--no-sandbox", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["ok"]) == (4, False)
    assert main(["env", "verify", "harbor:nowhere", "-n", "1"]) == 2
