"""Loss functions by name or import path. The only file that knows them all."""

from typing import cast

from whet.errors import TrainingError
from whet.rl.losses.cispo import cispo
from whet.rl.losses.config import LossConfig, LossName
from whet.rl.losses.cross_entropy import cross_entropy
from whet.rl.losses.dro import dro
from whet.rl.losses.gspo import gspo
from whet.rl.losses.importance_sampling import importance_sampling
from whet.rl.losses.masked_is import masked_is
from whet.rl.losses.ppo import ppo
from whet.rl.losses.terms import LossFunction, LossInputs, LossTerms
from whet.tasksets.refs import resolve_function

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


def loss_fn(name: str) -> LossFunction:
    """The loss of that name, or the function that an import path such as `my_package.losses:clipped` leads to.

    A function of one's own is called as those here are, `function(inputs: LossInputs, config: LossConfig)`, and returns
    `LossTerms`; its constants are in `config.loss_args`. Raises `ConfigError` for a path that leads nowhere.
    """
    if ":" not in name:
        return LOSSES[cast(LossName, name)]
    function = resolve_function(name, "[algorithm] loss")

    def checked(inputs: LossInputs, config: LossConfig) -> LossTerms:
        terms = function(inputs, config)
        if not isinstance(terms, LossTerms) or terms.loss_N.shape != inputs.logprobs_N.shape:
            found = (
                f"values of shape {tuple(terms.loss_N.shape)}" if isinstance(terms, LossTerms) else repr(type(terms))
            )
            raise TrainingError(
                f"the loss {name} should return LossTerms with one value for each of the "
                f"{len(inputs.logprobs_N)} tokens; it returned {found}."
            )
        return terms

    return checked
