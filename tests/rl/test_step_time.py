"""What a step takes on paper: its parts against what a learner counts, and how they scale."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from whet.cli.main import main
from whet.inference.architecture import Architecture, read_architecture
from whet.inference.model_names import resolve_model
from whet.rl.config import RunConfig
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.memory import parameter_count
from whet.rl.plan import plan_training
from whet.rl.sections.algorithm import LossConfig
from whet.rl.step_time import Rates, Work, cpu_rates, gpu_rates, lines, step_time

UNIT = Rates("a device", products=1e9, memory=1e9, link=1e9, host=1e9)


def config(**more: Any) -> RunConfig:
    base = {"name": "r", "model": "whet/tiny", "env": [{"id": "a"}], "batch_size": 64, "sampling": {"max_tokens": 100}}
    return RunConfig.model_validate({**base, **more}).settled()


@pytest.fixture(scope="module")
def tiny() -> Architecture:
    return read_architecture(resolve_model("whet/tiny"))


def on_gpus(train: int, infer: int, **more: Any) -> RunConfig:
    deployment = {"num_train_gpus": train, "num_infer_gpus": infer}
    return config(deployment=deployment, **{"inference": {"engine": "vllm"}, "learner": {"dtype": "float32"}, **more})


def test_operations_are_those_that_a_learner_counts(tiny: Architecture, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollouts, prompt, answer = 8, 4, 60
    trained = [False] * prompt + [True] * answer
    sequences = [
        TokenSequence.demonstration(rng.integers(0, tiny.vocab_size, prompt + answer).tolist(), trained)
        for _ in range(rollouts)
    ]
    learner = make_learner(
        resolve_model("whet/tiny"),
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=1,
        seed=0,
        publish_directory=tmp_path,
    )
    counted = learner.forward_backward(pack(sequences), LossConfig(loss="cross_entropy")).flops
    learner.close()
    run = config(batch_size=rollouts, rollouts_per_example=1)
    assert step_time(tiny, run, UNIT, Work(rollouts, answer, prompt)).learning * UNIT.products == pytest.approx(
        counted, rel=0.1
    )


def test_ranks_share_the_work_and_gather(tiny: Architecture) -> None:
    one, four = (step_time(tiny, on_gpus(ranks, 1), UNIT) for ranks in (1, 4))
    assert one.learning == pytest.approx(4 * four.learning)
    assert one.update == pytest.approx(4 * four.update)
    assert one.gathering == 0 < four.gathering


def test_servers_share_the_rollouts_and_split_servers_the_layers(tiny: Architecture) -> None:
    fast = replace(UNIT, memory=1e15)  # so that products decide
    one = step_time(tiny, on_gpus(1, 1), fast).sampling
    two = step_time(tiny, on_gpus(1, 2), fast).sampling
    split = step_time(tiny, on_gpus(1, 2, inference={"engine": "vllm", "tensor_parallel_size": 2}), fast).sampling
    assert one == pytest.approx(2 * two) == pytest.approx(2 * split)


def test_few_rows_are_bound_by_the_weights_they_read(tiny: Architecture) -> None:
    slow = replace(UNIT, products=1e18)
    few, more = (step_time(tiny, config(batch_size=size), slow).sampling for size in (8, 16))
    assert few < more < 1.5 * few


@pytest.mark.parametrize(
    ("change", "bottleneck"),
    [
        ({"products": 1e6, "memory": 1e12}, "learning"),
        ({"memory": 1e6}, "sampling"),
        ({"link": 1.0}, "the link between ranks"),
        ({"host": 1.0}, "handing weights over"),
    ],
)
def test_the_slowest_part_is_named(tiny: Architecture, change: dict[str, float], bottleneck: str) -> None:
    found = step_time(tiny, on_gpus(2, 2), replace(UNIT, **change))
    assert found.bottleneck == bottleneck
    assert lines(found, 100)[1] == f"expected bottleneck: {bottleneck}; environments come on top"


def test_asynchronous_parts_run_at_once(tiny: Architecture) -> None:
    turns, at_once = (step_time(tiny, config(max_async_level=level), UNIT) for level in (0, 1))
    assert turns.step == turns.sampling + turns.learner
    assert at_once.step == max(at_once.sampling, at_once.learner)


def test_an_adapter_skips_the_gradients_of_the_weights(tiny: Architecture) -> None:
    whole, adapter = (step_time(tiny, config(**more), UNIT) for more in ({}, {"lora": {"rank": 4}}))
    assert adapter.learning < whole.learning
    assert adapter.update < whole.update
    assert adapter.weights < whole.weights


def test_gpus_by_the_names_of_their_driver() -> None:
    found = gpu_rates("NVIDIA H100 80GB HBM3")
    assert found is not None
    assert found.name == "H100"
    assert gpu_rates("NVIDIA H200") != found
    assert gpu_rates("Some Accelerator 9") is None


def test_rates_of_this_machine_are_measured() -> None:
    one, two = cpu_rates(1), plan_training(config(learner={"device": "cpu"}, inference={"device": "cpu"})).on_paper
    assert min(one.products, one.memory, one.link, one.host) > 0
    assert two is not None
    assert two.device == one.name
    assert two.step > 0


def test_a_dry_run_names_the_bottleneck_of_gpus_that_are_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model = "whet/tiny"\nnum_gpus = 8\n[[env]]\nid = "reverse-text"\n')
    assert main(["train", "run", str(path), "--dry-run", "--json"]) == 0
    paper = json.loads(capsys.readouterr().out)["on_paper"]
    assert paper["device"] == "H100"
    assert paper["gathering"] > 0
    assert paper["bottleneck"] == "sampling"


def test_a_learner_that_takes_turns_on_a_gpu_moves_what_stays_of_it_there_and_back(tiny: Architecture) -> None:
    alone, turns = (config(deployment={"colocate": both}) for both in (False, True))
    moved = step_time(tiny, turns, UNIT).weights - step_time(tiny, alone, UNIT).weights
    assert moved * UNIT.host == pytest.approx(2 * parameter_count(tiny) * (4 + 8))  # weights, and AdamW's two states
    on_cpu = replace(UNIT, overlaps=False)
    assert step_time(tiny, turns, on_cpu).weights == step_time(tiny, alone, on_cpu).weights
