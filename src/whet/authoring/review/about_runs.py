"""What a reviewer says of what a package's code did: importing, loading, its rows, and the rewards of scripted models.

Pure: events in, findings out. The scale of rewards is what a right answer earns, where one was seen to earn anything;
else what all reward functions add up to at 1 each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from whet.authoring.review.findings import CODES, Finding
from whet.authoring.review.observations import (
    BatchCost,
    BatchStarted,
    Closed,
    Effect,
    Event,
    Found,
    Halted,
    Imported,
    Loaded,
    Read,
    Rolled,
    Rows,
    SideEffect,
    Split,
)
from whet.authoring.review.package import CheckSettings
from whet.authoring.review.probes import MAX_TURNS, RIGHT

IN_THE_SANDBOX = "The sandbox has no network and no files but the package's; with --no-sandbox it has yours."
SLOW_IMPORT_S = 5.0
SLOW_LOAD_S = 30.0
EFFECTS: dict[Effect, tuple[str, str]] = {
    "writes": ("import-writes", "importing it writes or removes a file"),
    "process": ("import-process", "importing it starts a process"),
    "network": ("import-network", "importing it uses the network"),
    "thread": ("import-thread", "importing it starts a thread"),
    "environment": ("import-environment", "importing it changes the process around it"),
}
HACK, LEAK = 0.9, 0.5  # shares of what a right answer earns
VERIFIED = 0.5  # of what the reward functions add up to
SLOW_ROLLOUT_S, SLOWEST_ROLLOUT_S = 1.0, 10.0  # of the usual probe, and of any
PAUSE_S = 1.0
TOLERANCE = 1e-9
ENDLESS = "EndlessRollout"
NOT_HERE = frozenset({"SandboxError", "SandboxUnavailableError", "TunnelError", "InfraError", "MissingExtraError"})
MAX_DIFFERENCES = 3
ELSEWHERE = "Check it where what it needs is there; --no-sandbox lets it use everything here."
Kind = TypeVar("Kind")


def first_of(kind: type[Kind], events: Sequence[Event]) -> Kind | None:
    """The first event of a kind."""
    return next((event for event in events if isinstance(event, kind)), None)


def review_files(events: Sequence[Event], ended: str | None) -> Iterator[Finding]:
    """What was found in the package's files, and whether they could be read to their end."""
    for event in events:
        if isinstance(event, Found) and event.code in CODES:
            yield Finding.of(event.code, event.message, event.fix, where=event.where)
    if not any(isinstance(event, Read) for event in events):
        yield Finding.of("unfinished", f"reading its files did not end well: {ended}")


def review_import(events: Sequence[Event], printed: str, ended: str | None) -> Iterator[Finding]:
    """Side effects of the import, and whether it works."""
    done = first_of(Imported, events)
    for event in events:
        if isinstance(event, SideEffect):
            code, message = EFFECTS[event.effect]
            yield Finding.of(code, f"{message}: {event.detail}", where=event.where)
    if done is None:
        last = printed.strip().splitlines()[-1:]
        said = f" ({last[0]})" if last else ""
        yield Finding.of("unfinished", f"importing it did not end well: {ended}{said}", "Make the import quick.")
        return
    if ended is not None:
        yield Finding.of("unfinished", f"its process did not end well after the import: {ended}", "End it well.")
    if done.error is not None:
        yield Finding.of("import-fails", done.error)
    if done.seconds > SLOW_IMPORT_S:
        yield Finding.of("import-slow", f"importing it took {done.seconds:.1f} s")
    if printed.strip() and done.error is None:
        first = printed.strip().splitlines()[0]
        yield Finding.of("import-output", f"importing it prints: {first}")


def review_load(events: Sequence[Event], ended: str | None, sandbox: bool) -> Iterator[Finding]:
    """`load_environment`: its signature, and what it gives."""
    loaded = first_of(Loaded, events)
    if loaded is None:
        yield Finding.of("unfinished", f"load_environment did not return: {ended}", "Make loading quick.")
        return
    if loaded.error is not None:
        hint = f" {IN_THE_SANDBOX}" if sandbox else ""
        yield Finding.of(
            "load-fails", loaded.error, f"Make it load with its default arguments.{hint}", where=loaded.where
        )
    if loaded.missing_keys:
        yield Finding.of("needs-keys", f"it needs {', '.join(loaded.missing_keys)}", where=loaded.where)
    rows = first_of(Rows, events)
    splits = [split for split in (rows.train, rows.eval) if split is not None] if rows is not None else []
    seconds = loaded.seconds + sum(split.seconds for split in splits)
    if seconds > SLOW_LOAD_S:
        yield Finding.of("load-slow", f"loading it and its data took {seconds:.0f} s", where=loaded.where)
    yield from _review_signature(loaded)
    if loaded.undescribed:
        yield Finding.of("readme-arguments", f"it does not name {', '.join(loaded.undescribed)}", where="README.md")


def _review_signature(loaded: Loaded) -> Iterator[Finding]:
    named = [argument for argument in loaded.arguments if not argument.open]
    for lacking, what in (
        ([one.name for one in named if not one.typed], "no type"),
        ([one.name for one in named if not one.has_default], "no default"),
        ([one.name for one in named if not one.documented], "no line in the docstring's Args"),
    ):
        if lacking:
            yield Finding.of("signature", f"{what}: {', '.join(lacking)}", where=loaded.where)
    for argument in loaded.arguments:
        if argument.open:
            yield Finding.of(
                "signature",
                f"'{argument.name}' takes whatever is given, misspelt arguments as well",
                "Name the arguments that there are.",
                where=loaded.where,
            )


def review_rows(events: Sequence[Event], again: Sequence[Event]) -> Iterator[Finding]:
    """The two splits, and whether a second load gives the same (`again`)."""
    rows = first_of(Rows, events)
    if rows is None:
        return
    for name, split in (("training", rows.train), ("evaluation", rows.eval)):
        if split is not None:
            yield from _review_split(name, split)
    if rows.eval is None:
        yield Finding.of(
            "no-eval-split", "there is no eval_dataset, so a model would be evaluated on what it was trained on"
        )
    if rows.overlap:
        yield Finding.of(
            "splits-overlap",
            f"{rows.overlap} of {rows.eval.rows if rows.eval else 0} evaluation tasks are training tasks as well, "
            f"for instance: {rows.overlapping}",
        )
    if rows.shared_prompts and rows.prompts_are_tasks:
        yield Finding.of(
            "splits-share-prompts",
            f"prompts that are in both splits with different answers: {rows.shared_prompts}, for instance: "
            f"{rows.shared_prompt}",
        )
    second = first_of(Rows, again)
    for name, first, later in (
        ("training", rows.train, second.train if second else None),
        ("evaluation", rows.eval, second.eval if second else None),
    ):
        if first is not None and later is not None and first.digest != later.digest:
            yield Finding.of("rows-vary", f"the {name} rows differ from one process to the next")


def _review_split(name: str, split: Split) -> Iterator[Finding]:
    if split.error is not None:
        yield Finding.of("rows", f"{name} split: {split.error}")
    for problem in split.type_problems:
        yield Finding.of("row-types", f"{name} split: {problem}")
    if split.duplicates:
        yield Finding.of(
            "duplicates",
            f"{split.duplicates} of {split.rows} {name} rows repeat another, for instance: {split.duplicate}",
        )


def last_started(events: Sequence[Event]) -> str:
    """The probe that was at work at the end."""
    return next((event.probe for event in reversed(events) if isinstance(event, BatchStarted)), "")


@dataclass(frozen=True, slots=True)
class Scale:
    """What rewards are measured by."""

    full: float
    verified: bool  # by a right answer
    form: str  # in which the right answer earned most


def mean_rewards(rolled: Sequence[Rolled]) -> dict[str, float]:
    """Each probe's mean over the tasks where it did not fail."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for one in rolled:
        if one.reward is not None:
            rewards[one.probe].append(one.reward)
    return {probe: sum(values) / len(values) for probe, values in rewards.items()}


def scale_of(means: dict[str, float], weights: dict[str, float], settings: CheckSettings) -> Scale:
    right = {probe: mean for probe, mean in means.items() if probe.startswith(RIGHT)}
    best = max(right, key=lambda probe: right[probe], default="")
    possible = sum(weight for weight in weights.values() if weight > 0)
    full = min(possible, settings.reward_range[1]) if possible else settings.reward_range[1]
    if best and right[best] >= VERIFIED * full:
        return Scale(right[best], True, best.removeprefix(f"{RIGHT}, "))
    return Scale(max([full, *means.values()]), False, "")


def review_rewards(events: Sequence[Event], again: Sequence[Event], settings: CheckSettings) -> Iterator[Finding]:
    """Everything about rewards: range, hacks, repeatability, failures, time."""
    loaded = first_of(Loaded, events)
    halted = first_of(Halted, events)
    if halted is not None:
        yield Finding.of("unprobed", f"no rollout could be run here: {halted.error}", ELSEWHERE)
    rolled = [event for event in events if isinstance(event, Rolled)]
    if loaded is None or not rolled:
        return
    if not any(loaded.weights.values()):
        yield Finding.of("no-reward", "no reward function has a weight, so every reward is 0")
        return
    for line in loaded.renamed:
        yield Finding.of("metric-names", line)
    scored = [one for one in rolled if one.reward is not None]
    yield from _failures(rolled)
    if scored:
        means = mean_rewards(rolled)
        yield from _hacks(means, scale_of(means, loaded.weights, settings))
        yield from _range(scored, settings)
    yield from _differences(rolled, [event for event in again if isinstance(event, Rolled)])
    yield from _times(events)
    for event in events:
        if isinstance(event, Closed) and event.error is not None:
            yield Finding.of("teardown-fails", event.error)


def _failures(rolled: Sequence[Rolled]) -> Iterator[Finding]:
    kinds: dict[tuple[str, str], list[Rolled]] = defaultdict(list)
    for one in rolled:
        if one.error is not None:
            kinds[one.error, one.message].append(one)
    for (kind, message), failed in kinds.items():
        probes = ", ".join(dict.fromkeys(one.probe for one in failed))
        if kind == ENDLESS:
            yield Finding.of("endless", f"after {MAX_TURNS} turns a rollout still went on ({probes})")
        elif kind in NOT_HERE:
            yield Finding.of(
                "unprobed", f"{len(failed)} of {len(rolled)} rollouts could not be run here: {message}", ELSEWHERE
            )
        else:
            yield Finding.of(
                "rollout-fails", f"{len(failed)} of {len(rolled)} rollouts failed: {message}", where=probes
            )


def _hacks(means: dict[str, float], scale: Scale) -> Iterator[Finding]:
    if len({round(mean, 9) for mean in means.values()}) == 1 and len(means) > 1:
        value = next(iter(means.values()))
        if scale.verified or value > 0:
            yield Finding.of("reward-constant", f"every answer that was tried got the reward {value:g}")
            return
    if not scale.verified:
        yield Finding.of(
            "right-answer",
            "no way of stating the rows' own answers was rewarded, so it is not shown that a right answer would be",
        )
    of = f"a right answer earns {scale.full:.2f} ({scale.form})" if scale.verified else f"of {scale.full:.2f} at most"
    for probe, mean in means.items():
        if probe.startswith(RIGHT) or scale.full <= 0:
            continue
        share = mean / scale.full
        if share >= LEAK:
            yield Finding.of(
                "reward-hack" if share >= HACK else "reward-leak",
                f"{probe} earns {mean:.2f}; {of}",
                "Read one answer in one format, compare it whole, and give nothing to what solves nothing.",
                where=probe,
            )


def _range(scored: Sequence[Rolled], settings: CheckSettings) -> Iterator[Finding]:
    low, high = settings.reward_range
    outside = [one for one in scored if not low - TOLERANCE <= (one.reward or 0.0) <= high + TOLERANCE]
    if outside:
        worst = max(outside, key=lambda one: max(low - (one.reward or 0.0), (one.reward or 0.0) - high))
        yield Finding.of(
            "reward-range",
            f"{len(outside)} of {len(scored)} rewards are outside {low:g} to {high:g}, for instance {worst.reward:g}",
            where=worst.probe,
        )


def _differences(rolled: Sequence[Rolled], again: Sequence[Rolled]) -> Iterator[Finding]:
    later = {(one.probe, one.task): one for one in again}
    pairs = [(one, later[one.probe, one.task]) for one in rolled if (one.probe, one.task) in later]
    differing = [pair for pair in pairs if pair[0].replies != pair[1].replies]
    if differing:
        probes = ", ".join(list(dict.fromkeys(first.probe for first, _ in differing))[:MAX_DIFFERENCES])
        yield Finding.of(
            "turns-vary",
            f"in {len(differing)} of {len(pairs)} rollouts the environment said something else the second time",
            where=probes,
        )
    for first, second in [pair for pair in pairs if pair[0].replies == pair[1].replies]:
        if first.reward != second.reward:
            names = [name for name, value in first.metrics.items() if value != second.metrics.get(name)]
            yield Finding.of(
                "reward-varies",
                f"the same conversation ({first.probe}) earned {_shown(first)} and then {_shown(second)}",
                where=", ".join(names),
            )
            return


def _shown(one: Rolled) -> str:
    return f"the error {one.error}" if one.reward is None else f"{one.reward:g}"


def _times(events: Sequence[Event]) -> Iterator[Finding]:
    batches = [event for event in events if isinstance(event, BatchCost) and event.rollouts]
    each = sorted((batch.seconds / batch.rollouts, batch.probe) for batch in batches)
    if each and (each[len(each) // 2][0] > SLOW_ROLLOUT_S or each[-1][0] > SLOWEST_ROLLOUT_S):
        usual, (worst, probe) = each[len(each) // 2][0], each[-1]
        yield Finding.of(
            "slow-rollout",
            f"the environment's own part of a rollout takes {usual:.1f} s, at worst {worst:.1f} s",
            where=probe,
        )
    longest = max(batches, key=lambda batch: batch.longest_pause, default=None)
    if longest is not None and longest.longest_pause > PAUSE_S:
        yield Finding.of(
            "blocks",
            f"the event loop stood still for {longest.longest_pause:.1f} s, and every other rollout with it",
            where=longest.probe,
        )
