"""`integrations.verl` and `integrations.skyrl`, through the interfaces of the real packages.

Their trainers need a GPU and are not run: whet's engine samples in place of their servers (`make trainers`).
"""

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from whet.errors import ConfigError

PATHS = {"verl 0.8": [], "verl 0.9": ["verl-0.9"], "skyrl": ["SkyRL", "SkyRL/skyrl-gym"]}


@pytest.mark.parametrize("name", ["verl", "skyrl"])
def test_without_the_trainer_the_version_that_works_is_named(name):
    with pytest.raises(ConfigError, match=f"{name} cannot be imported here .*; whet works with "):
        importlib.import_module(f"whet.integrations.{name}")


@pytest.fixture(scope="module", params=PATHS)
def told(request, need, tmp_path_factory):
    """16 rollouts of calculator, and each turn that was sampled for them."""
    out, name = tmp_path_factory.mktemp("told") / "out.json", request.param.partition(" ")[0]
    venv = need("trainers", name)
    path = os.pathsep.join(str(venv / one) for one in PATHS[request.param])
    done = subprocess.run(
        [venv / "bin" / "python", Path(__file__).with_name("trainers_worker.py"), name, out],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=out.parent,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return name, json.loads(out.read_text())


@pytest.mark.parts
def test_ids_masks_and_logprobs_are_those_that_were_sampled(told):
    _, told = told
    turns = {}
    for rollout, prompt, ids, logprobs in told["turns"]:
        turns.setdefault(rollout, []).append((prompt, ids, logprobs))
    expected = []
    for own in turns.values():
        start, whole = len(own[0][0]), own[-1][0] + own[-1][1]
        mask, probabilities = [0] * len(whole), [0.0] * len(whole)
        for prompt, ids, logprobs in own:
            assert whole[: len(prompt)] == prompt
            mask[len(prompt) : len(prompt) + len(ids)] = [1] * len(ids)
            probabilities[len(prompt) : len(prompt) + len(ids)] = logprobs
        expected.append((whole[:start], whole[start:], mask[start:], probabilities[start:]))
    columns = (told["prompts"], told["responses"], told["masks"], told["logprobs"])
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    assert len(expected) == 16
    assert max(map(len, turns.values())) > 1


@pytest.mark.parts
def test_rewards_and_metrics_are_those_of_the_rubric(told):
    name, told = told
    assert {metric["num_turns"] for metric in told["metrics"]} >= {2.0}
    right = [metric["correct_by_tool"] for metric in told["metrics"]]
    assert 0 < sum(right) < 16
    if name == "verl":
        assert told["rewards"] == right
        assert told["refused"] == "environment 'compared' compares the rollouts of a group, which verl runs apart."
        return
    compared = [metric["longest"] for metric in told["metrics"]]
    assert told["rewards"] == [reward + longest for reward, longest in zip(right, compared, strict=True)]
    assert all(max(compared[start : start + 4]) == 1 for start in range(0, 16, 4))
