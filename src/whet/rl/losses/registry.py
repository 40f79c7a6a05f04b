"""Loss functions by name. The only file that knows them all."""

from whet.rl.losses.cispo import cispo
from whet.rl.losses.config import LossName
from whet.rl.losses.cross_entropy import cross_entropy
from whet.rl.losses.dro import dro
from whet.rl.losses.gspo import gspo
from whet.rl.losses.importance_sampling import importance_sampling
from whet.rl.losses.masked_is import masked_is
from whet.rl.losses.ppo import ppo
from whet.rl.losses.terms import LossFunction

LOSSES: dict[LossName, LossFunction] = {
    "masked_is": masked_is,
    "grpo": ppo,
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "dro": dro,
    "importance_sampling": importance_sampling,
    "cross_entropy": cross_entropy,
}


def loss_fn(name: LossName) -> LossFunction:
    return LOSSES[name]
