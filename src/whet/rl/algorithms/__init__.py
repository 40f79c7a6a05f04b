"""Algorithms, one file each: how the rewards of a batch become advantages, a loss over sampled tokens, or both.

To add one, add a file to this folder that defines `ALGORITHM`; its name is then a value of `[algorithm] advantage`,
`loss`, or both. An algorithm outside of this package is given by import path. No file here imports torch or numpy
before it computes, so that configs load fast, and where neither is installed.

Advantages are made of whole groups, one value for a rollout or one for each of its completion tokens. An advantage
that the environment sets itself, of a rollout or of a step, replaces them (`rl/data/assembly.py`).

Losses are functions of tensors that are flat over N trained tokens; there is no padding to mask.

    r = exp(logprobs - sampled_logprobs)    probability of a token under the learner over that under the sampler
    A                                       the token's advantage

Where a loss weighs a token by r, it takes r from `LossInputs.log_weight_N`, which `[algorithm] tis_limit` bounds.

A loss returns one value per token and never divides: `[algorithm] aggregation` weighs them, and the batch as a whole
is divided at the optimiser step (`rl/data/aggregation.py`), so packing, micro-batches and ranks change no gradient.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from whet.errors import ConfigError, TrainingError
from whet.tasksets.refs import resolve_function, resolve_ref
from whet.types import State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from whet.rl.sections.algorithm import AlgorithmConfig, LossConfig

Array: TypeAlias = "NDArray[np.float64]"

RewardNorm = Literal["none", "group", "batch", "running"]

Part = Literal["advantages", "loss"]
KEYS: dict[Part, str] = {"advantages": "advantage", "loss": "loss"}
"""The key of `[algorithm]` that names each part."""

STD_FLOOR = 1e-4
"""Added to standard deviations: without it a group of nearly equal rewards would have enormous advantages."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredGroup:
    """All rollouts of one task, as an advantage sees them."""

    rewards_G: Array  # after reward_clip, penalties and reward_norm
    states: Sequence[State]  # trajectory, metrics, info; rewards here are those of the environment

    @property
    def completion_lengths(self) -> list[list[int]]:
        """Completion tokens of each turn of each rollout."""
        return [
            [len(step["tokens"]["completion_ids"]) for step in state["trajectory"] if step.get("tokens")]
            for state in self.states
        ]


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """The trained tokens of a micro-batch."""

    logprobs_N: Tensor  # of the learner, with gradient
    sampled_logprobs_N: Tensor
    advantages_N: Tensor
    sequence_N: Tensor  # which sequence a token is part of; whole sequences only
    tis_limit: float | None = None  # of `log_weight_N`
    group_N: Tensor | None = None  # which group a token is part of, None where there are none; may go on elsewhere
    selected_N: Tensor | None = None  # bool: what `Algorithm.selects` has chosen; None: nothing

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logprobs_N - self.sampled_logprobs_N

    @property
    def log_weight_N(self) -> Tensor:
        """log r, or with `tis_limit` C log min(r, C): truncated importance sampling (TIS).

            d exp(log_weight) / d log p = min(r, C)

        So a token of a large ratio keeps its gradient, with a weight of C. The ratio is that of learner to sampler,
        whose parts (other numerics, older weights) are not known apart for a token. Source: Yao et al. 2025, Your
        Efficient RL Framework Secretly Brings You Off-Policy RL Training (https://fengyao.notion.site/off-policy-rl).
        """
        log_ratio_N = self.log_ratio_N
        if self.tis_limit is None:
            return log_ratio_N
        return log_ratio_N - (log_ratio_N.detach() - math.log(self.tis_limit)).clamp(min=0)


@dataclass(frozen=True, slots=True, eq=False)
class LossTerms:
    """What a loss returns."""

    loss_N: Tensor
    clipped_N: Tensor | None = None  # bool: the token was dropped, or its ratio was cut; None where a loss does neither


AdvantageFunction: TypeAlias = "Callable[..., Sequence[Sequence[ArrayLike] | Array]]"
"""Of the groups of a batch, and its constants as keyword arguments: for each rollout of each group one number, or one
for each of its completion tokens, turn after turn."""

LossFunction: TypeAlias = Callable[[LossInputs, "LossConfig"], LossTerms]

Selection: TypeAlias = "Callable[[Array, Array, LossConfig, np.random.Generator], NDArray[np.bool_]]"
"""Of all trained tokens of an optimiser step, their logprobs before the batch and their advantages: which are chosen.
Random numbers are those of the generator, which is the same whenever the step is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """What a file of this folder defines, as `ALGORITHM`: advantages, a loss, or both."""

    name: str
    advantages: AdvantageFunction | None = None
    needs_whole_batch: bool = False  # the advantages of a group depend on the other groups
    advantage_keys: tuple[str, ...] = ()  # keys of `[algorithm]` that are constants of the advantages
    excludes_reward_norm: tuple[RewardNorm, ...] = ()  # the advantage would cancel it, or have nothing left after it
    loss: LossFunction | None = None
    compares_with_sampler: bool = True  # the loss reads the sampler's logprobs; False: tokens need not be sampled
    weighs_by_ratio: bool = False  # the loss weighs tokens by `LossInputs.log_weight_N`, which tis_limit bounds
    loss_constants: Mapping[str, Any] = field(default_factory=dict)
    """Constants that the loss reads from its config, and their defaults: keys of `[algorithm]` or of `loss_args`."""
    any_loss_args: bool = False  # the loss may read others, too
    selects: Selection | None = None  # tokens that the loss treats in a way of its own, chosen from a whole step

    def check_args(self, part: Part, args: Mapping[str, Any]) -> None:
        """Raises `ValueError` for an argument in `advantage_args` or `loss_args` that has no effect, or is missing."""
        where = f"{KEYS[part]}_args: {KEYS[part]} = {self.name}"
        if part == "advantages":
            assert self.advantages is not None
            try:
                inspect.signature(self.advantages).bind((), **args)
            except TypeError as error:
                raise ValueError(f"{where} cannot be called with these: {error}") from None
        elif not self.any_loss_args and (unknown := args.keys() - self.loss_constants):
            raise ValueError(f"{where} does not use {', '.join(sorted(unknown))}, which would have no effect")

    def check_limits(self, config: LossConfig) -> None:
        """Raises `ValueError` for a limit on ratios that has no effect on this loss."""
        if config.mis_limit is not None and not self.compares_with_sampler:
            raise ValueError(f"mis_limit would have no effect: loss = {self.name} has no ratio")
        if config.tis_limit is not None and not self.weighs_by_ratio:
            able = ", ".join(name for name, other in algorithms().items() if other.weighs_by_ratio)
            raise ValueError(
                f"tis_limit would have no effect: loss = {self.name} does not weigh a token by its ratio without a "
                f"bound. It is for {able}, and for an Algorithm of your own that says weighs_by_ratio."
            )


@cache
def algorithms() -> dict[str, Algorithm]:
    """Every algorithm of this folder, by name."""
    by_name = dict[str, Algorithm]()
    for module in pkgutil.iter_modules(__path__):
        algorithm = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ALGORITHM", None)
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"{__name__}.{module.name} defines no ALGORITHM; each file of this folder defines one.")
        if algorithm.name in by_name:
            raise TypeError(f"{__name__}.{module.name}: there is already an algorithm named '{algorithm.name}'.")
        by_name[algorithm.name] = algorithm
    return by_name


def names_of(part: Part) -> list[str]:
    """Algorithms of this folder that have this part."""
    return [name for name, algorithm in algorithms().items() if getattr(algorithm, part) is not None]


def find(name: str, part: Part) -> Algorithm:
    """The algorithm of that name, or the one that an import path such as `my_package.algorithms:mine` leads to.

    An import path leads to an `Algorithm`, or to the function itself: `advantages(groups)`, which is then assumed to
    need the whole batch, or `loss(inputs, config)`. Raises `ConfigError` for a path that leads to neither.
    """
    if ":" not in name:
        return algorithms()[name]
    where = f"[algorithm] {KEYS[part]}"
    algorithm = resolve_ref(name, where)
    if not isinstance(algorithm, Algorithm):
        function = resolve_function(name, where)
        if part == "advantages":
            return Algorithm(name=name, advantages=function, needs_whole_batch=True)
        return Algorithm(name=name, loss=partial(_checked_loss, name, function), any_loss_args=True)
    if getattr(algorithm, part) is None:
        raise ConfigError(f"{where}: the algorithm '{name}' has no {part}.")
    if algorithm.loss is None:
        return replace(algorithm, name=name)
    selects = None if algorithm.selects is None else partial(_selected_with_constants, algorithm)
    loss = partial(_checked_loss, name, partial(_with_constants, algorithm))
    return replace(algorithm, name=name, loss=loss, selects=selects)


def check_imported(config: AlgorithmConfig) -> None:
    """Raises `ConfigError` where an import path leads to no algorithm, or to one that refuses its arguments."""
    names: tuple[tuple[Part, str, Mapping[str, Any]], ...] = (
        ("advantages", config.advantage, config.advantage_constants),
        ("loss", config.loss, config.loss_args),
    )
    for part, name, args in names:
        algorithm = find(name, part)
        try:
            algorithm.check_args(part, args)
            if part == "loss" and config.old_logprobs == "sampler":
                algorithm.check_limits(config)
        except ValueError as error:
            raise ConfigError(f"[algorithm] {error}.") from None


def loss_fn(name: str) -> LossFunction:
    """The loss of that name or import path."""
    function = find(name, "loss").loss
    assert function is not None, "find returns an algorithm with a loss"
    return function


def advantages_of(
    groups: Sequence[ScoredGroup], name: str, constants: Mapping[str, Any] | None = None
) -> list[list[Array]]:
    """For each rollout of each group, its advantage: of shape () for all of its completion tokens, or one for each.

    Raises `TrainingError` where the algorithm returned something else.
    """
    import numpy as np

    function = find(name, "advantages").advantages
    assert function is not None, "find returns an algorithm with advantages"
    by_group = function(groups, **(constants or {}))
    try:
        advantages = [[np.asarray(value, np.float64) for value in values] for values in by_group]
    except (TypeError, ValueError) as error:
        raise TrainingError(f"the advantage {name} should return numbers for each rollout: {error}.") from error
    sizes, wanted = [len(values) for values in advantages], [len(group.rewards_G) for group in groups]
    if sizes != wanted:
        raise TrainingError(
            f"the advantage {name} should return one value for each rollout of each group: groups of {wanted} rollouts "
            f"were given, and {sizes} values returned."
        )
    for group, values in zip(groups, advantages, strict=True):
        if all(value.ndim == 0 for value in values):
            continue
        for value, lengths in zip(values, group.completion_lengths, strict=True):
            if value.shape not in ((), (sum(lengths),)):
                raise TrainingError(
                    f"the advantage {name} should return, for a rollout, one number or one for each of its "
                    f"{sum(lengths)} completion tokens; it returned values of shape {value.shape}."
                )
    return advantages


def _with_constants(algorithm: Algorithm, inputs: LossInputs, config: LossConfig) -> LossTerms:
    """The loss of an imported algorithm, with the constants that its config does not set."""
    assert algorithm.loss is not None
    return algorithm.loss(inputs, _completed(algorithm, config))


def _selected_with_constants(
    algorithm: Algorithm, logprobs_N: Array, advantages_N: Array, config: LossConfig, random: np.random.Generator
) -> NDArray[np.bool_]:
    assert algorithm.selects is not None
    return algorithm.selects(logprobs_N, advantages_N, _completed(algorithm, config), random)


def _completed(algorithm: Algorithm, config: LossConfig) -> LossConfig:
    constants = {**algorithm.loss_constants, **config.loss_args}
    keys = {key: value for key, value in constants.items() if key in type(config).model_fields}
    rest = {key: value for key, value in constants.items() if key not in keys}
    return config.model_copy(update={**keys, "loss_args": rest})


def _checked_loss(name: str, function: Callable[..., Any], inputs: LossInputs, config: LossConfig) -> LossTerms:
    """What an imported loss returns. Raises `TrainingError` where that is not one value per token."""
    terms = function(inputs, config)
    if not isinstance(terms, LossTerms) or terms.loss_N.shape != inputs.logprobs_N.shape:
        returned = f"values of shape {tuple(terms.loss_N.shape)}" if isinstance(terms, LossTerms) else repr(type(terms))
        raise TrainingError(
            f"the loss {name} should return LossTerms with one value for each of the "
            f"{len(inputs.logprobs_N)} tokens; it returned {returned}."
        )
    return terms
