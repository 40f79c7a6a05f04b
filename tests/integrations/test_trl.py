"""`integrations.trl`: TRL's `GRPOTrainer` learns from rollouts of an environment of whet (`make trl`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import whet
from whet.errors import ConfigError
from whet.integrations import trl

ROOT = Path(__file__).parents[2]


def env_of(*answers):
    rows = [{"question": "same", "answer": answer} for answer in answers]
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric())


def versioned(monkeypatch, version):
    monkeypatch.setattr(trl.importlib.metadata, "version", lambda name: version)


@pytest.mark.parametrize("version", ["1.15.2", "0.24.0", "2.0.0"])
def test_another_version_is_named_with_those_that_work(monkeypatch, version):
    versioned(monkeypatch, version)
    with pytest.raises(ConfigError, match=f"trl is {version}; whet works with trl 1.16 or later, before 2"):
        trl.rollout_func(env_of("a"))


def test_rows_that_trl_cannot_tell_apart_are_refused(monkeypatch):
    versioned(monkeypatch, "1.16.0")
    trl.rollout_func(env_of("a", "a"))
    with pytest.raises(ConfigError, match="one prompt and different answers"):
        trl.rollout_func(env_of("a", "b"))


def test_rows_are_the_prompts_of_the_environment():
    assert trl.rows(env_of("a", "b"), 1) == [{"prompt": [{"role": "user", "content": "same"}]}]


@pytest.mark.parts
@pytest.mark.timeout(900)
def test_trl_learns_an_environment_of_two_turns_with_a_tool(need, tmp_path):
    venv = need("trl", "trl")
    worker, out = Path(__file__).with_name("trl_worker.py"), tmp_path / "out.json"
    command = [venv / "bin" / "python", worker, "16", out]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(out.read_text())
    means = [sum(rewards) / len(rewards) for rewards in told["rewards"]]
    assert told["logged"] == pytest.approx(means[: len(told["logged"])])
    assert sum(means[-4:]) / 4 > sum(means[:2]) / 2 + 0.2
    first = told["first"]
    for ids, mask, logprobs in zip(first["completion_ids"], first["env_mask"], first["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        assert all((logprob < 0) <= sampled for logprob, sampled in zip(logprobs, mask, strict=True))
    two_turns = [text for text in told["texts"] if text.count("<|im_end|>") == 3]  # call, result, answer
    assert two_turns
    assert all("<tool_response>" in text for text in two_turns)
