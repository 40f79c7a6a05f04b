"""Losses that TRL has too give TRL's numbers: value and gradient."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from whet.rl.algorithms import LossInputs, loss_fn
from whet.rl.learner.reference import kl_to_reference
from whet.rl.sections.algorithm import LossConfig

HERE = Path(__file__).parent
THEIRS = json.loads((HERE / "trl-1.16.0.json").read_text())
OURS = {
    "ppo": LossConfig(loss="ppo", eps_high=0.28),
    "importance_sampling": LossConfig(loss="importance_sampling"),
    "gspo": LossConfig(loss="gspo", eps_low=0.05, eps_high=0.1),
    "cispo": LossConfig(loss="cispo", eps_high=0.5),  # TRL bounds the ratio itself, and only above
    "ppo with a KL": LossConfig(loss="ppo", kl_coef=0.1),
    "ppo with entropy": LossConfig(loss="ppo", entropy_coef=0.05),
}


@pytest.mark.parametrize("case", sorted(OURS))
def test_loss_and_gradient_are_those_of_trl(case):
    given = {name: torch.tensor(values, dtype=torch.float64) for name, values in THEIRS["tokens"].items()}
    config, mask = OURS[case], given["mask"].bool()
    learner = given["learner"].clone().requires_grad_()
    rows = torch.arange(len(mask))[:, None].expand(mask.shape)
    inputs = LossInputs(
        learner[mask], given["sampler"][mask], given["advantages"][:, None].expand(mask.shape)[mask], rows[mask]
    )
    loss_N = loss_fn(config.loss)(inputs, config).loss_N
    loss_N = loss_N + config.kl_coef * kl_to_reference(inputs.logprobs_N, given["reference"][mask], config.kl_estimator)
    loss = (loss_N - config.entropy_coef * given["entropies"][mask]).sum() / mask.sum()
    loss.backward()
    assert loss.item() == pytest.approx(THEIRS["cases"][case]["loss"], abs=1e-12)
    gradient = torch.tensor(THEIRS["cases"][case]["gradient"], dtype=torch.float64)
    torch.testing.assert_close(learner.grad, gradient, atol=1e-12, rtol=1e-9)


def test_every_case_of_trl_is_compared():
    assert OURS.keys() == THEIRS["cases"].keys()


def test_the_numbers_are_those_that_trl_gives():
    """Where TRL is installed (the `benchmark` extra); the numbers themselves are compared everywhere."""
    pytest.importorskip("trl", minversion="1.16.0")
    spec = importlib.util.spec_from_file_location("trl_numbers", HERE / "trl_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.numbers()
    assert found["tokens"] == THEIRS["tokens"]
    for case, numbers in THEIRS["cases"].items():
        assert found["cases"][case]["loss"] == pytest.approx(numbers["loss"], abs=1e-12)
