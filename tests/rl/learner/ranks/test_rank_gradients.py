"""Ranks compute the gradients, updates and values of one process, whatever is trained and however uneven they are."""

import dataclasses

import numpy as np
import pytest
from rank_workers import relative

from whet.rl.data.batch import pack
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.ranks.rank_group import divide
from whet.rl.sections.algorithm import LossConfig

EXACT = 2e-6
"""Relative to the norm of each tensor."""
LORA = LoraConfig(rank=4)
MUON, SGD = OptimizerConfig(type="muon"), OptimizerConfig(type="sgd")
PPO, IMPORTANCE, IMITATION = (LossConfig(loss=loss) for loss in ("ppo", "importance_sampling", "cross_entropy"))
KL = LossConfig(loss="ppo", kl_coef=0.3, entropy_coef=0.01)
FAR = LossConfig(loss="ppo", kl_coef=0.1, kl_estimator="k2")  # the exponential of k3 would be of many nats
REWARD_KL = LossConfig(loss="ppo", kl_coef=0.3, kl_in="reward", kl_estimator="k1")
UNEVEN = ((6, 9), (1, 5), (2, 4))
ONE_GROUP = ((3, 9),)
TOP = LossConfig(loss="ppo", distill_top_k=5)


@dataclasses.dataclass
class Case:
    ranks: int
    model: str = "qwen3"
    loss: LossConfig = PPO
    groups: tuple = UNEVEN
    replayed: bool = False
    taught: bool = False  # every other sequence is learned from the reference
    shown: bool = False  # or from what a teacher made of something else
    options: dict = dataclasses.field(default_factory=dict)


CASES = {
    "one rank alone": Case(1, options={"micro_batch_tokens": 30}),
    "all weights, uneven micro-batches": Case(2, options={"micro_batch_tokens": 15}),
    "muon, activation checkpointing": Case(
        3, loss=IMPORTANCE, options={"optimizer": MUON, "activation_checkpointing": True, "micro_batch_tokens": 30}
    ),
    "an untied head and biases, sgd": Case(2, "llama", IMITATION, options={"optimizer": SGD}),
    "two of three without a part": Case(3, groups=ONE_GROUP, options={"micro_batch_tokens": 20}),
    "kl to the first weights": Case(2, loss=KL, options={"reference": "initial"}),
    "kl in the reward": Case(2, loss=REWARD_KL, options={"reference": "initial", "micro_batch_tokens": 15}),
    # AdamW makes a whole step of a gradient that is a rounding error: in some cases it is left out for that.
    "kl to another model": Case(
        3, loss=FAR, options={"optimizer": SGD, "reference": "{models}/llama", "micro_batch_tokens": 20}
    ),
    "a teacher beside advantages, one rank without a part": Case(
        3, loss=FAR, taught=True, groups=((2, 6), (2, 5)), options={"optimizer": SGD, "reference": "{models}/llama"}
    ),
    "a teacher without any kl": Case(
        2, loss=PPO, taught=True, options={"optimizer": SGD, "reference": "{models}/llama", "micro_batch_tokens": 20}
    ),
    "a teacher that was shown something else, one rank without a part": Case(
        3, loss=PPO, taught=True, shown=True, groups=((2, 6), (2, 5)), options={"optimizer": SGD}
    ),
    "likeliest tokens of a teacher, one rank without a part": Case(
        3, loss=TOP, taught=True, groups=((2, 6), (2, 5)), options={"optimizer": SGD, "reference": "{models}/llama"}
    ),
    "likeliest tokens, transformers' own forward": Case(
        2, "gpt2", loss=TOP, taught=True, options={"optimizer": SGD, "reference": "{models}/gpt2"}
    ),
    "likeliest tokens, lora": Case(2, loss=TOP, taught=True, options={"lora": LORA, "reference": "initial"}),
    "kl to a model of transformers' own forward": Case(2, loss=KL, options={"reference": "{models}/gpt2"}),
    "lora, kl to its base": Case(3, loss=KL, options={"lora": LORA, "reference": "initial", "micro_batch_tokens": 20}),
    "two groups that hold the same": Case(4, options={"shard_ranks": 2, "micro_batch_tokens": 20}),
    "two groups, muon, lora's base": Case(
        4, loss=KL, options={"shard_ranks": 2, "optimizer": MUON, "lora": LORA, "reference": "initial"}
    ),
    "experts, replayed": Case(3, "experts", replayed=True, options={"activation_checkpointing": True}),
    "experts under lora": Case(2, "experts", options={"lora": LORA}),
    "transformers' own forward": Case(
        2, "gpt2", options={"optimizer": SGD, "micro_batch_tokens": 30, "activation_checkpointing": True}
    ),
}


def batch_of(case, make_rollouts):
    sequences = make_rollouts(groups=case.groups)
    if case.replayed:
        rng = np.random.default_rng(3)
        chosen = [np.stack([rng.permutation(8)[:2] for _ in range(2 * len(one))]) for one in sequences]
        sequences = [
            dataclasses.replace(one, experts=experts.reshape(-1, 2, 2).astype(np.int16))
            for one, experts in zip(sequences, chosen, strict=True)
        ]
    rng = np.random.default_rng(1)
    advantages = rng.normal(size=len(sequences))
    weights = None if "lora" in case.options else rng.uniform(0.5, 2, len(sequences))
    taught = [bool(n % 2) for n in range(len(sequences))] if case.taught else None
    batch = pack(sequences, advantages, weights, range(len(sequences)), taught)
    if not case.shown:
        return batch
    return dataclasses.replace(batch, teacher_logprobs=rng.uniform(-3, -1, len(batch.ids)).astype(np.float32))


def numbers(named):
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_and_updates_are_those_of_one_process(case, models, ranks, options, make_rollouts):
    chosen, model, batch = options(**case.options), models / case.model, batch_of(case, make_rollouts)
    if "reference" in chosen:
        chosen["reference"] = chosen["reference"].format(models=models)
    step = OptimParams(1e-2, batch.trained_tokens)
    one = make_learner(model, **chosen)
    loss = one.forward_backward(batch, case.loss)
    gradients = numbers((name, p.grad) for name, p in one.weights.parameters())
    moved = one.optim_step(step)
    expected_T = one.token_logprobs(batch)
    of_reference = ("reference_logprobs",) if "reference" in chosen else ()

    division = divide(batch, case.ranks)
    answers = ranks.run(
        model,
        chosen,
        [
            [
                ("forward_backward", part, case.loss),
                ("gradients",),
                ("optim_step", step),
                ("weights",),
                ("token_logprobs", part),
                *((verb, part) for verb in of_reference),
            ]
            for part in division.parts
        ],
    )
    losses, of_ranks, steps, weights, logprobs, *of_references = zip(*answers, strict=True)
    assert all(relative(found, gradients) < EXACT for found in of_ranks)
    assert all(relative(found, numbers(one.weights.parameters())) < EXACT for found in weights)
    assert all(found == steps[0] for found in steps)
    assert steps[0].grad_norm == pytest.approx(moved.grad_norm, rel=EXACT)
    joined = division.join(losses)
    assert (joined.tokens, joined.loss) == (loss.tokens, pytest.approx(loss.loss, rel=1e-5, abs=1e-5))
    assert joined.sums == pytest.approx(loss.sums, rel=1e-5, abs=1e-5)
    assert (joined.values is None) == (loss.values is None)
    if loss.values is not None:
        np.testing.assert_allclose(joined.values.logprobs_T, loss.values.logprobs_T, atol=1e-5)
        np.testing.assert_array_equal(joined.values.clipped_T, loss.values.clipped_T)
    np.testing.assert_allclose(division.join_logprobs(logprobs), expected_T, atol=2e-5)
    for found in of_references:
        np.testing.assert_allclose(division.join_logprobs(found), one.reference_logprobs(batch), atol=2e-5)
