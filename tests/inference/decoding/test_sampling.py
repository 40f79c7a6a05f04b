"""Drawing: the right distribution, the right cuts, reproducible numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from whet.inference.decoding.sampling import Cuts, draw, uniforms


def probabilities(*values: float) -> torch.Tensor:
    return torch.tensor([values]).log()


def frequencies(logits_1V: torch.Tensor, cuts: Cuts | None = None, count: int = 20_000) -> torch.Tensor:
    rows = logits_1V.expand(count, -1)
    uniform_B = torch.from_numpy(uniforms([3], [0], count)[0])
    if cuts is not None:
        cuts = Cuts(cuts.top_k_B.expand(count), cuts.top_p_B.expand(count), cuts.min_p_B.expand(count))
    tokens_B = draw(rows, uniform_B, cuts=cuts).tokens_B
    return torch.bincount(tokens_B, minlength=logits_1V.shape[1]) / count


def cuts(top_k: int = 99, top_p: float = 1.0, min_p: float = 0.0) -> Cuts:
    return Cuts(torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))


def test_tokens_come_as_often_as_they_are_probable() -> None:
    got = frequencies(probabilities(0.5, 0.0, 0.3, 0.2))
    torch.testing.assert_close(got, torch.tensor([0.5, 0.0, 0.3, 0.2]), atol=0.015, rtol=0)


def test_top_k_keeps_the_k_most_probable() -> None:
    got = frequencies(probabilities(0.1, 0.4, 0.3, 0.2), cuts(top_k=2))
    torch.testing.assert_close(got, torch.tensor([0.0, 4 / 7, 3 / 7, 0.0]), atol=0.015, rtol=0)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    got = frequencies(probabilities(0.1, 0.4, 0.3, 0.2), cuts(top_p=0.65))
    torch.testing.assert_close(got, torch.tensor([0.0, 4 / 7, 3 / 7, 0.0]), atol=0.015, rtol=0)


def test_top_p_counts_what_top_k_left() -> None:
    got = frequencies(probabilities(0.1, 0.4, 0.3, 0.2), cuts(top_k=2, top_p=0.55))
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.0, 0.0]), atol=0, rtol=0)


def test_min_p_is_relative_to_the_most_probable() -> None:
    got = frequencies(probabilities(0.1, 0.4, 0.3, 0.2), cuts(min_p=0.6))
    torch.testing.assert_close(got, torch.tensor([0.0, 4 / 7, 3 / 7, 0.0]), atol=0.015, rtol=0)


def test_the_most_probable_token_survives_every_cut() -> None:
    got = frequencies(probabilities(0.1, 0.9), cuts(top_k=1, top_p=0.0, min_p=1.0))
    assert got.tolist() == [0.0, 1.0]


def test_logprobs_are_those_before_the_cut() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    cut = Cuts(torch.full((6,), 3), torch.full((6,), 0.5), torch.zeros(6))
    drawn = draw(logits, torch.full((6,), 0.4), inverse_temperature_B=torch.full((6,), 1 / 0.7), cuts=cut)
    expected = (logits / 0.7).log_softmax(-1).gather(1, drawn.tokens_B.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(drawn.logprobs_B, expected)


def test_kept_mass_of_cuts_and_of_greedy_rows() -> None:
    logits = probabilities(0.1, 0.4, 0.3, 0.2).expand(3, -1)
    three = Cuts(torch.tensor([2, 99, 99]), torch.tensor([1.0, 0.85, 1.0]), torch.zeros(3))
    drawn = draw(logits, torch.full((3,), 0.5), cuts=three, greedy_B=torch.tensor([False, False, True]))
    assert drawn.mass_B is not None
    torch.testing.assert_close(drawn.mass_B, torch.tensor([0.7, 0.9, 0.4]))
    assert drawn.kept_BV is not None
    assert (drawn.kept_BV[:2] > 0).tolist() == [[False, True, True, False], [False, True, True, True]]
    assert draw(logits, torch.full((3,), 0.5)).mass_B is None


def test_greedy_rows_and_sampled_rows_share_a_batch() -> None:
    logits = probabilities(0.2, 0.5, 0.3).expand(2, -1)
    drawn = draw(logits, torch.tensor([0.01, 0.01]), greedy_B=torch.tensor([True, False]))
    assert drawn.tokens_B.tolist() == [1, 0]


@pytest.mark.parametrize("vocabulary", [1000, 8192])
def test_extreme_numbers_never_leave_the_support(vocabulary: int) -> None:
    tail = torch.full((1, vocabulary), -200.0)
    tail[0, 500] = 0.0
    greatest = np.float32((1 - 2.0**-24) * (1 - 2.0**-22))
    for uniform in (np.float32(2.0**-24), greatest):
        assert draw(tail, torch.tensor([float(uniform)])).tokens_B.item() == 500


@pytest.mark.parametrize("vocabulary", [5000, 8192, 49_152])
def test_a_large_vocabulary_is_drawn_from_as_by_one_cumulative_sum(vocabulary: int) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(64, vocabulary, generator=random) * 3
    logits[::2, vocabulary // 3 :] = float("-inf")  # blocks without any probability
    uniform = torch.from_numpy(uniforms(range(64), [0] * 64, 1)[:, 0])
    drawn = draw(logits, uniform)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    below = cumulative.gather(1, (drawn.tokens_B - 1).clamp_min(0)[:, None])[:, 0] * (drawn.tokens_B > 0)
    upto = cumulative.gather(1, drawn.tokens_B[:, None])[:, 0]
    assert bool(((below <= uniform + 1e-5) & (uniform - 1e-5 < upto)).all())
    assert bool(drawn.logprobs_B.isfinite().all())


def test_no_rounding_of_a_block_draws_what_a_cut_took() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(256, 8192, generator=random)
    some = Cuts(torch.full((256,), 40), torch.full((256,), 0.9), torch.zeros(256))
    for uniform in (2.0**-24, (1 - 2.0**-24) * (1 - 2.0**-22)):
        drawn = draw(logits, torch.full((256,), uniform), cuts=some)
        assert drawn.kept_BV is not None
        assert bool((drawn.kept_BV.gather(1, drawn.tokens_B[:, None]) > 0).all())


def test_numbers_depend_on_seed_and_position_alone() -> None:
    block = uniforms([1, 2, 3], [0, 5, 9], 30)
    assert np.array_equal(uniforms([2], [7], 4)[0], block[1, 2:6])
    assert not np.array_equal(block[0], uniforms([4], [0], 30)[0])


def test_numbers_are_uniform_and_uncorrelated() -> None:
    block = uniforms(list(range(300)), [0] * 300, 300)
    assert 0 < block.min() < 1e-3
    assert 1 - 1e-3 < block.max() < 1
    histogram, _ = np.histogram(block, bins=20, range=(0, 1))
    assert np.abs(histogram / block.size * 20 - 1).max() < 0.05
    for left, right in ((block[:, :-1], block[:, 1:]), (block[:-1], block[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02
