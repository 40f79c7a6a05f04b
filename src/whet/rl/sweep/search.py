"""Which trial comes next: a new combination of values, or the next rung of one that is ahead. Pure.

A choice depends on the seed, the trial's number and the scores so far, and on nothing that a process remembers, so
that a sweep that was killed chooses what it would have chosen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import MissingExtraError
from whet.rl.sweep.config import Range, SweepConfig


@dataclass(slots=True)
class SweepTrial:
    """One combination of values, and how far its run is."""

    number: int
    values: dict[str, Any]
    targets: list[int]  # steps of each rung
    batch_size: int
    scores: list[float | None] = field(default_factory=list)  # of each rung that was reached; None: it has none
    steps: int = 0  # trained on so far
    running: bool = False  # a process is at the next rung, or was when the sweep was killed
    failed: bool = False
    note: str = ""  # why it failed, or ended by itself

    @property
    def rollouts(self) -> int:
        return self.steps * self.batch_size

    @property
    def score(self) -> float | None:
        return self.scores[-1] if self.scores else None

    @property
    def is_whole(self) -> bool:
        """Whether it was judged for the last time."""
        return len(self.scores) == len(self.targets)

    @property
    def cost(self) -> int:
        """Rollouts to the next rung."""
        return (self.targets[len(self.scores)] - self.steps) * self.batch_size


def promotable(trials: Sequence[SweepTrial], reduction: int) -> SweepTrial | None:
    """The trial that goes on to its next rung, if one may: asynchronous successive halving (ASHA).

    Of the trials that were judged at a rung the best 1 / `reduction` go on, the highest rung first. Source: Li et al.,
    "A System for Massively Parallel Hyperparameter Tuning" (1810.05934), algorithm 2.
    """
    for rung in reversed(range(max((len(trial.targets) for trial in trials), default=1) - 1)):
        judged = [trial for trial in trials if len(trial.scores) > rung]
        ranked = sorted(judged, key=lambda trial: (-_value(trial.scores[rung]), trial.number))
        for trial in ranked[: len(ranked) // reduction]:
            waits = len(trial.scores) == rung + 1 and not (trial.running or trial.failed or trial.note)
            if waits and trial.score is not None:
                return trial
    return None


def _value(score: float | None) -> float:
    return float("-inf") if score is None else score


def proposal(config: SweepConfig, seed: int, trials: Sequence[SweepTrial]) -> dict[str, Any] | None:
    """The values of the next new trial; None where there is none left."""
    number = len(trials)
    if number >= config.most_trials:
        return None
    if config.method == "tpe" or config.has_ranges:
        return _drawn(config, seed, trials)
    keys, lists = list(config.vary), [values for values in config.vary.values() if not isinstance(values, Range)]
    combinations = [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
    if config.method != "grid":
        random.Random(seed).shuffle(combinations)
    return combinations[number]


def _drawn(config: SweepConfig, seed: int, trials: Sequence[SweepTrial]) -> dict[str, Any]:
    """Values that Optuna proposes. Lists are choices by position, since Optuna knows no lists as values."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise MissingExtraError("ranges and tpe", "sweep") from error
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

    def distribution(values: Any) -> BaseDistribution:
        if not isinstance(values, Range):
            return CategoricalDistribution(tuple(range(len(values))))
        whole = isinstance(values.low, int) and isinstance(values.high, int)
        if whole:
            return IntDistribution(int(values.low), int(values.high), log=values.log)
        return FloatDistribution(values.low, values.high, log=values.log)

    space = {key: distribution(values) for key, values in config.vary.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler if config.method == "tpe" else optuna.samplers.RandomSampler
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=seed + len(trials)))
    for trial in trials:
        if trial.score is not None:
            places = {key: _place(config.vary[key], value) for key, value in trial.values.items()}
            study.add_trial(optuna.trial.create_trial(params=places, distributions=space, value=trial.score))
    drawn = study.ask(space).params
    return {key: drawn[key] if isinstance(values, Range) else values[drawn[key]] for key, values in config.vary.items()}


def _place(values: Any, value: Any) -> Any:
    return value if isinstance(values, Range) else values.index(value)
