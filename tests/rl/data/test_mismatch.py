"""The mismatch of sampler and learner is split into the engine's and that of older weights, where both are seen."""

import numpy as np
import pytest

from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.batch import sequences_of
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.metrics import FreshTokens, fresh_of_batch, fresh_tokens, mismatch_metrics, probe
from whet.rl.learner.protocol import LossOutput, TokenValues
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig

NOW = 5
CONFIG = AlgorithmConfig()
ENGINE, STALE = 0.02, 0.3


def turn(prompt, runs, first=10):
    count = sum(length for _, length in runs)
    tokens = {
        "prompt_ids": prompt,
        "completion_ids": list(range(first, first + count)),
        "completion_mask": [1] * count,
        "completion_logprobs": [-1.0 - 0.01 * number for number in range(count)],
        "policy_version": runs,
    }
    return {"tokens": tokens, "advantage": None}


def state(*turns, reward=1.0, truncated=False):
    return {"example_id": 0, "reward": reward, "is_truncated": truncated, "trajectory": list(turns), "advantage": 0.0}


def group(*states, number=0):
    return Group(number, DrawnTask(number, 0, 0, 0), "e", list(states))


def sequence(*turns):
    [found] = sequences_of([*turns], temperature=1.0, rollout="r")
    return found


def fresh(*turns, recomputes=False):
    found = sequence(*turns)
    return found.ids[fresh_tokens(found, NOW, recomputes=recomputes)].tolist()


def test_a_turn_of_the_present_weights_is_fresh_and_one_of_older_weights_is_not():
    assert fresh(turn([1], [(NOW, 3)])) == [10, 11, 12]
    assert fresh(turn([1], [(NOW - 1, 3)])) == []
    assert fresh(turn([1], [(-1, 3)])) == []


def test_after_an_update_in_mid_turn_tokens_attend_to_older_keys_unless_the_engine_recomputes():
    mixed = turn([1], [(NOW - 1, 2), (NOW, 3)])
    assert fresh(mixed) == []
    assert fresh(mixed, recomputes=True) == [12, 13, 14]


def test_the_turn_after_a_mixed_one_is_fresh():
    first = turn([1], [(NOW - 1, 1), (NOW, 1)])
    second = turn([1, 10, 11, 2], [(NOW, 2)], first=20)
    assert fresh(first, second) == [20, 21]


def learned(groups, *, drift=STALE):
    """The batch of groups, and what a learner makes of it whose numbers differ from the engine's by +-ENGINE, and by
    +-`drift` more for tokens of older weights. Of both signs alike, so that the two do not interfere on average."""
    assembled = assemble(groups, CONFIG, RewardShaper(CONFIG), temperature=1.0)
    batch = assembled.batch
    number = np.cumsum(batch.trained) - 1
    difference = np.where(number % 2, ENGINE, -ENGINE) + np.where(number // 2 % 2, drift, -drift) * (
        batch.versions < NOW
    )
    logprobs = np.where(batch.trained, batch.logprobs + difference, 0).astype(np.float32)
    kl = (np.expm1(difference) - difference)[batch.trained]
    values = TokenValues(logprobs, np.zeros(len(batch.ids), bool))
    loss = LossOutput(0.0, batch.trained_tokens, {"kl": float(kl.sum())}, values)
    return assembled, loss


def k3(*differences):
    return float(np.mean([np.expm1(d) - d for d in differences]))


def split(groups, *, extra=None, **options):
    assembled, loss = learned(groups, **options)
    found = fresh_of_batch([assembled], [loss], NOW, recomputes=False)
    stale = loss.tokens - found.tokens
    return mismatch_metrics(found + (extra or FreshTokens()), loss, stale_tokens=stale)


def test_known_differences_are_told_apart():
    new, old = group(state(turn([1], [(NOW, 8)]))), group(state(turn([1], [(NOW - 2, 24)])), number=1)
    metrics = split([new, old])
    assert metrics["policy/fresh_frac"] == 8 / 32
    assert metrics["policy/kl_engine"] == pytest.approx(k3(ENGINE, -ENGINE), rel=1e-4)
    assert metrics["policy/logprob_diff_mean"] == pytest.approx(ENGINE, rel=1e-4)
    assert metrics["policy/logprob_diff_max"] == pytest.approx(ENGINE, rel=1e-4)
    # of three quarters of the tokens the drift; the engine's share is in both parts and cancels, up to fourth order
    assert metrics["policy/kl_stale"] == pytest.approx(0.75 * k3(STALE, -STALE), rel=2e-3)


def test_without_drift_nothing_is_called_stale():
    new, old = group(state(turn([1], [(NOW, 8)]))), group(state(turn([1], [(NOW - 2, 24)])), number=1)
    metrics = split([new, old], drift=0.0)
    assert metrics["policy/kl_stale"] == pytest.approx(0, abs=1e-8)
    assert metrics["policy/kl_engine"] == pytest.approx(k3(ENGINE, -ENGINE), rel=1e-4)


def test_in_a_batch_of_the_present_weights_all_is_the_engines():
    metrics = split([group(state(turn([1], [(NOW, 8)])))])
    assert metrics["policy/fresh_frac"] == 1
    assert "policy/kl_stale" not in metrics


def test_without_a_fresh_token_nothing_is_reported_but_that():
    assert split([group(state(turn([1], [(NOW - 1, 8)])))]) == {"policy/fresh_frac": 0.0}


def test_fresh_tokens_from_elsewhere_split_a_batch_that_has_none():
    old = [group(state(turn([1], [(NOW - 1, 24)])))]
    engine = k3(ENGINE, -ENGINE)
    metrics = split(old, extra=FreshTokens(6, 6 * engine, 6 * ENGINE, ENGINE))
    assert metrics["policy/fresh_frac"] == 6 / 24
    assert metrics["policy/kl_engine"] == pytest.approx(engine)
    assert metrics["policy/kl_stale"] == pytest.approx(k3(STALE, -STALE), rel=2e-3)


def test_tokens_without_loss_are_not_looked_at():
    config = AlgorithmConfig(mask_truncated=True)
    groups = [group(state(turn([1], [(NOW, 4)])), state(turn([1], [(NOW, 6)]), truncated=True))]
    assembled = assemble(groups, config, RewardShaper(config), temperature=1.0)
    values = TokenValues(assembled.batch.logprobs.copy(), np.zeros(len(assembled.batch.ids), bool))
    loss = LossOutput(0.0, 4, {"kl": 0.0}, values)
    assert fresh_of_batch([assembled], [loss], NOW, recomputes=False).tokens == 4


def test_a_loss_that_does_not_look_at_the_sampler_has_no_split():
    assembled, loss = learned([group(state(turn([1], [(NOW, 4)])))])
    loss.values = None
    assert fresh_of_batch([assembled], [loss], NOW, recomputes=False) is None


def probed(*groups, tokens):
    return probe(groups, CONFIG, temperature=1.0, version=NOW, recomputes=False, tokens=tokens)


def test_a_probe_takes_rollouts_with_fresh_tokens_up_to_a_budget_and_one_at_least():
    old = group(state(turn([1], [(NOW - 1, 4)])))
    new = group(state(turn([1], [(NOW, 4)])), state(turn([2], [(NOW, 4)])), number=1)
    assert probed(old, tokens=100) is None
    assert probed(tokens=100) is None
    assert probed(old, new, tokens=100).sequences == 2
    assert probed(old, new, tokens=9).sequences == 1
    assert probed(old, new, tokens=0).sequences == 1


def test_a_probe_has_the_fresh_tokens_of_its_rollouts_with_their_logprobs_and_nothing_else():
    mixed = turn([1], [(NOW - 1, 2), (NOW, 2)])
    batch = probed(group(state(mixed, turn([1, 10, 11, 12, 13, 2], [(NOW, 2)], first=20))), tokens=100)
    assert batch.ids[batch.trained].tolist() == [20, 21]
    assert batch.logprobs[batch.trained] == pytest.approx([-1.0, -1.01])
