"""Schedules by hand, Muon against torch's, and what each update rule is given."""

import pytest
import torch
from pydantic import ValidationError

from whet.errors import RunError
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.optim import Muon, Optimizer, schedule_factor


def factors(steps, max_steps=10, **settings):
    config = OptimizerConfig(**settings)
    return [round(schedule_factor(config, step, max_steps), 4) for step in steps]


def test_the_learning_rate_rises_from_zero_and_stays():
    assert factors(range(5), warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1]


def test_a_linear_decay_begins_at_its_share_of_the_run_and_ends_near_zero():
    assert factors([0, 4, 5, 6, 9, 10, 11], schedule="linear", decay_start=0.5) == [1, 1, 1, 0.8, 0.2, 0, 0]


def test_a_cosine_decay_is_half_way_in_the_middle():
    assert factors([0, 5, 10], schedule="cosine") == [1, 0.5, 0]


def test_a_decay_never_begins_before_the_warm_up_ended():
    assert factors([3, 4, 7], schedule="linear", warmup_steps=4) == [1, 1, 0.5]


def test_a_decay_ends_at_the_least_learning_rate():
    assert factors([0, 5, 10, 12], schedule="linear", min_lr_ratio=0.2) == [1, 0.6, 0.2, 0.2]
    assert factors([0, 5, 10], schedule="cosine", min_lr_ratio=0.5) == [1, 0.75, 0.5]


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.5},
        {"type": "sgd", "betas": (0.8, 0.9)},
        {"muon_learning_rate": 1e-3},
        {"decay_start": 0.3},
        {"min_lr_ratio": 0.1},
    ],
)
def test_a_setting_without_effect_is_refused(settings):
    with pytest.raises(ValidationError, match="would have no effect"):
        OptimizerConfig(**settings)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (8, 8)])
def test_muon_moves_as_torchs_does_to_bfloat16_precision(shape):
    torch.manual_seed(0)
    start = torch.randn(shape)
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    a = Muon([mine], lr=0.1, momentum=0.9, weight_decay=0.1)
    b = torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        mine.grad = torch.randn(shape)
        theirs.grad = mine.grad.clone()
        a.step()
        b.step()
    assert (mine - theirs).norm() < 0.03 * (mine - start).norm()


def named(**shapes):
    torch.manual_seed(0)
    return [(name, torch.nn.Parameter(torch.randn(shape))) for name, shape in shapes.items()]


def optimizer(parameters, **settings):
    return Optimizer(OptimizerConfig(**settings), parameters, hidden={"matrix", "norm"})


def test_muon_takes_hidden_matrices_with_a_learning_rate_of_their_own_and_adamw_the_rest():
    parameters = named(embedding=(7, 4), matrix=(4, 4), norm=(4,))
    before = {name: p.detach().clone() for name, p in parameters}
    rule = optimizer(parameters, type="muon", muon_learning_rate=1e-9)
    for _, p in parameters:
        p.grad = torch.ones_like(p)
    rule.step(0.1, 0.5)
    moved = {name: (p - before[name]).abs().max().item() for name, p in parameters}
    assert moved["matrix"] < 1e-6
    assert moved["embedding"] == pytest.approx(0.05, rel=1e-3)
    assert moved["norm"] == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_weight_decay_is_for_matrices_only(kind):
    parameters = named(embedding=(7, 4), matrix=(4, 4), norm=(4,))
    before = {name: p.detach().clone() for name, p in parameters}
    rule = optimizer(parameters, type=kind, weight_decay=0.5)
    for _, p in parameters:
        p.grad = torch.zeros_like(p)
    rule.step(0.1, 1.0)
    for name, p in parameters:
        torch.testing.assert_close(p.detach(), before[name] * (1 if name == "norm" else 0.95))


@pytest.mark.parametrize(("kind", "setting"), [("adamw", {"betas": (0.5, 0.5)}), ("sgd", {"momentum": 0.5})])
def test_adamw_and_sgd_move_as_torchs_do(kind, setting):
    mine, theirs = named(matrix=(4, 3)), named(matrix=(4, 3))
    a = optimizer(mine, type=kind, weight_decay=0.1, **setting)
    parameters = [p for _, p in theirs]
    b = (torch.optim.AdamW if kind == "adamw" else torch.optim.SGD)(parameters, lr=0.1, weight_decay=0.1, **setting)
    for _ in range(3):
        mine[0][1].grad = torch.randn(4, 3)
        parameters[0].grad = mine[0][1].grad.clone()
        a.step(0.2, 0.5)
        b.step()
    torch.testing.assert_close(mine[0][1], parameters[0])


def test_gradients_are_divided_then_clipped_and_the_norm_is_that_in_between():
    parameters = named(matrix=(1, 2))
    rule = optimizer(parameters)
    parameters[0][1].grad = torch.tensor([[30.0, 40.0]])
    assert rule.scale_gradients(10, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(parameters[0][1].grad, torch.tensor([[0.6, 0.8]]))
    parameters[0][1].grad = torch.tensor([[30.0, 40.0]])
    assert rule.scale_gradients(10, None) == pytest.approx(5.0)
    torch.testing.assert_close(parameters[0][1].grad, torch.tensor([[3.0, 4.0]]))


def test_another_rules_state_is_refused():
    parameters = named(matrix=(2, 2))
    with pytest.raises(RunError, match="the checkpoint's optimiser is adamw, this run's is sgd"):
        optimizer(parameters, type="sgd").load_state_dict(optimizer(parameters).state_dict())
