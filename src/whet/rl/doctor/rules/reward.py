"""The training reward: unstable, near zero, near its top, or equal within groups."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from whet.rl.algorithms import algorithms
from whet.rl.doctor.record import (
    MIN_STEPS,
    OPENING,
    WINDOW,
    Advice,
    Found,
    MetricSeries,
    Row,
    RunRecord,
    calmer,
    larger_groups,
    share,
)

SMOOTH = 3
"""Steps whose mean is compared: one batch may be lucky, three are rarely."""
FALL = 0.5
"""Share of its best that the reward has lost: less than half happens on the way and is often made up."""
CHANCE = 4.0
"""Multiples of the chance deviation of a batch: what is beyond happens in fewer than one of ten thousand batches."""
LASTING = 6
"""Steps in none of which it came half-way back: what does is a swing, not a fall."""
SWING_STEPS = 12
"""Steps that show swings: fewer hold too few turns."""
LEAST_JUMP = 0.01
"""Jumps below which nothing swings, whatever chance does: rewards that are all equal have no deviation at all."""


def swings(run: RunRecord) -> Iterator[Found]:
    """The reward falls from where it was, or swings by more than the luck of a batch: steps are too large."""
    rewards = run.series("reward/mean")
    if len(rewards) >= MIN_STEPS:
        yield from list(_fallen(run, rewards)) or _swinging(run, rewards.last(SWING_STEPS))


def _fallen(run: RunRecord, rewards: MetricSeries) -> Iterator[Found]:
    now, levels = rewards.last(SMOOTH), rewards.means(SMOOTH)
    reached = [(level, f"up to step {step}") for step, level in zip(levels.steps, levels.values, strict=True)]
    reached.append((rewards.values[0], f"in step {rewards.steps[0]}"))  # large steps can ruin a policy with the first
    best, when = max(reached)
    if best <= 0 or best - now.mean < max(FALL * abs(best), CHANCE * run.noise / math.sqrt(SMOOTH)):
        return
    if max(rewards.values[1:][-LASTING:]) <= (best + now.mean) / 2:
        evidence = [f"mean reward {best:.3f} {when}, {now.mean:.3f} in {now.span}", *_norms(run, now)]
        yield "error", "the policy lost what it could do: its steps are too large", evidence, calmer(run)


def _swinging(run: RunRecord, rewards: MetricSeries) -> Iterator[Found]:
    jumps = [after - before for before, after in pairwise(rewards.values)]
    typical = math.sqrt(math.fsum(jump * jump for jump in jumps) / len(jumps) / 2)
    if len(rewards) < SWING_STEPS or typical < max(LEAST_JUMP, CHANCE / 2 * run.noise):
        return
    evidence = [
        f"in {rewards.span} the mean reward jumps by {typical:.3f} around its course, between "
        f"{min(rewards.values):.3f} and {max(rewards.values):.3f}; by chance {run.noise:.3f} at most",
        *_norms(run, rewards),
    ]
    changes = calmer(run)
    if order := run.setting("buffer.curriculum"):
        changes = [Advice(f"{order} may draw easy and hard tasks by turns: mix them within a batch"), *changes]
    yield "warning", "the reward swings by more than chance", evidence, changes


def _norms(run: RunRecord, window: MetricSeries) -> list[str]:
    norms = run.recent("optim/grad_norm", len(window))
    return [f"gradient norm {norms.mean:.3g} on average in {norms.span}"] if len(norms) else []


LOW = 0.05
"""Mean reward below which an environment is too hard, as readiness has it: most groups of 8 are flat then."""
UNSCORED_SHARE = 0.5
"""Share of rollouts that are cut off or unread from which that explains a reward near zero."""
UNCREDITED_SHARE = 0.1
"""Share of unrewarded rollouts that say the expected answer from which the reward is to be doubted: chance is less."""


def reward_low(run: RunRecord) -> Iterator[Found]:
    """The reward stays near zero: answers cut off, not parsed or not credited, or tasks that are too hard.

    The four look the same in a curve and have different cures; the rollouts of the newest step tell them apart.
    """
    for environment in run.environments:
        rewards = run.recent(f"reward/{environment}/mean")
        if len(rewards) < MIN_STEPS or not 0 <= rewards.mean <= LOW or max(rewards.values) > 2 * LOW:
            continue
        half = len(rewards) // 2
        if rewards.last(half).mean - rewards.first(half).mean > LOW / 2:  # it has begun to rise
            continue
        level = f"mean reward of {environment} {rewards.mean:.3f} in {rewards.span}, highest {max(rewards.values):.3f}"
        why, evidence, changes = _cause(run, run.rollouts_of(environment), rewards)
        yield "error", f"the reward of {environment} stays near zero{why}", [level, *evidence], changes


def _cause(run: RunRecord, rows: list[Row], rewards: MetricSeries) -> tuple[str, list[str], list[Advice]]:
    """Why it stays there, what shows that, and what to change."""
    cut = _share(run, rows, "is_truncated", "rollouts/truncated_frac", rewards)
    unread = _share(run, rows, "parse_failed", "rollouts/unread_frac", rewards)
    unpaid = uncredited(rows)
    if cut >= UNSCORED_SHARE:
        tokens = int(run.setting("sampling.max_tokens", 512))
        change = run.change("sampling.max_tokens", 4 * tokens, "so that answers come to their end")
        return ": answers are cut off", [f"{cut:.0%} of the rollouts reached max_tokens = {tokens}"], [change]
    if unread >= UNSCORED_SHARE:
        evidence = [f"in {unread:.0%} of the rollouts nothing was found to score", *_example(rows)]
        why = (
            "show the form of an answer in the prompt (with an example), or let the parser read what the model "
            "writes; a reward for keeping to the form gives a first step to learn"
        )
        return ": the parser finds no answer in what the model writes", evidence, [Advice(why)]
    if len(unpaid) >= max(1, UNCREDITED_SHARE * len(rows)) and rows:
        said = f"{len(unpaid)} of {len(rows)} rollouts of step {run.steps} say the expected answer and got no reward"
        change = Advice("mend the rubric: it compares something else than the answer that the task expects")
        what = " although the expected answer is given: the reward does not credit it"
        return what, [said, *_example(unpaid)], [change]
    read = [f"{len(rows)} rollouts of step {run.steps} were read and end by themselves"] if rows else []
    return ": the tasks are too hard for this model", read, list(_easier(run, rewards))


def _share(run: RunRecord, rows: list[Row], field: str, metric: str, rewards: MetricSeries) -> float:
    """Of the environment's rollouts where there are some, else of all of the run's; 0 where neither is known."""
    series, whole = share(rows, field), run.recent(metric, len(rewards))
    return series if series is not None else whole.mean if len(whole) else 0.0


def uncredited(rows: Sequence[Row]) -> list[Row]:
    """Rollouts without reward whose last words hold the expected answer, as a word of its own."""
    return [row for row in rows if not row.get("reward") and _says(_last_words(row), row.get("answer"))]


def _says(text: str, answer: Any) -> bool:
    wanted = " ".join(answer.split()).casefold() if isinstance(answer, str) else ""
    if len(wanted) < 2:  # a digit or a letter stands in most texts by chance
        return text.strip().casefold() == wanted != ""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", " ".join(text.split()).casefold()) is not None


def _last_words(row: Row) -> str:
    completion = row.get("completion")
    if isinstance(completion, str):
        return completion
    for message in reversed(completion or ()):
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


BARE_CALLS = 0.2
"""Share of an environment's rollouts from which calls written as plain JSON are the model's habit."""


def bare_calls(run: RunRecord) -> Iterator[Found]:
    """The model writes its calls as bare or fenced JSON, which its chat template does not read as calls."""
    for environment in run.environments:
        rows = [row for row in run.rollouts_of(environment) if isinstance(row.get("tools"), list)]
        bare = [row for row in rows if _is_bare_call(_last_words(row), row["tools"])]
        if bare and len(bare) >= BARE_CALLS * len(rows):
            evidence = [f"{len(bare)} of {len(rows)} rollouts of the newest step end with such a text", *_example(bare)]
            what = f"tool calls of {environment} are written as plain JSON and not in the form of the chat template"
            why = (
                "no tool is called by such a text: fine-tune the model on calls in its template's form, or take another"
            )
            yield "warning", what, evidence, [Advice(why)]


def _is_bare_call(text: str, tools: Sequence[str]) -> bool:
    """Whether a text, or a fenced block of it, begins with a call of one of the tools, or a list of them, as JSON."""
    for block in (text, *(re.sub(r"^\w+", "", part) for part in text.split("```")[1::2])):
        try:
            read, _ = json.JSONDecoder().raw_decode(block.strip())
        except (ValueError, RecursionError):
            continue
        for call in read if isinstance(read, list) else [read]:
            if isinstance(call, dict) and call.get("name") in tools and {"arguments", "parameters"} & call.keys():
                return True
    return False


def _example(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    row = rows[0]
    wanted = f", expected {row['answer']!r:.80}" if row.get("answer") not in (None, "") else ""
    return [f"for example task {row.get('example_id')}: {_last_words(row)!r:.120}{wanted}"]


def _easier(run: RunRecord, rewards: MetricSeries) -> Iterator[Advice]:
    if max(rewards.values) > 0:
        if run.setting("algorithm.advantage") == "grpo":
            yield run.change("algorithm.advantage", "max_rl", "a rare success then counts by how rare it is")
        yield from larger_groups(run, "more attempts at a task, so that one of them succeeds")
    yield Advice(
        "make the tasks easier ([env.args]), give partial credit, or begin from a model that solves a few of them"
    )


TOP = 0.97
"""Mean reward (of at most 1) from which it is near the top; readiness calls 0.8 too easy, but that can still rise."""
SOLVED_FLAT = 0.8
"""Share of groups without variance from which steps are wasted, whatever is left of the reward."""


def reward_high(run: RunRecord) -> Iterator[Found]:
    """The reward is near its top: nothing is left to learn, from the beginning or since some step."""
    solved, begun_below = [], False
    for number, environment in enumerate(run.environments):
        rewards = run.series(f"reward/{environment}/mean")
        now, before = rewards.last(), rewards.first()
        if len(rewards) < MIN_STEPS or max(rewards.values) > 1 or now.mean < TOP:
            continue
        solved.append(environment)
        if before.mean < TOP:
            begun_below = True
            continue
        level = f"mean reward of {environment} {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}"
        changes = [Advice("make its tasks harder ([env.args]) or its reward stricter")]
        if len(run.environments) > 1 and not run.setting("buffer.env_ratios"):
            weight = float(run.setting(f"env.{number}.weight", 1.0)) / 4
            changes.insert(0, run.change(f"env.{number}.weight", weight, "leave the batch to what can be learned"))
        yield "warning", f"{environment} had nothing to teach from the first step", [level], changes
    flat = run.recent("groups/zero_variance_frac")
    if solved == run.environments and begun_below and len(flat) >= OPENING + WINDOW // 2 and flat.mean >= SOLVED_FLAT:
        share = f"{flat.mean:.0%} of the groups of {flat.span} have no variance, and each environment is above {TOP:g}"
        change = run.change("max_steps", run.steps, "stop here; or go on with harder tasks")
        yield "info", "everything there is to learn has been learned", [share], [change]


MANY_FLAT = 0.7
"""Share of flat groups. Half and more is common at the end of a good run; from here on most of a batch is wasted."""
HOPELESS = 0.95
"""Share of flat groups from which sampling others instead finds none."""
DONE = 0.9
"""Mean reward above which flat groups are solved ones: that is success."""


def no_variance(run: RunRecord) -> Iterator[Found]:
    """Rewards inside groups are all equal: those groups have no advantage and teach nothing."""
    flat, rewards = run.recent("groups/zero_variance_frac"), run.recent("reward/mean", MIN_STEPS)
    algorithm = algorithms().get(str(run.setting("algorithm.advantage")))
    if algorithm is not None and algorithm.needs_whole_batch:  # rollouts are compared with the batch, not their group
        return
    if len(flat) < MIN_STEPS or flat.mean < MANY_FLAT or not len(rewards) or rewards.mean > DONE:
        return
    share = f"{flat.mean:.0%} of the groups of {flat.span} have no variance, at a mean reward of {rewards.mean:.3f}"
    yield (
        "warning",
        "most groups teach nothing: their rewards are all equal",
        [share],
        _variance_changes(run, flat.mean),
    )


def _variance_changes(run: RunRecord, flat: float) -> list[Advice]:
    if int(run.setting("rollouts_per_example", 8)) == 1:
        return larger_groups(run, "a single rollout has nothing to be compared with, so its advantage is 0")
    changes = []
    if float(run.setting("sampling.temperature", 1.0)) < 1:
        changes.append(run.change("sampling.temperature", 1.0, "attempts at a task then differ more"))
    changes += larger_groups(run, "in larger groups some attempt differs")
    if flat < HOPELESS:
        changes += run.unless_set("buffer.difficulty_threshold", 1e-6, "flat groups are replaced by others")
    return [*changes, Advice("a finer reward: partial credit instead of all or nothing")]
