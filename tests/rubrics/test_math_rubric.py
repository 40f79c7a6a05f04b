"""Checking mathematical answers: what is right, and what a pathological answer may not do."""

import asyncio
import importlib.util
import os
import signal
import sys

import pytest

import whet
from whet.rubrics import math_worker
from whet.rubrics.math_rubric import equal_at_sight
from whet.types import AssistantMessage, RolloutTiming, State, UserMessage

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math extra missing")
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"


def state(text, answer="4"):
    row = {"prompt": [UserMessage("?")], "example_id": 0, "answer": answer}
    return State(
        input=row, task=row, completion=[AssistantMessage(text)], trajectory=[], error=None, timing=RolloutTiming()
    )


def rewards(rubric, *states):
    async def run():
        await rubric.score_group(list(states))
        await rubric.teardown()

    asyncio.run(run())
    return [one["reward"] for one in states]


@pytest.mark.parametrize(
    ("answer", "response", "verdict"),
    [
        ("4", "4", True),
        ("4", " 4 ", True),
        ("4", "5", False),
        ("4", "04", True),
        ("4", "", False),
        ("x+1", "x+1", True),
    ],
)
def test_numbers_and_equal_texts_are_decided_at_sight(answer, response, verdict):
    assert equal_at_sight(answer, response) is verdict


@pytest.mark.parametrize(("answer", "response"), [("1/2", "0.5"), ("4", "4.0"), ("4", "2+2"), ("1" * 20, "1" * 21)])
def test_anything_else_needs_mathematics(answer, response):
    assert equal_at_sight(answer, response) is None


@pytest.fixture
def started(monkeypatch):
    """The processes that have been started."""
    processes, start = [], asyncio.create_subprocess_exec

    async def remember(*arguments, **options):
        processes.append(await start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    return processes


def test_plain_numbers_start_no_process(started):
    rubric = whet.MathRubric()
    assert rewards(rubric, state(r"\boxed{4}"), state(r"\boxed{5}"), state("4")) == [1.0, 0.0, 0.0]
    assert started == []


def test_an_answer_that_is_not_text_is_compared_as_text():
    assert rewards(whet.MathRubric(), state(r"\boxed{4}", answer=4)) == [1.0]


def test_an_answer_that_is_too_long_is_wrong():
    assert rewards(whet.MathRubric(max_verify_chars=5), state(r"\boxed{2+2+0+0}")) == [0.0]


@needs_math_verify
def test_equal_expressions_are_right_and_processes_end_with_the_loop(started):
    rubric = whet.MathRubric(max_workers=1)
    states = [state(r"\boxed{\frac{1}{2}}", "0.5"), state(r"\boxed{x+1}", "1+x"), state(r"\boxed{x+2}", "1+x")]
    asyncio.run(rubric.score_group(states))
    assert [one["reward"] for one in states] == [1.0, 1.0, 0.0]
    (worker,) = started
    assert worker.returncode is not None


@needs_math_verify
def test_a_pathological_answer_is_wrong_and_holds_up_nobody():
    rubric = whet.MathRubric(max_workers=1, timeout_seconds=0.5)
    states = [state(ENDLESS), state(r"\boxed{\frac{8}{2}}"), state(ENDLESS), state(r"\boxed{2+2}")]
    assert rewards(rubric, *states) == [0.0, 1.0, 0.0, 1.0]
    assert all(one["error"] is None for one in states)


UNDECIDABLE = {
    "a tower of powers": "9^{9^{9^{9}}}",
    "a factorial": "(10^9)!",
    "an endless sum": r"\sum_{i=1}^{10^{9}} \frac{1}{i^{i}}",
    "deep parentheses": "(" * 20_000 + "1" + ")" * 20_000,
}


@needs_math_verify
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="how much memory is in use cannot be read here")
def test_an_undecidable_answer_costs_half_a_second_of_one_worker(started):
    """CPU seconds of the process that compared, whatever `timeout_seconds` allows; the worker itself lives on."""

    async def run():
        rubric = whet.MathRubric(max_workers=1, timeout_seconds=60)
        await rubric.score_group([state(r"\boxed{2+2}")])
        (worker,) = started
        outcomes = {}
        for kind, answer in UNDECIDABLE.items():
            before = children_seconds(worker.pid)
            one = state(f"\\boxed{{{answer}}}")
            await rubric.score_group([one])
            used = children_seconds(worker.pid) - before
            after = state(r"\boxed{\frac{8}{2}}")
            await rubric.score_group([after])
            # CPU seconds, of the 60 that `timeout_seconds` allows
            outcomes[kind] = (one["reward"], after["reward"], started == [worker], used < 5)
        await rubric.teardown()
        return outcomes

    assert asyncio.run(run()) == dict.fromkeys(UNDECIDABLE, (0.0, 1.0, True, True))


def children_seconds(pid):
    """CPU seconds of ended children; field 16 and 17 of proc(5)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


@needs_math_verify
def test_a_process_that_dies_is_replaced_and_asked_again(started):
    rubric = whet.MathRubric(max_workers=1, timeout_seconds=30)

    async def run():
        first = state(r"\boxed{2+2}")
        await rubric.score_group([first])
        (worker,) = started
        os.kill(worker.pid, signal.SIGKILL)
        second = state(r"\boxed{\frac{8}{2}}")
        await rubric.score_group([second])
        await rubric.teardown()
        return first["reward"], second["reward"], second["error"]

    assert asyncio.run(run()) == (1.0, 1.0, None)


@needs_math_verify
def test_processes_that_keep_dying_make_the_rollout_errored(monkeypatch):
    start = asyncio.create_subprocess_exec
    dying = [sys.executable, "-c", "print('\"ready\"', flush=True); input()"]  # at the first question
    monkeypatch.setattr(asyncio, "create_subprocess_exec", lambda *_, **options: start(*dying, **options))
    one = state(r"\boxed{2+2}")
    assert rewards(whet.MathRubric(max_workers=1), one) == [None]
    assert "died twice" in str(one["error"])


@needs_math_verify
def test_a_cancelled_question_takes_its_process_with_it(started):
    async def run():
        rubric = whet.MathRubric(max_workers=1, timeout_seconds=60)
        await rubric.score_group([state(r"\boxed{2+2}")])
        (worker,) = started
        scoring = asyncio.ensure_future(rubric.score_group([state(ENDLESS)]))
        for _ in range(20):  # turns of the event loop: the question is sent in the first few
            await asyncio.sleep(0)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        assert worker.returncode is not None
        after = state(r"\boxed{\frac{8}{2}}")
        await rubric.score_group([after])
        await rubric.teardown()
        return after["reward"]

    assert asyncio.run(run()) == 1.0


def test_without_math_verify_the_error_says_which_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "math_verify" else find(name, *a))
    with pytest.raises(whet.WhetError, match=r"whet\[math\]"):
        rewards(whet.MathRubric(), state(r"\boxed{2+2}"))


@needs_math_verify
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="how much memory is in use cannot be read here")
@pytest.mark.long
def test_what_a_pathological_answer_leaves_in_memory_is_given_back(started):
    rubric = whet.MathRubric(max_workers=1, timeout_seconds=2)
    expansion = state(r"\boxed{(x+y+z+1)^{5000}}", "x+1")

    async def run():
        await rubric.score_group([expansion])
        (worker,) = started
        after = state(r"\boxed{\frac{8}{2}}")
        await rubric.score_group([after])
        with open(f"/proc/{worker.pid}/task/{worker.pid}/children") as file:
            (comparing,) = file.read().split()
        with open(f"/proc/{comparing}/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        same = started == [worker]
        await rubric.teardown()
        return expansion["reward"], after["reward"], same, resident

    *outcome, resident = asyncio.run(run())
    assert outcome == [0.0, 1.0, True]
    assert resident < math_worker.KEPT_MEMORY


PATHOLOGICAL = {
    "a tower of powers": "9^{9^{9^{9}}}",
    "an endless sum": "\\sum_{k=1}^{10^{12}} \\frac{1}{k^k}",
    "deep parentheses": "(" * 20_000 + "1" + ")" * 20_000,
    "deep fractions": "\\frac{1}{" * 3_000 + "2" + "}" * 3_000,
    "a long number": "0." + "1" * 40_000,
    "a long set": "\\{" + ",".join(map(str, range(9_000))) + "\\}",
    "half a character": "\ud800",
    "nothing at all": "\x00",
}


def another_form(index):
    """An answer, and the same in another form that needs mathematics."""
    a, b = index + 2, 2 * index + 3
    return [
        (f"\\frac{{{a}}}{{{b}}}", f"{3 * a}/{3 * b}"),
        (f"x^2+{a}x+{b}", f"{b}+{a}x+x^2"),
        (f"{a}\\sqrt{{3}}", f"\\sqrt{{{3 * a * a}}}"),
    ][index % 3]


@needs_math_verify
@pytest.mark.long
def test_among_pathological_answers_no_right_one_is_wrong():
    rubric = whet.MathRubric(max_workers=2, timeout_seconds=0.5)
    pairs = [another_form(index) for index in range(60)]
    hostile = [(f"\\boxed{{{text}}}", "7") for text in PATHOLOGICAL.values()]
    right = [(f"\\boxed{{{response}}}", answer) for answer, response in pairs]
    states = [state(text, answer) for text, answer in [*right[:30], *hostile, *right[30:]]]
    assert rewards(rubric, *states) == [1.0] * 30 + [0.0] * len(hostile) + [1.0] * 30
    assert [one["error"] for one in states] == [None] * len(states)
