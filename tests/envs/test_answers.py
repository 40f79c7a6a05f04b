"""A reward function that takes `answer` where no row has one is refused, wherever an environment is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whet
from whet.authoring.review.observe import _split
from whet.cli.main import main
from whet.clients.scripted import ScriptedClient
from whet.envs.answers import check_answers
from whet.errors import DatasetError
from whet.evals.evaluate import evaluate_environment
from whet.rl.plan import training_env
from whet.rl.sections.training import TrainingEnvConfig
from whet.system import cancellation

ROWS = [{"question": "2 + 2", "solution": "4"}, {"question": "1 + 1", "solution": "2"}]
SAYS = r"the reward function 'exact' takes `answer`, and no row .* Columns: question, solution"
MODULE = """
import whet

def exact(completion, answer):
    return float(completion[-1]["content"] == answer)

def load_environment():
    rows = [{"question": "2 + 2", "solution": "4"}]
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=whet.Rubric([exact]))
"""


def exact(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def ignores(completion: Any, answer: str, **kwargs: Any) -> float:
    return 1.0


def rank(completions: Any, answers: Any) -> list[float]:
    return [float(answer == "4") for answer in answers]


async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
    return float(await judge(prompt, completion, answer, state))


def solution(completion: Any, solution: str) -> float:
    return float(completion[-1]["content"] == solution)


class Fills(whet.SingleTurnEnv):
    async def setup_state(self, state: Any) -> None:
        state["answer"] = "4"


class Handles(whet.SingleTurnEnv):
    @whet.setup
    async def fill(self, state: Any) -> None:
        state["answer"] = "4"


def check(env: whet.Environment) -> None:
    check_answers(env, list(env.get_dataset()), "sums")


def single(*funcs: Any, rows: list[dict[str, Any]] = ROWS, kind: Any = whet.SingleTurnEnv) -> whet.Environment:
    env: whet.Environment = kind(dataset=rows, rubric=whet.Rubric(list(funcs)))
    return env


@pytest.mark.parametrize(
    "env",
    [
        lambda: single(exact),
        lambda: single(ignores, exact),
        lambda: whet.EnvGroup([single(solution), single(exact)], env_names=["a", "b"]),
        lambda: whet.ToolEnv(tools=[], dataset=ROWS, rubric=whet.RubricGroup([whet.Rubric([exact])])),
    ],
)
def test_refused_with_the_columns_there_are(env: Any) -> None:
    with pytest.raises(DatasetError, match=SAYS):
        check(env())


def test_group_functions_and_the_maths_rubric_are_refused_too() -> None:
    with pytest.raises(DatasetError, match="'rank' takes `answer`"):
        check(single(rank))
    with pytest.raises(DatasetError, match="takes `answer`"):
        check(whet.SingleTurnEnv(dataset=ROWS, rubric=whet.MathRubric()))


@pytest.mark.parametrize(
    "env",
    [
        lambda: single(solution),
        lambda: single(ignores),
        lambda: single(judged),
        lambda: single(exact, rows=[{"question": "q"}, {"question": "q", "answer": "4"}]),
        lambda: single(exact, rows=[{"question": "q", "answer": ""}]),
        lambda: single(exact, kind=Fills),
        lambda: single(exact, kind=Handles),
        lambda: single(),
        lambda: whet.EnvGroup([single(solution), single(exact, rows=[{"question": "q", "answer": "4"}])]),
    ],
)
def test_what_can_have_an_answer_is_not_refused(env: Any) -> None:
    check(env())


def test_objects_and_providers_count_as_answers() -> None:
    env = single(exact)
    env.rubric.rubrics[0].add_class_object("answer", "4")  # type: ignore[attr-defined]
    check(env)
    env = single(exact)
    env.rubric.add_score_object_provider(lambda state: {"answer": "4"})
    check(env)


def test_eval_run_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "without_answers.py").write_text(MODULE)
    assert main(["eval", "run", str(tmp_path / "without_answers.py"), "--no-save"]) == 2
    error = capsys.readouterr().err
    assert "takes `answer`, and no row" in error
    assert "Traceback" not in error
    assert error.count("error:") == 1


def test_training_evaluation_and_review_refuse(tmp_path: Path) -> None:
    (tmp_path / "no_answers_either.py").write_text(MODULE)
    with pytest.raises(DatasetError, match="takes `answer`"):
        training_env(TrainingEnvConfig(id=str(tmp_path / "no_answers_either.py")))
    env = single(exact)
    kwargs: dict[str, Any] = {"num_examples": 1, "rollouts_per_example": 1, "sampling_args": {}, "max_concurrent": 1}
    with pytest.raises(DatasetError, match=SAYS):
        cancellation.run(evaluate_environment(env, ScriptedClient(["4"]), "m", seed=0, **kwargs))
    split, rows = _split(env, env.build_dataset)
    assert split is not None
    assert "takes `answer`" in (split.error or "")
    assert rows == []
