"""A run of each kind on each device, in the dtypes that are its default: `-m gpu` takes those of CUDA.

What a device computes is held to the CPU in the tests of engine and learner; here the parts meet.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from whet.errors import EngineError
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.vllm.interpreter import find_vllm
from whet.rl.config import load_run_config
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.run import run_training
from whet.rl.sections.inference import InferenceConfig
from whet.rl.sft.config import SftConfig
from whet.rl.sft.run import run_sft
from whet.system.files import read_lines

QUICKSTART = Path(__file__).parents[2] / "configs" / "rl" / "quickstart.toml"
SHORT = ["--max_steps", "1", "--batch_size", "8", "--rollouts_per_example", "4", "--sampling.max_tokens", "16"]
SHORT += ["--eval.before", "false", "--eval.after", "false", "--deployment.threads", "1"]


def on(device: str) -> list[str]:
    return ["--learner.device", device, "--inference.device", device]


def test_engine_and_learner_agree_in_the_dtypes_of_the_device(device: str, tmp_path: Path) -> None:
    dtype = InferenceConfig(device=device).settled(None).dtype
    policy = load_policy("whet/tiny", dtype=dtype, device=device, threads=1)

    async def answers() -> list[Any]:
        requests = [
            SampleRequest(
                prompt_ids=[5, 6, 7, *range(20, 20 + length)], params=SamplingParams(max_tokens=12, seed=length)
            )
            for length in range(6)
        ]
        samples = await asyncio.gather(*map(policy.engine.sample, requests))
        await policy.engine.close()
        return list(zip(requests, samples, strict=True))

    sequences = []
    for request, sample in asyncio.run(answers()):
        prompt, new = len(request.prompt_ids), len(sample.ids)
        ids = np.array([*request.prompt_ids, *sample.ids], np.int32)
        trained = np.arange(prompt + new) >= prompt
        logprobs = np.zeros(prompt + new, np.float32)
        logprobs[trained] = sample.logprobs
        versions = np.where(trained, 0, -1).astype(np.int32)
        sequences.append(TokenSequence(ids=ids, trained=trained, logprobs=logprobs, versions=versions, rollout="r"))
    batch = pack(sequences)
    learner = make_learner(
        resolve_model("whet/tiny"),
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=1,
        seed=0,
        threads=1,
        publish_directory=tmp_path,
        computation=LearnerConfig(device=device),
    )
    apart = np.abs(learner.token_logprobs(batch) - batch.logprobs)[batch.trained]
    assert len(apart) > 30
    if dtype == "float32":
        assert apart.max() <= 1e-4
    else:
        assert apart.mean() <= 0.05


@pytest.mark.parametrize("more", [[], ["--lora.rank", "4", "--algorithm.kl_coef", "0.1"]], ids=["all weights", "lora"])
def test_a_run_trains_and_is_resumed(device: str, more: list[str], tmp_path: Path) -> None:
    args = [*SHORT, *on(device), *more, "--runs_directory", str(tmp_path)]
    first = run_training(load_run_config(QUICKSTART, args), json_output=True)
    assert (first.state, first.step) == ("finished", 1), first.message
    args[args.index("--max_steps") + 1] = "2"
    again = run_training(load_run_config(QUICKSTART, args), resume=True, json_output=True)
    assert (again.state, again.step) == ("finished", 2), again.message
    rows = list(read_lines(tmp_path / "quickstart" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert np.isfinite([row["optim/loss"], row["optim/grad_norm"]]).all()
        assert abs(row["policy/kl"]) < (1e-4 if device == "cpu" else 0.05)
    assert again.weights is not None
    assert any(again.weights.glob("*.safetensors"))


def test_fine_tuning_lowers_the_loss(device: str, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": word}]}
        for word in ("yes", "no", "maybe", "never")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = SftConfig.model_validate(
        {
            "name": "run",
            "max_steps": 8,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "runs_directory": tmp_path,
            "data": {"path": tmp_path / "rows.jsonl"},
            "learner": {"device": device},
            "deployment": {"threads": 1},
        }
    )
    outcome = run_sft(config, json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 8), outcome.message
    losses = [row["optim/loss"] for row in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_the_quickstart_learns_on_a_gpu(tmp_path: Path) -> None:
    args = [*on("cuda"), "--runs_directory", str(tmp_path)]
    outcome = run_training(load_run_config(QUICKSTART, args), json_output=True)
    assert outcome.state == "finished", outcome.message
    rewards = [row["reward/mean"] for row in read_lines(tmp_path / "quickstart" / "metrics.jsonl")]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.2


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lora", [(), ("--lora.rank", "4")], ids=["all weights", "lora"])
@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_engine_and_learner_take_turns_on_one_gpu(
    engine: str, lora: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without turns: the engine's logprobs are the learner's in each step, and memory is freed."""
    if engine == "vllm":
        python = os.environ.get("WHET_TEST_VLLM", sys.executable)
        monkeypatch.setenv("WHET_VLLM_PYTHON", python)
        try:
            found = find_vllm(Path(python))
        except EngineError as error:
            pytest.skip(str(error))
        if found.for_cpus:
            pytest.skip(f"{found.distribution} computes on CPUs")
    options = ["--inference.engine", engine, "--deployment.colocate", "true", "--max_steps", "4"]
    args = [*on("cuda"), *options, *lora, "--runs_directory", str(tmp_path), "--sampling.max_tokens", "32"]
    outcome = run_training(load_run_config(QUICKSTART, args), json_output=True)
    assert outcome.state == "finished", outcome.message
    rows = list(read_lines(tmp_path / "quickstart" / "metrics.jsonl"))
    assert len(rows) == 4
    assert all(row["engine/slept_bytes"] > 1_500_000 for row in rows)
    assert all(row["policy/kl"] < 0.01 for row in rows)
