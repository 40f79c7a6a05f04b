"""A new algorithm is one file: in the folder of algorithms, or anywhere and given by import path."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import whet.rl.algorithms
from whet.errors import ConfigError, TrainingError
from whet.rl.algorithms import ScoredGroup, advantages_of, algorithms, check_imported
from whet.rl.config import load_run_config
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group
from whet.rl.run import run_training
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines

ADDED = Path(__file__).with_name("added")
RUN = """
name = "run"
max_steps = 1
batch_size = 4
rollouts_per_example = 2
runs_directory = "{here}/runs"
[sampling]
max_tokens = 6
[[env]]
id = "{here}/{environment}.py"
[eval]
before = false
after = false
[deployment]
threads = 1
"""
ENVIRONMENT = """
import whet

def letters(completion, **kwargs):
    return len(completion[-1]["content"] or "") / 10

def load_environment():
    return whet.SingleTurnEnv(dataset=[{"question": "Say it", "answer": ""}], rubric=whet.Rubric(funcs=[letters]))
"""


@pytest.fixture
def by_name(monkeypatch):
    """The folder of algorithms, with the file of `added/` in it."""
    monkeypatch.setattr(whet.rl.algorithms, "__path__", [*whet.rl.algorithms.__path__, str(ADDED)])
    algorithms.cache_clear()
    yield "discounted"
    del sys.modules["whet.rl.algorithms.discounted"]
    algorithms.cache_clear()


@pytest.fixture
def by_import_path(monkeypatch):
    monkeypatch.syspath_prepend(ADDED)
    yield "discounted:ALGORITHM"
    sys.modules.pop("discounted", None)


@pytest.mark.parametrize("way", ["by_name", "by_import_path"])
def test_one_file_is_an_algorithm_that_a_run_trains_with(way, request, tmp_path):
    name = request.getfixturevalue(way)
    environment = f"letters_{way}"  # a module is imported once in a process
    (tmp_path / f"{environment}.py").write_text(ENVIRONMENT)
    (tmp_path / "run.toml").write_text(RUN.format(here=tmp_path, environment=environment))
    settings = {"advantage": name, "loss": name, "advantage_args.discount": "0.5", "loss_args.bound": "0.25"}
    overrides = [word for key, value in settings.items() for word in (f"--algorithm.{key}", value)]
    outcome = run_training(load_run_config(tmp_path / "run.toml", overrides), json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 1)
    (metrics,) = read_lines(tmp_path / "runs" / "run" / "metrics.jsonl")
    assert metrics["policy/clip_frac"] == 1.0  # every ratio is about 1, and above the bound
    rows = list(read_rollouts(tmp_path / "runs" / "run" / "rollouts" / "step_000001.jsonl"))
    assert len(rows) == 4
    for row in rows:
        mean = np.mean([other["reward"] for other in rows if other["group"] == row["group"]])
        tokens = len(row["turns"][0]["completion_ids"])
        expected = (row["reward"] - mean) * np.mean(0.5 ** np.arange(tokens))
        assert row["advantage"] == pytest.approx(expected)


def test_an_algorithm_of_the_folder_is_named_in_messages_and_checked_with_the_config(by_name):
    with pytest.raises(ValueError, match=r"It is one of gae, .*discounted"):
        AlgorithmConfig(advantage="xyz")
    assert AlgorithmConfig(loss=by_name).loss_args == {"bound": 4.0}
    with pytest.raises(ValueError, match="unexpected keyword argument 'gamma'"):
        AlgorithmConfig(advantage=by_name, advantage_args={"gamma": 1})
    with pytest.raises(ValueError, match="loss_args: loss = discounted does not use bond"):
        AlgorithmConfig(loss=by_name, loss_args={"bond": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "discounted:missing"}, "has no 'missing'"),
        ({"advantage": "discounted:ALGORITHM", "advantage_args": {"gamma": 1}}, "unexpected keyword argument 'gamma'"),
        ({"loss": "discounted:ALGORITHM", "loss_args": {"bond": 1}}, "does not use bond"),
        ({"loss": "whet.rl.algorithms.rloo:ALGORITHM"}, "has no loss"),
    ],
)
def test_mistakes_in_import_paths_are_found_before_the_run(by_import_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        check_imported(AlgorithmConfig(**settings))


@pytest.mark.parametrize("wrong", ["cispo", "masked_is"])
def test_a_loss_is_refused_as_an_advantage(wrong):
    with pytest.raises(ValueError, match=f"there is no advantage '{wrong}'"):
        AlgorithmConfig(advantage=wrong)


def by_function(groups):
    """An advantage as a plain function."""
    return [group.rewards_G * 2 for group in groups]


def test_a_function_by_import_path_is_given_the_whole_batch(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_advantages", sys.modules[__name__])
    config = AlgorithmConfig(advantage="my_advantages:by_function")
    assert not config.learns_in_parts
    assert advantages_of([ScoredGroup(np.array([1.0, 0.5]), ())], config.advantage) == [[2.0, 1.0]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[1.0]], r"one value for each rollout of each group: groups of \[2\] rollouts were given, and \[1\] values"),
        ([], r"groups of \[2\] rollouts were given, and \[\] values"),
        ([[1.0, "high"]], "should return numbers for each rollout"),
        (None, "should return numbers for each rollout"),
        ([[1.0, np.ones(4)]], r"one number or one for each of its 3 completion tokens; .* shape \(4,\)"),
    ],
)
def test_an_advantage_that_returns_something_else_is_named(monkeypatch, returned, message):
    monkeypatch.setitem(sys.modules, "my_advantages", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "by_function", lambda groups: returned)
    states = [{"trajectory": [{"tokens": {"completion_ids": [7, 8, 9]}}]}] * 2
    with pytest.raises(TrainingError, match=message):
        advantages_of([ScoredGroup(np.array([1.0, 0.5]), states)], "my_advantages:by_function")


def step(prompt, completion, advantage=None):
    tokens = {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-1.0] * len(completion),
    }
    return {"tokens": tokens, "advantage": advantage}


def test_tokens_carry_their_own_advantages_in_every_branch_and_steps_keep_theirs(by_import_path):
    # Turn 2 begins another branch, turn 3 continues turn 1, turn 4 has an advantage from its environment.
    turns = [
        step([1, 2], [3, 4]),
        step([1, 9], [5]),
        step([1, 2, 3, 4, 6], [7, 8]),
        step([1, 9, 5, 6], [10, 11], advantage=9.0),
    ]
    state = {"example_id": 0, "reward": 3.0, "is_truncated": False, "trajectory": turns, "advantage": 1.0}
    other = {**state, "reward": 1.0, "trajectory": [step([1], [2])]}
    config = AlgorithmConfig(advantage=by_import_path, advantage_args={"discount": 0.5})
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", [state, other])
    found = assemble([group], config, RewardShaper(config), temperature=1.0)
    weights = [2.0**-n for n in range(6, -1, -1)]  # of the seven tokens of the turns; the mean reward is 2
    first, second = [0, 0, *weights[:2], 0, *weights[3:5]], [0, 0, weights[2], 0, 9.0, 9.0]
    assert found.batch.advantages.tolist() == [*first, *second, 0, -1.0]
    assert found.advantages == [[pytest.approx(sum(weights) / 7), -1.0]]


def test_reading_a_config_does_not_import_torch():
    code = "import sys, whet.rl.config, whet.rl.algorithms as a; a.algorithms(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
