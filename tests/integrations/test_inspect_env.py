"""`inspect:`: tasks of inspect-ai and inspect-evals, played in `.venv-inspect` (`make inspect`)."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

import whet
from whet.envs.identity.ids import parse_id
from whet.errors import MissingExtraError

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).with_name("inspect_tasks.py")
REFUSED = {
    "in_a_sandbox": "needs a sandbox",
    "by_a_model": "is graded by a model (model_graded_qa) and there is no judge",
    "unscored": "has no scorer",
    "tools": "offers tools",
    "agent": "has an agent as its solver",
    "pictures": "has samples with content that is no text",
    "several": "has several scorers; give score, one of match, includes, parts",
    "missing": "cannot be loaded",
}


def test_inspect_is_missing_in_one_line():
    assert parse_id("inspect:inspect_evals/gsm8k").target == "inspect_evals/gsm8k"
    try:
        import inspect_ai  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"pip install 'whet\[inspect\]'"):
            whet.load_environment("inspect:inspect_evals/gsm8k")


@pytest.fixture
def play(need, tmp_path):
    return partial(play_in, need("inspect", "inspect-ai") / "bin" / "python", tmp_path)


def play_in(python, folder, *jobs):
    done = subprocess.run(
        [python, Path(__file__).with_name("inspect_worker.py")],
        input="".join(f"{json.dumps(job)}\n" for job in jobs),
        cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]


@pytest.mark.parts
@pytest.mark.timeout(600)
def test_tasks_run_their_solvers_and_scorers(play):
    numbers, said, asked, picked, twice, anew, broken, several, odd, none = play(
        [f"{TASKS}@numbers", {}, ["1"]],
        [f"{TASKS}@conversation", {}, ["1"]],
        [f"{TASKS}@numbers", {"task_args": {"template": "{prompt}?"}, "num_eval_examples": 1}, ["it is 2"]],
        [f"{TASKS}@choices", {}, ["ANSWER: B"]],
        [f"{TASKS}@two_turns", {}, ["1", "2"]],
        [f"{TASKS}@branches", {}, ["1", "2"]],
        [f"{TASKS}@broken", {}, ["1"]],
        [f"{TASKS}@several", {"score": "parts/long"}, ["1"]],
        [f"{TASKS}@odd_score", {}, ["1"]],
        [f"{TASKS}@no_number", {}, ["1"]],
    )
    assert [(row["reward"], row["error"]) for row in numbers] == [(1.0, None), (0.0, None)]
    assert numbers[0]["texts"] == ["Be brief.", "Say one in digits.", "1"]
    assert (said[0]["reward"], said[0]["texts"]) == (1.0, ["Count.", "one?", "1"])
    assert [(row["reward"], row["texts"][1]) for row in asked] == [(1.0, "two?")]
    assert picked[0]["reward"] == 1.0
    assert "B) seven" in picked[0]["texts"][0]
    assert [row["reward"] for row in twice] == [0.0, 1.0]
    assert (twice[0]["texts"], twice[0]["metrics"]["num_turns"]) == (["one", "1", "sure?", "2"], 2.0)
    assert ([row["reward"] for row in anew], anew[1]["texts"]) == ([0.0, 1.0], ["two", "1", "2"])
    assert [(row["reward"], "KeyError" in row["error"]) for row in broken] == [(None, True)] * 2
    metrics = {"match": 1.0, "includes": 1.0, "parts/long": 0.1, "parts/right": 1.0}
    assert several[0]["reward"] == pytest.approx(0.1)
    assert {name: several[0]["metrics"][name] for name in metrics} == pytest.approx(metrics)
    for rows in (odd, none):
        assert [(row["reward"], "neither C, I, P, N" in row["error"]) for row in rows] == [(None, True)] * 2


@pytest.mark.parts
@pytest.mark.timeout(600)
def test_what_cannot_be_had_is_refused_by_name(play):
    jobs = [[f"{TASKS}@{name}", {}, ["1"]] for name in REFUSED]
    wrong_score = [f"{TASKS}@several", {"score": "parts"}, ["1"]]
    *refusals, wrong, nowhere = play(*jobs, wrong_score, ["nowhere/nothing", {}, ["1"]])
    for refusal, reason in zip(refusals, REFUSED.values(), strict=True):
        assert reason in refusal
    assert "score should be one of match, includes, parts/long, parts/right" in wrong
    assert nowhere.startswith("EnvironmentLoadError: 'inspect:nowhere/nothing'")


@pytest.mark.parts
@pytest.mark.timeout(600)
def test_tasks_of_inspect_evals_play_unmodified(play, tmp_path):
    gsm8k = tmp_path / "openai" / "gsm8k" / "main"
    gsm8k.mkdir(parents=True)
    rows = [{"question": f"What is {n} plus 1?", "answer": f"One more.\n#### {n + 1}"} for n in (1, 2)]
    for split in ("train", "test"):
        (gsm8k / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ((first, second),) = play(["inspect_evals/gsm8k", {"task_args": {"fewshot": 0}}, ["ANSWER: 2"]])
    assert [(row["reward"], row["error"]) for row in (first, second)] == [(1.0, None), (0.0, None)]
    assert "What is 1 plus 1?" in first["texts"][-2]
