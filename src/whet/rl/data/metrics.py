"""The numbers of one step, under the names of docs/training.md. Pure: groups and outputs in, a flat dict out.

`time/*` and `perf/*` depend on the clock, `engine/*` on which engines end; everything else repeats with the seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.rl.data.samples import TokenSequence
from whet.rl.learner.protocol import LossOutput, OptimOutput
from whet.rl.loop.group import Group, Tally, zero_variance_fraction
from whet.rubrics.metric_names import flat_name

NOT_SEEDED = ("time/", "perf/", "engine/")
POLICY_NAMES = {"clipped": "clip_frac", "truncated": "tis_frac", "masked": "mis_frac", "kl_reference": "kl_ref"}


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one step, by what was waited for."""

    step: float
    wait_batch: float  # the learner for rollouts
    wait_policy: float  # rollouts for the learner: nothing was in flight
    train: float
    weight_sync: float
    score: float

    @property
    def generate(self) -> float:
        """While rollouts were in flight."""
        return max(0.0, self.step - self.wait_policy)

    @property
    def overlap(self) -> float:
        """1 where the longer of sampling and learning hides the other; its share of the step where they take turns."""
        return min(1.0, max(self.generate, self.train) / self.step)


def step_metrics(
    groups: Sequence[Group],
    tally: Tally,
    sequences: Sequence[TokenSequence],
    assembly: Mapping[str, float],
    loss: LossOutput,
    optim: OptimOutput,
    timings: Timings,
) -> dict[str, float]:
    """One line of metrics.jsonl, without its step; `assembly` are those of `assembly_metrics` and `mismatch`."""
    states = [state for group in groups for state in group.states]
    attempted = len(states) + tally.replaced * len(groups[0].states) + tally.cancelled_rollouts
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    trained = np.array([int(sequence.trained.sum()) for sequence in sequences])
    per_token = {name: total / loss.tokens for name, total in loss.sums.items()}
    return {
        **reward_metrics(groups),
        **assembly,
        "groups/zero_variance_frac": zero_variance_fraction(groups),
        "groups/replaced": float(tally.replaced),
        "groups/too_old": float(tally.rejected["too old"]),
        "rollouts/errored_frac": tally.errored_rollouts / attempted,
        "rollouts/cancelled_frac": tally.cancelled_rollouts / attempted,
        "rollouts/truncated_frac": _mean([bool(state["is_truncated"]) for state in states]),
        **unread_metrics(states),
        "rollouts/branches": len(sequences) / len(states),
        "rollouts/turns": _mean([len(state["trajectory"]) for state in states]),
        "seq_len/mean": float(lengths.mean()),
        "seq_len/max": float(lengths.max()),
        "seq_len/trained_mean": float(trained.mean()),
        **staleness_metrics(sequences, optim.version - 1),
        "optim/loss": loss.loss / loss.tokens,
        "optim/grad_norm": optim.grad_norm,
        "optim/lr": optim.learning_rate,
        **{f"policy/{POLICY_NAMES.get(name, name)}": value for name, value in per_token.items()},
        "time/step": timings.step,
        "time/generate": timings.generate,
        "time/score": timings.score,
        "time/train": timings.train,
        "time/weight_sync": timings.weight_sync,
        **environment_times(groups),
        "time/wait_batch": timings.wait_batch,
        "time/wait_policy": timings.wait_policy,
        "perf/overlap": timings.overlap,
        "perf/tokens_per_s": float(trained.sum()) / timings.step,
        **utilisation(loss, timings.train),
    }


def reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards over all rollouts, per environment, per member of a group, and per function or metric of its rubric."""
    rewards_N = np.concatenate([group.rewards_G for group in groups])
    found = {"reward/mean": float(rewards_N.mean()), "reward/std": float(rewards_N.std())}
    by_environment: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for group in groups:
        by_environment[group.environment] += group.states
        if group.member:
            by_environment[f"{group.environment}/{group.member}"] += group.states
    for name, states in sorted(by_environment.items()):
        found[f"reward/{name}/mean"] = _mean([state["reward"] for state in states])
        functions: dict[str, list[float]] = defaultdict(list)
        for state in states:
            for function, value in (state.get("metrics") or {}).items():
                functions[function].append(float(value))
        for function, values in sorted(functions.items()):
            found[f"reward/{name}/{flat_name(function)}"] = _mean(values)
    return found


def unread_metrics(states: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of the answers that a parser was to read and found nothing in; nothing where none was to read any."""
    read = [bool(state["parse_failed"]) for state in states if "parse_failed" in state]
    return {"rollouts/unread_frac": _mean(read)} if read else {}


def environment_times(groups: Sequence[Group]) -> dict[str, float]:
    """Mean seconds of a rollout, per environment: in the model's turns, in the environment's, and in its scoring."""
    found: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for state in group.states:
            timing = state["timing"]
            found[f"time/{group.environment}/model"].append(timing.model.duration)
            found[f"time/{group.environment}/environment"].append(timing.setup.duration + timing.env.duration)
            found[f"time/{group.environment}/score"].append(timing.scoring.duration)
    return {name: _mean(seconds) for name, seconds in sorted(found.items())}


def utilisation(loss: LossOutput, seconds: float) -> dict[str, float]:
    """Share of the learner's peak (MFU) while it learned; nothing where the peak is not known."""
    if loss.flops is None or loss.peak_flops is None:
        return {}
    return {"perf/mfu": loss.flops / (seconds * loss.peak_flops)}


def staleness_metrics(sequences: Sequence[TokenSequence], version: int) -> dict[str, float]:
    """How many versions behind the learner the sampled tokens were."""
    behind = np.concatenate([version - sequence.versions[sequence.trained] for sequence in sequences])
    return {"staleness/mean": float(behind.mean()), "staleness/max": float(behind.max())}


def without_clock(metrics: Mapping[str, float]) -> dict[str, float]:
    """What must be identical in two runs with the same seed."""
    return {name: value for name, value in metrics.items() if not name.startswith(NOT_SEEDED)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
