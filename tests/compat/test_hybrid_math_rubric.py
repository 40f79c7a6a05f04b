"""`HybridMathRubric`: math-verify decides, and the judge only where that says no. Plain numbers start no process."""

import pytest

import whet
from whet.compat.hybrid_math_rubric import HybridMathRubric

ROWS = [{"question": "Twice one?", "answer": "2"}]


def evaluate(rubric, said):
    env = whet.SingleTurnEnv(dataset=ROWS, rubric=rubric, parser=rubric.parser)
    (row,) = env.evaluate_sync(whet.ScriptedClient([said]), "m", state_columns=["judge_result"])["outputs"]
    assert row["error"] is None
    return row["reward"], row["metrics"]["math_verify_score"], row["judge_result"]


def rubric(answers=None):
    judge = None if answers is None else whet.ScriptedClient(answers)
    parser = whet.MaybeThinkParser(whet.extract_boxed_answer)
    return HybridMathRubric(parser=parser, judge_client=judge, use_judge_fallback=judge is not None)


def test_without_a_judge_math_verify_decides():
    assert evaluate(rubric(), "\\boxed{4/2}") == (1.0, 1.0, None)
    assert evaluate(rubric(), "\\boxed{3}") == (0.0, 0.0, None)


@pytest.mark.parametrize(("verdict", "reward"), [("A", 1.0), ("So \\boxed{A}", 1.0), ("\\boxed{B}", 0.0)])
def test_a_judge_is_asked_where_math_verify_finds_the_answer_wrong(verdict, reward):
    result = "B" if reward == 0 else "A"
    assert evaluate(rubric([verdict]), "\\boxed{3}") == (reward, 0.0, result)


def test_no_judge_is_asked_where_math_verify_finds_the_answer_right():
    assert evaluate(rubric([]), "\\boxed{2}") == (1.0, 1.0, None)


def test_the_prompt_holds_question_answer_and_response():
    asked = []

    def judge(prompt, *_):
        asked.append(prompt[-1]["content"])
        return "\\boxed{C}"

    hybrid = HybridMathRubric(judge_client=whet.ScriptedClient(judge), use_judge_fallback=True)
    evaluate(hybrid, "3")
    assert all(part in asked[0] for part in ("Twice one?", "2", "3", "\\boxed{A}"))
