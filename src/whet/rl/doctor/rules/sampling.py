"""What the policy samples: entropy, identical outputs, length, truncation, tokens without loss."""

from __future__ import annotations

import json
from collections.abc import Iterator

from whet.rl.doctor.record import MIN_STEPS, Advice, Found, Row, RunRecord, calmer, groups_of, lower_rate

ENTROPY_TIMES = 2.0
"""Factor over where it began. Learning lowers entropy; a policy that tries more for a while stays below this."""
ENTROPY_RISE = 0.5
"""Least rise: a factor of two over next to nothing is nothing."""
USUAL_BONUS = 0.003
"""A bonus that keeps a policy from growing certain and outweighs no reward."""
ENTROPY_FAR = 1.0
"""Rise that is enough whatever the beginning: the policy then chooses among almost three times as many tokens."""


def entropy_explosion(run: RunRecord) -> Iterator[Found]:
    """The policy has become much less certain than it was: it unlearns."""
    entropy = run.series("policy/entropy")
    if len(entropy) < MIN_STEPS:
        return
    start, now = entropy.values[0], entropy.last(3)
    if now.mean - start < (ENTROPY_RISE if now.mean >= ENTROPY_TIMES * start else ENTROPY_FAR):
        return
    evidence = [f"entropy {start:.3f} nats a token in step {entropy.steps[0]}, {now.mean:.3f} in {now.span}"]
    changes = calmer(run)
    if bonus := float(run.setting("algorithm.entropy_coef", 0.0)):
        less = min(bonus / 10, USUAL_BONUS)
        changes.insert(0, run.change("algorithm.entropy_coef", less, "the bonus pays more than the reward"))
    yield "error", "the policy grows random", evidence, changes


CERTAIN = 0.02
"""Nats per token below which samples hardly differ: of a text of 50 tokens, two samples in three are the same."""
DONE = 0.9
"""Mean reward above which a policy may be certain."""


def entropy_collapse(run: RunRecord) -> Iterator[Found]:
    """The policy has become certain before it was right: nothing new is tried, so nothing more is learned."""
    entropy, rewards = run.series("policy/entropy"), run.recent("reward/mean", MIN_STEPS)
    if len(entropy) < MIN_STEPS or not len(rewards):
        return
    start, now = entropy.values[0], entropy.last(MIN_STEPS)
    if now.mean > CERTAIN or rewards.mean > DONE:
        return
    evidence = [
        f"entropy {now.mean:.4f} nats a token in {now.span}, {start:.3f} in step {entropy.steps[0]}",
        f"mean reward {rewards.mean:.3f} in {rewards.span}",
    ]
    changes = []
    if float(run.setting("sampling.temperature", 1.0)) < 1:
        changes.append(run.change("sampling.temperature", 1.0, "so that something else is tried"))
    if start > CERTAIN:
        changes.append(lower_rate(run, 3, "it grew certain faster than it became right"))
    bonus = 3 * float(run.setting("algorithm.entropy_coef", 0.0)) or USUAL_BONUS
    changes.append(run.change("algorithm.entropy_coef", bonus, "certainty then has a price"))
    yield "warning", "the policy stopped exploring before it was right", evidence, changes


MOST_IDENTICAL = 0.5
"""Share of the unsolved groups whose rollouts are all the same text; short right answers are the same by right."""
SOLVED = 0.9
"""Mean reward from which a group is solved."""
FEWEST_UNSOLVED = 4
"""Unsolved groups below which nothing is reported."""


def identical_outputs(run: RunRecord) -> Iterator[Found]:
    """The attempts at a task are all the same text: a group is one sample, however many rollouts it has."""
    unsolved = [group for group in groups_of(run.rollouts) if len(group) > 1 and _mean_reward(group) < SOLVED]
    same = [group for group in unsolved if len({_text(row) for row in group}) == 1]
    if len(unsolved) < FEWEST_UNSOLVED or len(same) < MOST_IDENTICAL * len(unsolved):
        return
    evidence = [
        f"in step {run.steps} all rollouts are the same in {len(same)} of {len(unsolved)} groups that are not solved",
        f"for example task {same[0][0].get('example_id')}, {len(same[0])} times: {_text(same[0][0])!r:.120}",
    ]
    yield "error", "the attempts at a task are all the same", evidence, list(_more_varied(run))


def _more_varied(run: RunRecord) -> Iterator[Advice]:
    temperature = float(run.setting("sampling.temperature", 1.0))
    warmer = 1.0 if temperature < 1 else temperature + 0.2
    yield run.change("sampling.temperature", warmer, "attempts then differ, and can be compared")
    if float(run.setting("sampling.top_p", 1.0)) < 1:
        yield run.change("sampling.top_p", 1.0, "less likely tokens may be drawn")
    if run.setting("sampling.top_k", 0):
        yield run.change("sampling.top_k", 0, "less likely tokens may be drawn")


def _mean_reward(group: list[Row]) -> float:
    return sum(float(row.get("reward") or 0.0) for row in group) / len(group)


def _text(row: Row) -> str:
    completion = row.get("completion")
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], dict):
        return str(completion[0].get("content"))
    return completion if isinstance(completion, str) else json.dumps(completion, sort_keys=True)


MANY_TRUNCATED = 0.3
"""Share of rollouts cut off from which the limit, and not the task, decides what is learned."""
TRUNCATION_RISE = 0.15
"""Rise over the first steps that says that answers grow into the limit."""


def truncation(run: RunRecord) -> Iterator[Found]:
    """Many rollouts are cut off by `max_tokens`, or more and more: what they would have said is not scored."""
    cut = run.series("rollouts/truncated_frac")
    if len(cut) < MIN_STEPS:
        return
    before, now = cut.first(3), cut.last(MIN_STEPS)
    rising = now.mean - before.mean >= TRUNCATION_RISE
    if now.mean < MANY_TRUNCATED and not rising:
        return
    evidence = [
        f"{now.mean:.0%} of the rollouts of {now.span} were cut off, {before.mean:.0%} in {before.span}; "
        f"max_tokens is {run.setting('sampling.max_tokens', 512)}"
    ]
    if len(lengths := run.recent("seq_len/trained_mean", len(now))):
        evidence.append(f"{lengths.mean:.0f} tokens are sampled in a rollout on average")
    changes = [run.scaled("sampling.max_tokens", 512, 2, "so that answers come to their end")]
    if rising and not run.setting("algorithm.length_penalty", 0.0):
        why = "an answer without its end is then not learned from"
        changes.append(run.change("algorithm.mask_truncated", True, why))
    yield "warning", f"{'more and more' if rising else 'many'} rollouts are cut off", evidence, changes


MANY_UNLEARNED = 0.3
"""Share of sampled tokens. Cut-off rollouts are long ones, so this is more than their share of the rollouts."""


def unlearned_tokens(run: RunRecord) -> Iterator[Found]:
    """Much of what was sampled carries no loss: work that teaches nothing."""
    masked = run.recent("rollouts/masked_token_frac")
    if len(masked) < MIN_STEPS or masked.mean < MANY_UNLEARNED:
        return
    evidence = [
        f"{masked.mean:.0%} of the sampled tokens of {masked.span} carry no loss: "
        f"{run.level('rollouts/truncated_frac'):.0%} of the rollouts were cut off at "
        f"max_tokens = {run.setting('sampling.max_tokens', 512)} and mask_truncated is set"
    ]
    changes = [
        run.scaled("sampling.max_tokens", 512, 2, "answers then end, and are learned from"),
        run.change("algorithm.mask_truncated", False, "cut-off rollouts then count as what they earned"),
    ]
    yield "warning", "much of what is sampled is not learned from", evidence, changes


LONGER, SHORTER = 2.5, 0.4
"""Factors over the first steps. Reasoning that pays grows too, but over hundreds of steps."""


def lengths(run: RunRecord) -> Iterator[Found]:
    """What a rollout samples has become far longer or far shorter than it was: the reward may pay for length."""
    lengths, rewards = run.series("seq_len/trained_mean"), run.series("reward/mean")
    before, now = lengths.first(2), lengths.last(3)
    if len(lengths) < MIN_STEPS or not len(rewards):
        return
    if before.mean <= 0 or SHORTER < (times := now.mean / before.mean) < LONGER:
        return
    evidence = [
        f"{before.mean:.1f} sampled tokens a sequence in {before.span}, {now.mean:.1f} in {now.span}",
        f"mean reward {rewards.first(2).mean:.3f} then, {rewards.last(3).mean:.3f} now",
    ]
    changes, penalty = [], float(run.setting("algorithm.length_penalty", 0.0))
    if times < LONGER:
        if penalty:
            changes.append(run.change("algorithm.length_penalty", penalty / 4, "it outweighs the reward"))
        changes.append(Advice("look at the shortest rollouts: does the reward pay for saying little?"))
        yield "warning", "rollouts shrink to almost nothing", evidence, changes
        return
    if not penalty:
        most = int(run.setting("sampling.max_tokens", 512))
        why = "length then has a price (with length_penalty_full)"
        changes.append(run.change("algorithm.length_penalty", 0.1, why))
        why = "the length from which all of it is taken"
        changes.append(run.change("algorithm.length_penalty_full", most, why))
    changes.append(Advice("look at the longest rollouts: does the reward pay for length?"))
    yield "warning", "rollouts grow far longer", evidence, changes
