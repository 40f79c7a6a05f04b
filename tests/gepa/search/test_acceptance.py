"""Whether a proposal is better than its parent; see `whet.gepa.search.acceptance`."""

from __future__ import annotations

import itertools
import random

import pytest

from whet.gepa.search.acceptance import Criterion, differences_of, gate, gate_chance, race_order, whole


def swapped(differences):
    """Every way to swap pairs."""
    for signs in itertools.product((1, -1), repeat=len(differences)):
        yield [sign * difference for sign, difference in zip(signs, differences, strict=True)]


def accepts(draw, parent, candidate, reward, perfect=1.0, total=50):
    """Whether one proposal is accepted; None where its parent was perfect, so that none was made."""
    before, after = ([reward(draw, p) for _ in range(3)] for p in (parent, candidate))
    if min(before) >= perfect:
        return None
    if not gate(before, after):
        return False
    differences = differences_of(*([reward(draw, p) for _ in range(total)] for p in (parent, candidate)))
    chance = gate_chance(before, after, perfect)
    return Criterion().judge(total, chance, lambda begin, end: differences[begin:end]).accepted


def rate(parent, candidate, reward, proposals):
    draw = random.Random(f"{parent}/{candidate}")
    judged = [one for _ in range(proposals) if (one := accepts(draw, parent, candidate, reward)) is not None]
    return sum(judged) / len(judged)


def binary(draw, p):
    return float(draw.random() < p)


def continuous(draw, p):
    return min(max(draw.gauss(p, 0.25), 0.0), 1.0)


@pytest.mark.parametrize(("reward", "p"), [(binary, 0.5), (binary, 0.9), (continuous, 0.5)])
def test_an_equal_prompt_is_accepted_in_at_most_one_of_twenty_proposals(reward, p):
    # 1,000 proposals: three standard errors are 0.021. By its minibatch alone, 40 % to 75 % would be.
    assert rate(p, p, reward, proposals=1000) <= 0.05 + 0.021


def test_a_prompt_that_is_much_better_is_mostly_accepted_and_a_worse_one_never():
    assert rate(0.3, 0.9, binary, proposals=300) > 0.8
    assert rate(0.5, 0.3, binary, proposals=1000) < 0.005


@pytest.mark.parametrize("seed", range(60))
def test_the_p_value_is_the_share_of_all_swaps_that_get_as_far(seed):
    draw, criterion = random.Random(seed), Criterion()
    pairs = draw.randint(1, 11)
    kind = draw.choice((lambda: draw.randint(0, 1) - draw.randint(0, 1), lambda: draw.gauss(0.2, 0.5)))
    steps = whole([kind() for _ in range(pairs)])
    looks = criterion.looks(pairs)

    def how_far(differences):
        if any(criterion.leaves(differences[:look], pairs) for look in looks):
            return None
        return sum(differences), sum(differences[: looks[-1]]) if looks else 0

    seen = how_far(steps)
    as_far = [far for one in swapped(steps) if (far := how_far(one)) is not None and (seen is None or far >= seen)]
    share = 1.0 if seen is None else len(as_far) / 2**pairs
    assert criterion.p_value(steps, 0.5) == pytest.approx(share if seen is None else 0.5 * share)


@pytest.mark.parametrize("perfect", [None, 1.0])
@pytest.mark.parametrize("before", [(0, 0, 0), (0, 1, 1), (1, 0, 0)])
@pytest.mark.parametrize("after", [(1, 1, 1), (1, 1, 0), (0, 1, 1)])
def test_gate_chance_is_the_share_of_swaps_that_pass(before, after, perfect):
    ways = [
        ([c if swap else p for swap, p, c in zip(swaps, before, after, strict=True)],
         [p if swap else c for swap, p, c in zip(swaps, before, after, strict=True)])
        for swaps in itertools.product((False, True), repeat=3)
    ]  # fmt: skip
    seen = [(p, c) for p, c in ways if perfect is None or min(p) < perfect]
    passed = [(p, c) for p, c in seen if sum(c) > sum(p)]
    assert gate_chance(before, after, perfect) == pytest.approx(len(passed) / len(seen))


def test_the_gate_wants_more_not_as_much():
    assert gate([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    assert not gate([0.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    assert not gate([0.1, 0.2], [0.2, 0.1])  # whose sums differ in their last bits


def test_a_minibatch_may_be_large():
    assert gate_chance([0.0] * 40, [1.0] * 40, 1.0) == pytest.approx(0.5, abs=0.1)


def test_equal_rewards_everywhere_are_no_evidence():
    assert Criterion().p_value([0.0] * 50, 0.5) == 0.5


def test_one_reward_out_of_all_proportion_decides_nothing_alone():
    assert Criterion().p_value([1000.0, *[0.0] * 49], 0.5) == 0.25


def test_race_ends_early_for_a_clearly_worse_candidate():
    asked = []

    def worse(begin, end):
        asked.append((begin, end))
        return [-1.0] * (end - begin)

    judged = Criterion().judge(50, 0.5, worse)
    assert not judged.accepted
    assert judged.p_value is None
    assert asked == [(0, 5)]


def test_a_clearly_better_candidate_is_asked_for_everything_once():
    asked = []

    def better(begin, end):
        asked.extend(range(begin, end))
        return [float(place % 2) for place in range(begin, end)]

    judged = Criterion().judge(50, 0.5, better)
    assert judged.accepted
    assert judged.p_value < 1e-6
    assert asked == list(range(50))


@pytest.mark.parametrize("total", [1, 2, 3, 10, 47])
def test_rounds_cover_any_number_of_examples(total):
    asked = []
    Criterion().judge(total, 0.5, lambda begin, end: asked.extend(range(begin, end)) or [1.0] * (end - begin))
    assert asked == list(range(total))


def test_each_proposal_has_its_own_order_the_same_in_every_process():
    orders = [race_order(50, 0, number) for number in range(20)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 20
    assert race_order(6, 0, 1) == race_order(6, 0, 1)
    assert race_order(50, 0, 1) != race_order(50, 1, 1)
