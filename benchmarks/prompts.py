"""What a prompt search costs and how often it is wrong, against plain `gepa` 0.1.4 in the same run, on simulated tasks.

    python benchmarks/prompts.py [--only acceptance equals reach confirmation] [--tasks 50] [--pairs 20000] [--json]

The peer is `gepa.optimize` with the defaults of `verifiers` 0.1.14: 500 calls, 100 training and 50 validation examples,
minibatches of 3, a proposal is accepted that has a higher sum on its minibatch. Ours has the defaults of `whet gepa
run`: of its 500 calls 100 are kept back for the confirmation. The tasks are those of `_prompt_tasks.py`; both sides
have the same tasks, the same rewards for the same calls, and a reflection model with the same luck.

`acceptance`    one proposal: how often an equal prompt is accepted, and better ones; how many calls that takes.
`equals`        whole searches in which no proposal is better or worse: wrong acceptances, wrong winners, and how often
                the confirmation is taken in as well.
`reach`         calls until the best candidate, by the search's own validation mean, is the planted optimum: all
                instructions and no harmful line. A search that does not get there counts as its whole budget. Besides
                the figure, on tasks that differ: tasks of one kind each, and plain `gepa` with our choice of parents.
`confirmation`  how often the interval holds the true difference.

Exits with 1 where a figure is missed: false acceptance of an equal prompt at p = 0.5 above 5 %, or calls to reach the
optimum above 0.8 of the peer's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch

from _prompt_tasks import SEED, Calls, Proposals, Settings, Task
from whet.gepa.calls.budget import pairs_for
from whet.gepa.config import GepaConfig
from whet.gepa.reflection.rollout_records import make_records
from whet.gepa.search.acceptance import Criterion, differences_of, gate, gate_chance
from whet.gepa.search.search import LikelyBest, compare, confirm, search
from whet.gepa.types import CandidateRecord, RolloutCall, Scored, SearchObserver

Result = dict[str, Any]
Reward = Callable[[random.Random, float], float]
SCENARIOS = ("acceptance", "equals", "reach", "confirmation")
CONFIG = GepaConfig(name="benchmark", env=({"id": "task"},))
MOST_FALSE, MOST_RATIO = 0.05, 0.8
FIGURE, PLAIN_FIGURE = "binary, 0.5 and equal", "binary, 0.5, perfect ones too"
KINDS = {
    "default": Settings(),
    "two instructions": Settings(instructions=2, needed=1),
    "four instructions": Settings(instructions=4),
    "all needed at once": Settings(needed=3),
    "little insight": Settings(insight=0.3),
    "much insight": Settings(insight=0.8),
    "small gains": Settings(low=0.1, high=0.6),
    "nearly no noise": Settings(low=0.02, high=0.98, spread=0.0),
    "continuous rewards": Settings(continuous=True),
    "a trap": Settings(instructions=2, trap=0.2),
}


def binary(draw: random.Random, p: float) -> float:
    return float(draw.random() < p)


def continuous(draw: random.Random, p: float) -> float:
    return min(max(draw.gauss(p, 0.25), 0.0), 1.0)


@dataclass
class Judged:
    """Proposals of one kind."""

    ours: list[bool]
    plain: list[bool]
    calls: list[int]  # of ours, the parent's minibatch included

    def row(self) -> Result:
        accepted = [calls for calls, ok in zip(self.calls, self.ours, strict=True) if ok]
        rejected = [calls for calls, ok in zip(self.calls, self.ours, strict=True) if not ok]
        return {
            "accepted": statistics.fmean(self.ours),
            "plain": statistics.fmean(self.plain),
            "calls_of_accepted": statistics.fmean(accepted) if accepted else None,
            "calls_of_rejected": statistics.fmean(rejected) if rejected else None,
        }


def _between(differences: Sequence[float], begin: int, end: int) -> Sequence[float]:
    return differences[begin:end]


def judge(
    reward: Reward, parent: float, candidate: float, pairs: int, seed: int, perfect: float | None = CONFIG.perfect_score
) -> Judged:
    """Proposals for a parent and a candidate of these chances; none is made for a minibatch that is perfect."""
    criterion, draw = Criterion(), random.Random(f"{seed}/{reward.__name__}/{parent}/{candidate}")
    size, total = CONFIG.minibatch_size, CONFIG.num_val
    judged = Judged([], [], [])
    while len(judged.ours) < pairs:
        before = [reward(draw, parent) for _ in range(size)]
        if perfect is not None and min(before) >= perfect:
            continue
        after = [reward(draw, candidate) for _ in range(size)]
        judged.plain.append(sum(after) > sum(before))
        accepted, calls = False, 2 * size
        if gate(before, after):
            known, new = ([reward(draw, p) for _ in range(total)] for p in (parent, candidate))
            differences = differences_of(known, new)
            chance = gate_chance(before, after, perfect)
            result = criterion.judge(total, chance, partial(_between, differences))
            accepted, calls = result.accepted, calls + len(result.differences)
        judged.ours.append(accepted)
        judged.calls.append(calls)
    return judged


def measure_acceptance(pairs: int, seed: int) -> Result:
    rows: Result = {PLAIN_FIGURE: judge(binary, 0.5, 0.5, pairs, seed, perfect=None).row()}
    for reward in (binary, continuous):
        for p in (0.1, 0.3, 0.5, 0.7, 0.9):
            rows[f"{reward.__name__}, {p} and equal"] = judge(reward, p, p, pairs, seed).row()
    for reward in (binary, continuous):
        for gain in (-0.2, 0.1, 0.2, 0.3):
            rows[f"{reward.__name__}, 0.5 and {gain:+.1f}"] = judge(reward, 0.5, 0.5 + gain, pairs // 4, seed).row()
    return {"pairs": pairs, "rows": rows}


class Progress(SearchObserver):
    """An observer that notes when the best candidate is first the planted optimum."""

    def __init__(self, task: Task) -> None:
        self.best: CandidateRecord | None = None
        self.reached: int | None = None
        self._task = task

    def decided(self, record: CandidateRecord) -> None:
        if record.val_mean is None or (self.best is not None and record.val_mean <= (self.best.val_mean or 0.0)):
            return
        self.best = record
        if self.reached is None and self._task.optimal(record.texts):
            self.reached = record.calls_after


@dataclass(frozen=True)
class Searched:
    """One search."""

    reached: int | None  # calls
    won: bool  # whether the planted optimum was the best in the end
    proposals: int
    accepted: int
    best: dict[str, str]


def ours(task: Task, number: int) -> Searched:
    most = CONFIG.max_calls - 2 * pairs_for(CONFIG.max_calls, None)
    calls, progress = Calls(task, most), Progress(task)
    train, val = task.examples("train", CONFIG.num_train), task.examples("val", CONFIG.num_val)
    config = CONFIG.model_copy(update={"seed": number})
    found = search(config, SEED, train, val, calls, Proposals(task), progress)
    assert calls.begun <= most
    accepted = sum(one.verdict == "accepted" for one in found.candidates)
    best = found.best.texts
    return Searched(progress.reached, task.optimal(best), len(found.candidates) - 1, accepted, best)


class PlainAdapter:
    """The least that `gepa.optimize` needs."""

    def __init__(self, task: Task, calls: Calls) -> None:
        self._calls, self._proposals = calls, Proposals(task)
        self.proposals = 0

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        scored = self._calls.score(candidate, batch, "minibatch")
        return EvaluationBatch([None] * len(batch), [one.reward for one in scored], scored)

    def make_reflective_dataset(self, candidate: dict[str, str], batch: Any, components: list[str]) -> Any:
        return {name: make_records(batch.trajectories, name, ()) for name in components}

    def propose_new_texts(self, candidate: dict[str, str], records: Any, components: list[str]) -> dict[str, str]:
        self.proposals += 1
        return self._proposals(candidate, records, components)


class PlainProgress:
    """A callback of the library."""

    def __init__(self, task: Task, calls: Calls) -> None:
        self.best: dict[str, str] = {}
        self.reached: int | None = None
        self.accepted = -1  # the seed is not
        self._task, self._calls = task, calls

    def on_valset_evaluated(self, event: Any) -> None:
        self.accepted += 1
        if event["is_best_program"]:
            self.best = event["candidate"]
            if self.reached is None and self._task.optimal(self.best):
                self.reached = self._calls.begun


class Silent:
    def log(self, message: str) -> None: ...


def plain(task: Task, number: int, selection: Any = "pareto") -> Searched:
    calls = Calls(task, None)
    adapter, progress = PlainAdapter(task, calls), PlainProgress(task, calls)
    optimize(
        seed_candidate=dict(SEED),
        trainset=task.examples("train", CONFIG.num_train),
        valset=task.examples("val", CONFIG.num_val),
        adapter=adapter,  # type: ignore[arg-type]
        candidate_selection_strategy=selection,
        reflection_minibatch_size=CONFIG.minibatch_size,
        max_metric_calls=CONFIG.max_calls,
        callbacks=[progress],  # type: ignore[list-item]
        logger=Silent(),
        track_best_outputs=False,
        seed=number,
    )
    reached = progress.reached if progress.reached is not None and progress.reached <= CONFIG.max_calls else None
    return Searched(reached, task.optimal(progress.best), adapter.proposals, progress.accepted, progress.best)


def plain_with_our_parents(task: Task, number: int) -> Searched:
    return plain(task, number, LikelyBest(number))


SIDES = {"whet": ours, "plain gepa": plain, "plain gepa, our parents": plain_with_our_parents}


def measure_reach(tasks: int, seed: int) -> Result:
    drawn = {"tasks that differ": [Settings.drawn(seed + number) for number in range(tasks)]}
    kinds = drawn | {name: [settings] * tasks for name, settings in KINDS.items()}
    return {"tasks": tasks, "kinds": {name: reach_of(settings, seed) for name, settings in kinds.items()}}


def reach_of(settings: Sequence[Settings], seed: int) -> Result:
    row: Result = {}
    for side, way in SIDES.items():
        found = [way(Task(one, seed + number), seed + number) for number, one in enumerate(settings)]
        row[side] = {
            "calls": statistics.median(one.reached or CONFIG.max_calls for one in found),
            "mean": statistics.fmean(one.reached or CONFIG.max_calls for one in found),
            "reached": statistics.fmean(one.reached is not None for one in found),
            "won": statistics.fmean(one.won for one in found),
            "proposals": statistics.fmean(one.proposals for one in found),
            "accepted": statistics.fmean(one.accepted for one in found),
        }
    row["ratio"] = row["whet"]["calls"] / row["plain gepa"]["calls"]
    return row


def measure_equals(searches: int, seed: int) -> Result:
    """Searches whose reflection model only ever adds lines that do nothing."""
    rows: Result = {}
    for p in (0.1, 0.3, 0.5, 0.7, 0.9):
        settings = Settings(low=p, high=p, insight=0.0, only_idle=True)
        row: Result = {}
        for side, way in list(SIDES.items())[:2]:
            found = [way(Task(settings, seed + number), seed + number) for number in range(searches)]
            row[side] = {
                "proposals": statistics.fmean(one.proposals for one in found),
                "accepted": statistics.fmean(one.accepted for one in found),
                "wrong_winner": statistics.fmean(one.best != SEED for one in found),
            }
            row[side]["share"] = row[side]["accepted"] / row[side]["proposals"]
            if side == "whet":
                wrong = [(number, one.best) for number, one in enumerate(found) if one.best != SEED]
                confirmed = [confirmed_wrongly(Task(settings, seed + number), best) for number, best in wrong]
                row[side]["confirmed"] = sum(confirmed) / searches
        rows[f"p = {p}"] = row
    return {"searches": searches, "rows": rows}


def confirmed_wrongly(task: Task, best: dict[str, str]) -> bool:
    held_out = task.examples("held_out", pairs_for(CONFIG.max_calls, None))
    return confirm(SEED, best, held_out, Calls(task, 2 * len(held_out))).real


def measure_confirmation(comparisons: int, seed: int) -> Result:
    """Binary rewards; examples differ in how hard they are, which the pairs share."""
    rows: Result = {}
    for pairs in (20, 50, 100):
        for p in (0.1, 0.5, 0.9):
            for gain in (0.0, 0.05, 0.2) if p < 0.8 else (0.0, 0.05):
                draw = random.Random(f"{seed}/{pairs}/{p}/{gain}")
                covered = real = 0
                for _ in range(comparisons):
                    ease = [draw.uniform(-0.05, 0.05) for _ in range(pairs)]
                    before, after = (
                        [_scored(n, binary(draw, q + e)) for n, e in enumerate(ease)] for q in (p, p + gain)
                    )
                    found = compare(before, after)
                    covered += found.low <= gain <= found.high
                    real += found.real
                rows[f"{pairs} pairs, {p} and {gain:+.2f}"] = {
                    "covered": covered / comparisons,
                    "real": real / comparisons,
                }
    return {"comparisons": comparisons, "rows": rows}


def _scored(number: int, reward: float) -> Scored:
    return Scored(RolloutCall("", str(number), 0), reward, None, {})


def report_acceptance(result: Result) -> bool:
    print(f"\nacceptance of one proposal, {result['pairs']:,} of equal prompts each; calls include both minibatches")
    print(f"  {'rewards of parent and candidate':<34}{'whet':>8}{'plain':>8}{'calls, accepted':>17}{'rejected':>10}")
    for name, row in result["rows"].items():
        calls = [
            f"{row[key]:.1f}" if row[key] is not None else "-" for key in ("calls_of_accepted", "calls_of_rejected")
        ]
        print(f"  {name:<34}{row['accepted']:>8.1%}{row['plain']:>8.1%}{calls[0]:>17}{calls[1]:>10}")
    return bool(max(result["rows"][row]["accepted"] for row in (FIGURE, PLAIN_FIGURE)) <= MOST_FALSE)


def report_equals(result: Result) -> bool:
    print(f"\nsearches in which every prompt is equal, {result['searches']} each")
    print(f"  {'':<9}{'':<12}{'proposals':>10}{'accepted':>10}{'share':>8}{'wrong winner':>14}{'and confirmed':>15}")
    for name, row in result["rows"].items():
        for side, of in row.items():
            confirmed = f"{of['confirmed']:.1%}" if "confirmed" in of else "-"
            print(
                f"  {name:<9}{side:<12}{of['proposals']:>10.1f}{of['accepted']:>10.2f}{of['share']:>8.1%}"
                f"{of['wrong_winner']:>14.1%}{confirmed:>15}"
            )
    return True


def report_reach(result: Result) -> bool:
    print(f"\ncalls to reach the planted optimum, {result['tasks']} tasks each: median (reached, best in the end)")
    print(f"  {'':<20}" + "".join(f"{side:>26}" for side in SIDES) + f"{'whet / plain':>14}")
    for name, row in result["kinds"].items():
        sides = "".join(f"{row[s]['calls']:>12.0f} ({row[s]['reached']:4.0%},{row[s]['won']:5.0%})" for s in SIDES)
        print(f"  {name:<20}{sides}{row['ratio']:>14.2f}")
    return bool(result["kinds"]["tasks that differ"]["ratio"] <= MOST_RATIO)


def report_confirmation(result: Result) -> bool:
    print(f"\nconfirmation, {result['comparisons']:,} comparisons each: the 95 % interval holds the true difference")
    for name, row in result["rows"].items():
        print(f"  {name:<28}{row['covered']:>8.1%}   said to be real {row['real']:.1%}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--pairs", type=int, default=20_000, help="equal proposals of `acceptance`")
    parser.add_argument("--searches", type=int, default=200, help="of `equals`")
    parser.add_argument("--tasks", type=int, default=50, help="of `reach`, of each kind")
    parser.add_argument("--comparisons", type=int, default=4000, help="of `confirmation`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the tables")
    options = parser.parse_args()
    measure: dict[str, tuple[Callable[[int, int], Result], int, Callable[[Result], bool]]] = {
        "acceptance": (measure_acceptance, options.pairs, report_acceptance),
        "equals": (measure_equals, options.searches, report_equals),
        "reach": (measure_reach, options.tasks, report_reach),
        "confirmation": (measure_confirmation, options.comparisons, report_confirmation),
    }
    missed = []
    for scenario in options.only:
        measured, size, report = measure[scenario]
        result = measured(size, options.seed)
        if not report(result):
            missed.append(scenario)
        print(json.dumps({"benchmark": "prompts", "scenario": scenario, **result}), flush=True)
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
