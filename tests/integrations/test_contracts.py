"""Environments of other contracts, several in one training run of whet/tiny: a curve for each, and steps that learn."""

import json
from pathlib import Path

import pytest

from whet.cli.main import main

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
OPENENV, V1 = ROOT / ".venv-openenv", ROOT / ".venv-v1"

pytestmark = [pytest.mark.parts, pytest.mark.timeout(900)]


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def train(folder, envs, **settings):
    """The metrics of the steps, and the folder of the run."""
    config = {
        "model": "whet/tiny", "learning_rate": 5e-4, "seed": 0, "runs_directory": str(folder),
        "sampling": {"max_tokens": 8}, "buffer": {"env_ratios": [1] * len(envs)},
        "eval": {"before": False, "after": False},
        "env": envs, **settings,
    }  # fmt: skip
    path = folder / "run.toml"
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in config.items()))
    assert main(["train", "run", str(path), "--name", "run"]) == 0
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "reward/mean" in line], folder / "run"


def rollouts_of(run):
    lines = [line for file in sorted(run.glob("rollouts/step_*.jsonl")) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_five_environments_of_openenv_train_in_one_run(need, tmp_path, monkeypatch):
    need("openenv", "environments")
    monkeypatch.setenv("TEXTARENA_ENV_ID", "GuessTheNumber-v0")
    monkeypatch.setenv("TEXTARENA_DOWNLOAD_NLTK", "0")
    digits = {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}
    sums = {"dataset_name": "chain_sum", "size": 1, "dataset_config": digits}
    envs = [
        {
            "id": str(HERE / "openenv_digits.py"),
            "name": name,
            "args": {
                "name": name,
                "folder": str(OPENENV / "OpenEnv" / "envs"),
                "python": str(OPENENV / "bin" / "python"),
                **({"reset_args": sums} if name == "reasoning_gym" else {}),
            },
        }
        for name in ("echo", "grid_world", "maze", "reasoning_gym", "textarena")
    ]
    steps, run = train(tmp_path, envs, max_steps=2, batch_size=80, rollouts_per_example=16)
    rows = rollouts_of(run)
    assert [step["optim/grad_norm"] > 0 for step in steps] == [True, True]
    for env in envs:
        name = env["name"]
        mine = [row for row in rows if row["environment"] == name]
        assert (len(mine), {row["error"] for row in mine}) == (32, {None})
        assert all(f"reward/{name}/mean" in step for step in steps)
        assert len({row["reward"] for row in mine}) > 1, f"the rewards of {name} are all equal"
        if name != "echo":
            assert [row["reward"] for row in mine] == [row["metrics"]["sum_step_rewards"] for row in mine]


OLD = """
import verifiers as vf

def load_environment(length: int = 3) -> vf.Environment:
    def near(completion, answer, **kwargs):
        text = completion[-1]["content"]
        return sum(a == b for a, b in zip(text, answer)) / len(answer)

    prompt = "Reverse the text. Answer with the reversed text only.\\n\\n"
    rows = [{"question": prompt + text[:length], "answer": text[:length][::-1]} for text in ("abcd", "wxyz")]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[near]))
"""


def test_environments_of_four_contracts_train_in_one_run(need, tmp_path, monkeypatch):
    need("openenv", "environments")
    need("v1", "tasksets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near_words.py").write_text(OLD)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "train.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n')
    (tmp_path / "similar.py").write_text(
        "from difflib import SequenceMatcher\n\n"
        "async def similarity(task, trace):\n"
        "    return SequenceMatcher(None, trace.last_reply, task.answer).ratio()\n"
    )
    rewards = {"lcs": {"fn": f"{tmp_path}/similar.py:similarity"}}
    v1 = {
        "python": str(V1 / "bin" / "python"),
        "num_train_examples": 2,
        "system_prompt": "Reverse the text. Answer with the reversed text only.",
        "taskset": {"dataset_name": "words", "task": {"rewards": rewards}},
    }
    folder, python = str(OPENENV / "OpenEnv" / "envs"), str(OPENENV / "bin" / "python")
    envs = [
        {"id": str(tmp_path / "near_words.py"), "name": "old"},
        {"id": f"v1:{V1 / 'verifiers' / 'environments' / 'reverse_text'}", "name": "v1", "args": v1},
        {
            "id": f"openenv:{folder}/maze_env",
            "name": "openenv",
            "args": {
                "python": python,
                "max_turns": 2,
                "num_train_examples": 4,
                "num_eval_examples": 2,
                "observation_fields": [],
                "invalid_reward": -1.0,
                "step_errors_are_invalid": True,
                "instructions": "I think of a whole number from 0 to 7. Guess it: I say higher or lower. "
                "Answer with one number only.",
            },
        },
        {"id": str(ROOT / "environments" / "arithmetic"), "name": "whet"},
    ]
    steps, run = train(tmp_path, envs, max_steps=8, batch_size=64, rollouts_per_example=8)
    assert len(steps) == 8
    assert {row["error"] for row in rollouts_of(run)} == {None}
    curves = {name: [step[f"reward/{name}/mean"] for step in steps] for name in ("old", "v1", "openenv", "whet")}
    assert {len(curve) for curve in curves.values()} == {8}
    assert curves["openenv"][-1] > curves["openenv"][0] + 0.5
    means = [step["reward/mean"] for step in steps]
    assert sum(means[-2:]) > sum(means[:2]) + 0.2
