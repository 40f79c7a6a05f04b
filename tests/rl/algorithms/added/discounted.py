"""An algorithm in one file, for `test_new_algorithm.py`: the later a token, the more it has earned; ratios are bounded.

A_t  = (r - mean(r)) discount^(T - 1 - t)
loss = -A min(p / q, bound)
"""

import numpy as np

from whet.rl.algorithms import Algorithm, LossTerms


def advantages(groups, *, discount=1.0):
    return [
        [
            (reward - group.rewards_G.mean()) * discount ** np.arange(sum(lengths))[::-1]
            for reward, lengths in zip(group.rewards_G, group.completion_lengths, strict=True)
        ]
        for group in groups
    ]


def loss(inputs, config):
    ratio_N, bound = inputs.log_ratio_N.exp(), config.loss_args["bound"]
    return LossTerms(-inputs.advantages_N * ratio_N.clamp(max=bound), ratio_N > bound)


ALGORITHM = Algorithm(name="discounted", advantages=advantages, loss=loss, loss_constants={"bound": 4.0})
