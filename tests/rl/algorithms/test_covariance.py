"""Clip-Cov and KL-Cov against the paper's listing, written with torch alone; the tokens are chosen from a whole step.

Listing 1 of Cui et al. 2025 (arXiv:2505.22617), with its detached tokens as a constant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from whet.rl.algorithms import LossInputs, find, loss_fn
from whet.rl.data.assembly import Assembled
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.data.passes import LearningPass, passes_over
from whet.rl.learner.ratio_limits import limited
from whet.rl.sections.algorithm import AlgorithmConfig, LossConfig

TOKENS = 400


def numbers(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log p, log q and A."""
    rng = np.random.default_rng(seed)
    old = -rng.exponential(1.5, TOKENS)
    new = np.minimum(old + 0.3 * rng.normal(size=TOKENS), -1e-3)
    return torch.tensor(new, requires_grad=True), torch.tensor(old), torch.tensor(rng.normal(size=TOKENS))


def covariances(old: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    return (old - old.mean()) * (advantages - advantages.mean())


@pytest.mark.parametrize("seed", range(3))
def test_clip_cov_is_ppo_without_the_tokens_drawn_from_its_range(seed: int) -> None:
    new, old, advantages = numbers(seed)
    config = LossConfig(loss="clip_cov", cov_share=0.02, cov_low=0.5, cov_high=2.0, eps_high=0.28)
    selects = find("clip_cov", "loss").selects
    assert selects is not None
    chosen = torch.from_numpy(selects(old.numpy(), advantages.numpy(), config, np.random.default_rng(seed)))
    cov = covariances(old, advantages)
    assert chosen.sum() == 8
    assert ((cov > 0.5) & (cov < 2.0))[chosen].all()

    ratio = (new - old).exp()
    plain, clipped = -ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages
    drawn = chosen.nonzero().squeeze(1).tolist()
    none = torch.zeros((), dtype=torch.float64)
    expected = torch.stack([none if i in drawn else plain[i].maximum(clipped[i]) for i in range(TOKENS)])
    (gradient,) = torch.autograd.grad(expected.sum(), new, retain_graph=True)
    terms = loss_fn("clip_cov")(LossInputs(new, old, advantages, torch.arange(TOKENS), selected_N=chosen), config)
    torch.testing.assert_close(terms.loss_N, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(terms.loss_N.sum(), new)[0], gradient, rtol=0, atol=1e-9)
    assert terms.clipped_N is not None
    assert terms.clipped_N[chosen].all()


@pytest.mark.parametrize("seed", range(3))
def test_kl_cov_holds_the_tokens_of_the_largest_covariance(seed: int) -> None:
    new, old, advantages = numbers(seed)
    config = LossConfig(loss="kl_cov", cov_share=0.01, cov_kl=0.7)
    selects = find("kl_cov", "loss").selects
    assert selects is not None
    chosen = torch.from_numpy(selects(old.numpy(), advantages.numpy(), config, np.random.default_rng(seed)))
    assert set(chosen.nonzero().squeeze(1).tolist()) == set(covariances(old, advantages).topk(4).indices.tolist())

    expected = -(new - old).exp() * advantages + 0.7 * (new - old).abs() * chosen
    (gradient,) = torch.autograd.grad(expected.sum(), new, retain_graph=True)
    terms = loss_fn("kl_cov")(LossInputs(new, old, advantages, torch.arange(TOKENS), selected_N=chosen), config)
    torch.testing.assert_close(terms.loss_N, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(terms.loss_N.sum(), new)[0], gradient, rtol=0, atol=1e-9)


def test_one_token_is_chosen_where_the_share_is_less_and_none_where_none_is_in_the_range() -> None:
    _, old, advantages = numbers(0)
    for loss, keys, count in (("kl_cov", {}, 1), ("clip_cov", {}, 1), ("clip_cov", {"cov_low": 90, "cov_high": 91}, 0)):
        selects = find(loss, "loss").selects
        assert selects is not None
        config = LossConfig(loss=loss, **keys)  # type: ignore[arg-type]
        assert selects(old.numpy(), advantages.numpy(), config, np.random.default_rng(0)).sum() == count


def steps(assembled: Assembled, old_T: np.ndarray, config: AlgorithmConfig, step: int = 1) -> list[LearningPass]:
    return list(passes_over(assembled, config, old_T, seed=(0, step)))


def whole(distilled: list[bool] | None = None) -> tuple[Assembled, np.ndarray]:
    """Four sequences of ten tokens, of two groups; the learner's logprobs before the batch."""
    rng = np.random.default_rng(0)
    sequences = [TokenSequence.demonstration([1] * 10, [False] * 2 + [True] * 8) for _ in range(4)]
    batch = pack(sequences, [1.0, -1.0, 2.0, -2.0], None, [0, 0, 1, 1], distilled)
    old_T = np.where(batch.trained, -rng.exponential(1.0, len(batch.ids)), 0).astype(np.float32)
    return Assembled(batch, [], [], {}, [[1, 1], [1, 1]], [2.0, 2.0]), old_T


def test_tokens_are_chosen_from_the_step_they_are_learned_in_and_never_from_distilled_ones() -> None:
    config = AlgorithmConfig(loss="kl_cov", cov_share=0.2)
    assert config.learns_in_passes
    assembled, old_T = whole()
    (one,) = steps(assembled, old_T, config)
    assert one.batch.selected is not None
    trained = assembled.batch.trained
    cov = covariances(torch.tensor(old_T[trained]), torch.tensor(assembled.batch.advantages[trained]))
    assert set(np.flatnonzero(one.batch.selected[trained])) == set(cov.topk(6).indices.tolist())
    halves = steps(assembled, old_T, config.model_copy(update={"minibatches": 2}))
    assert [half.batch.selected.sum() for half in halves if half.batch.selected is not None] == [3, 3]
    taught, old_T = whole([True, True, False, False])
    (one,) = steps(taught, old_T, config)
    assert one.batch.selected is not None
    assert (one.batch.selected[:20].sum(), one.batch.selected[20:].sum()) == (0, 3)


def test_the_same_step_draws_the_same_tokens_and_another_step_others() -> None:
    config = AlgorithmConfig(loss="clip_cov", cov_share=0.1, cov_low=-9, cov_high=9)
    drawn = [steps(*whole(), config, step)[0].batch.selected for step in (1, 1, 2)]
    assert all(one is not None and one.sum() == 3 for one in drawn)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_what_is_chosen_goes_with_its_tokens_through_limits_and_parts_of_a_batch() -> None:
    new, old, advantages = numbers(0)
    chosen = torch.arange(TOKENS) % 3 == 0
    inputs = LossInputs(new, old, advantages, torch.arange(TOKENS), selected_N=chosen)
    terms, _ = limited(loss_fn("clip_cov"), inputs, LossConfig(loss="clip_cov", mis_limit=1.2))
    assert (terms.loss_N[chosen] == 0).all()
    assert (terms.loss_N[~chosen] != 0).any()
    batch = replace(whole()[0].batch, selected=np.arange(40) % 3 == 0)
    taken = batch.take([3, 1]).selected
    assert taken is not None
    np.testing.assert_array_equal(taken, np.r_[30:40, 10:20] % 3 == 0)
