"""`integrations.rllm`: environments of whet in rLLM, and what its page on environments of verifiers describes."""

import contextlib
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from whet.errors import ConfigError
from whet.inference.model_names import resolve_model

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-trainers"
PYTHON = VENV / "bin" / "python"
EXAMPLE = VENV / "rllm" / "examples" / "verifiers_env"
WORKER = Path(__file__).with_name("rllm_worker.py")
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TINKER_TELEMETRY": "0", "PYTHONPATH": str(VENV / "rllm")}
ENV.pop("TINKER_API_KEY", None)
SCRIPTS = {  # of the page, and a few values of what they say
    "train_verifiers_tinker.sh": {
        "rllm.backend": "tinker",
        "training.group_size": 16,
        "model.lora_rank": 32,
        "rllm.rollout.n": 16,
        "rllm.data.train_batch_size": 64,
        "rllm.workflow.retry_limit": 3,
    },
    "test_train.sh": {
        "rllm.backend": "tinker",
        "training.group_size": 4,
        "verifiers.max_samples": 20,
        "rllm.trainer.total_epochs": 1,
        "rllm.algorithm.adv_estimator": "grpo",
    },
    "train_verifiers.sh": {
        "rllm.backend": "verl",
        "rllm.rollout.n": 8,
        "rllm.rollout.train.temperature": 0.7,
        "trainer.n_gpus_per_node": 1,
        "actor_rollout_ref.model.path": "Qwen/Qwen3-4B",
    },
}


def test_without_rllm_the_version_that_works_is_named():
    with pytest.raises(ConfigError, match=r"rllm cannot be imported here .*; whet works with rLLM 0\.3"):
        importlib.import_module("whet.integrations.rllm")


@pytest.fixture(scope="module")
def installed(need):
    need("trainers", "rllm", "verl")


def run(*command, **env):
    return subprocess.run(
        command, cwd=env.pop("cwd", ROOT), env={**ENV, **env}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def worker(tmp_path, mode, *arguments, **env):
    out = tmp_path / "out.json"
    done = run(PYTHON, WORKER, mode, out, *arguments, cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture
def served(tmp_path):
    """Key and address of `whet tinker serve`, and the folder of whet/tiny, from which rLLM loads its tokenizer."""
    model = str(resolve_model("whet/tiny"))
    command = [Path(sys.executable).with_name("whet"), "tinker", "serve", model, "--data", tmp_path / "data", "-p", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENV)
    with contextlib.ExitStack() as stack:
        stack.callback(server.wait)
        stack.callback(server.terminate)
        key = re.search(r"tml-\S+", server.stderr.readline())[0]
        yield key, re.search(r"http://\S+(?=:)[^:]*:\d+", server.stderr.readline())[0], model


def trained(tmp_path, served, mode, **values):
    """What rLLM trained on at whet's server: with the command of docs/from-rllm.md, and other values of its keys."""
    key, url, model = served
    text = (ROOT / "docs" / "from-rllm.md").read_text(encoding="utf-8")
    printed = shlex.split(re.search(r"python -m whet\.integrations\.rllm((?:.*\\\n)+.*)", text)[1].replace("\\\n", " "))
    values |= {"tinker_base_url": url, "model.name": model}
    arguments = []
    for argument in printed:
        name, _, value = argument.partition("=")
        arguments.append(f"{name}={values.pop(name.lstrip('+'), value)}")
    assert not values
    return worker(tmp_path, mode, *arguments, TINKER_API_KEY=key)


def turns(ids, mask, logprobs):
    """The sampled turns of a trained sequence, whose mask and logprobs are of its ids from the second on."""
    edges = [i for i, (before, now) in enumerate(zip([0.0, *mask], [*mask, 0.0], strict=True)) if before != now]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield tuple(ids[: start + 1]), tuple(ids[start + 1 : end + 1]), tuple(logprobs[start:end])


def assert_exact(told):
    """What was trained is what was sampled, turn by turn: each once, with its context and its logprobs."""
    assert told["turns"]
    seen = Counter(turn for sequence in told["trained"] for turn in turns(*sequence))
    assert seen == Counter((tuple(prompt), tuple(ids), tuple(logprobs)) for prompt, ids, logprobs in told["turns"])


@pytest.mark.parts
@pytest.mark.timeout(1200)
def test_rllm_learns_a_tool_with_the_tinker_backend(installed, tmp_path, served):
    told = trained(tmp_path, served, "train")
    means = [sum(rewards) / len(rewards) for rewards in told["rewards"]]
    assert len(means) == 16
    assert sum(means[-4:]) / 4 > sum(means[:4]) / 4 + 0.1
    assert len(told["turns"]) > 16 * 64
    assert_exact(told)


@pytest.mark.parts
def test_workflow_of_the_example_trains_over_the_alias(installed, tmp_path, served):
    values = {"verifiers.env_id": "reverse-text", "verifiers.max_samples": 16, "trainer.total_epochs": 1}
    told = trained(tmp_path, served, "example", **values)
    assert [len(rewards) for rewards in told["rewards"]] == [64, 64]
    assert len(set(told["rewards"][0])) > 1
    assert_exact(told)


@pytest.mark.parts
def test_groups_are_scored_as_groups_and_a_failure_is_retried(installed, tmp_path):
    told = worker(tmp_path, "engine")
    groups = {}
    for episode in told["episodes"]:
        assert episode["termination_reason"] == "env_done"
        (trajectory,) = episode["trajectories"]
        groups.setdefault(episode["id"].partition(":")[0], []).append(trajectory["reward"])
    assert set(groups["0"]) == set(groups["2"]) == {4.0, 5.0}
    assert len(groups["1"]) == 4
    assert told["failed"]
    assert told["left"] == 0


@pytest.mark.parts
@pytest.mark.parametrize(("script", "values"), SCRIPTS.items())
def test_scripts_of_the_page_are_configs_as_printed(installed, tmp_path, script, values):
    """A `python3` first on the path gives whet's command the arguments that are for the example's module."""
    wrapper = tmp_path / "python3"
    command = shlex.join(map(str, (PYTHON, WORKER, "config", tmp_path / "out.json")))
    wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {command} "$@"\n')
    wrapper.chmod(0o755)
    done = run("bash", EXAMPLE / script, cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr[-3000:]
    config = json.loads((tmp_path / "out.json").read_text())
    for key, value in values.items():
        found = config
        for part in key.split("."):
            found = found[part]
        assert found == value, key


@pytest.mark.parts
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no environment is named"),
        (("+verifiers.env_id=reverse-text", "+verifiers.seed=1"), "verifiers.seed is no key"),
        (("+backend=fireworks",), "fireworks"),
        (("--config-name=other",), "configs are tinker_rl_trainer"),
        (("+verifiers.env_id=reverse-text", "+verifiers.sampling_args={seed: 1}"), "rLLM's engines do not take seed"),
        (("+verifiers.env_id=there-is-none",), "environment 'there-is-none'"),
        (("learning_rate=1",), "Key 'learning_rate' is not in struct"),
    ],
)
def test_mistake_is_one_line(installed, tmp_path, arguments, expected):
    given = arguments if any("backend" in one for one in arguments) else ("+backend=tinker", *arguments)
    done = run(PYTHON, "-m", "whet.integrations.rllm", *given, cwd=tmp_path)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
