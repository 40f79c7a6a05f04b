"""How rollouts become updates: sampler/learner mismatch, gradient spikes, clipped tokens, cut sampling, staleness."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from whet.rl.algorithms import algorithms
from whet.rl.doctor.changes import lower_rate
from whet.rl.doctor.finding import Advice, Found, Severity, rounded
from whet.rl.doctor.record import MIN_STEPS, RunRecord

ROUNDING = 1e-4
"""KL per token of one policy computed twice, from which it is reported: in float32 it stays below 1e-6. With bfloat16
on one side whet/tiny has about that on tasks it knows, which is worth knowing and nothing more."""
SAME_WEIGHTS = 1e-3
"""What no rounding explains: several times what bfloat16 does."""
PER_VERSION = 0.02
"""KL per token that a version of age may add: a step that moves the policy more than this is too large by itself."""


def mismatch(run: RunRecord) -> Iterator[Found]:
    """Sampler and learner disagree about the probabilities of the same tokens by more than their age explains."""
    kl, stale = run.recent("policy/kl"), run.level("staleness/mean")
    if not len(kl) or len(kl) < min(MIN_STEPS, run.steps):
        return
    explained = ROUNDING + PER_VERSION * stale
    if abs(kl.mean) <= explained:
        return
    precisions = [run.setting("inference.dtype"), run.setting("learner.dtype")]
    severity: Severity = "error"
    what = "sampler and learner are not the same policy"
    if stale:
        what, severity = "the policy moves too far between sampling and learning", "warning"
    elif abs(kl.mean) <= SAME_WEIGHTS and "bfloat16" in precisions:
        what, severity = "bfloat16 makes sampler and learner differ a little", "info"
    evidence = f"policy/kl {kl.mean:.2g} per token in {kl.span}; tokens {stale:.2f} versions old on average "
    evidence += f"explain at most {explained:.2g}"
    yield severity, what, [evidence], list(_mismatch_changes(run, stale))


def _mismatch_changes(run: RunRecord, stale: float) -> Iterator[Advice]:
    if run.setting("inference.dtype") == "bfloat16":
        yield run.change("inference.dtype", "float32", "the sampler then computes what the learner does")
    if run.setting("learner.dtype") == "bfloat16":
        yield run.change("learner.dtype", "float32", "the learner then computes what the sampler does")
    if stale > 0:
        yield lower_rate(run, 3, "each version is then nearer to the one before")
        yield run.change("max_async_level", max(0, int(run.setting("max_async_level", 1)) - 1), "fresher tokens")
    elif not run.setting("algorithm.router_replay", False):
        yield Advice("of a mixture of experts: algorithm.router_replay = true sends tokens where the sampler sent them")


SPIKE_TIMES = 8.0
"""Multiples of the median: those of the quickstart stay within 2 of it."""
SPIKE_STEPS = 20
"""Steps that are looked at: an older spike has been made up for."""
FLAT_NORM = 1e-5
"""Norm of a step whose groups were all flat: rounding, which says nothing of what is usual."""
FEWEST_STEPS = 5
"""Steps that taught something, below which nothing is usual."""


def grad_norm(run: RunRecord) -> Iterator[Found]:
    """The gradient is suddenly many times as large as usual: single batches decide where the policy goes."""
    norms, recent = run.series("optim/grad_norm"), run.recent("optim/grad_norm", SPIKE_STEPS)
    taught = [norm for norm in norms.values if norm > FLAT_NORM]
    if len(taught) < FEWEST_STEPS:
        return
    usual = statistics.median(taught)
    spikes = [
        (norm, step) for step, norm in zip(recent.steps, recent.values, strict=True) if norm > SPIKE_TIMES * usual > 0
    ]
    if not spikes:
        return
    shown = ", ".join(f"{norm:.3g} in step {step}" for norm, step in sorted(spikes, key=lambda one: -one[0])[:3])
    evidence = [f"gradient norm {shown}; {usual:.3g} is usual (median of {norms.span})"]
    changes = []
    limit = float(run.setting("optimizer.max_grad_norm", 1.0))
    harmless = 0 < limit <= 2 * usual
    if harmless:
        evidence.append(f"gradients are clipped to {limit:g}, so a spike moved the policy no further than that")
    else:
        why = "a spike then moves the policy as far as any step"
        changes.append(run.change("optimizer.max_grad_norm", rounded(2 * usual), why))
    if (advantage := run.setting("algorithm.advantage")) in ("max_rl", "grpo_std"):
        why = f"{advantage} enlarges groups that hardly differ or rarely succeed"
        changes.append(run.change("algorithm.advantage", "grpo", why))
    changes.append(lower_rate(run, 3, "each step is then smaller"))
    yield "info" if harmless else "warning", "the gradient has spikes", evidence, changes


MANY_CLIPPED = 0.2
"""Share of tokens. A few per cent is what clipping is for; a fifth is lost work."""
MANY_CLIPPED_SEQUENCES = 0.5
"""The same of gspo, which clips whole sequences by bounds that are narrow on purpose: its paper reports 15 %."""


def clipped(run: RunRecord) -> Iterator[Found]:
    """The loss drops or cuts many tokens: what was sampled no longer fits the policy, or the limits are too tight."""
    clipped, stale = run.recent("policy/clip_frac"), run.level("staleness/mean")
    loss = str(run.setting("algorithm.loss", "masked_is"))
    if len(clipped) < MIN_STEPS or clipped.mean < (MANY_CLIPPED_SEQUENCES if loss == "gspo" else MANY_CLIPPED):
        return
    evidence = [
        f"{clipped.mean:.0%} of the tokens of {clipped.span} were dropped or cut by {loss}",
        f"tokens are {stale:.2f} versions old on average",
    ]
    changes = []
    if stale > 1:
        changes.append(run.change("max_async_level", 1, "newer tokens are nearer to the policy"))
    known = algorithms().get(loss)
    if known is not None and "eps_high" in known.loss_constants:
        sides = [(f"algorithm.{key}", float(known.loss_constants[key])) for key in ("eps_high", "eps_low")]
        now = {key: float(run.setting(key, usual)) for key, usual in sides}
        if any(now[key] < usual / 2 for key, usual in sides):
            changes += [run.change(key, max(now[key], usual), "the usual room for the ratio") for key, usual in sides]
    elif loss == "masked_is" and float(run.setting("algorithm.mask_threshold", 0.2)) < 0.1:
        changes.append(run.change("algorithm.mask_threshold", 0.2, "the usual room for a probability"))
    changes.append(lower_rate(run, 3, "the policy moves less between sampling and learning"))
    yield "warning", "the loss drops many tokens", evidence, changes


MUCH_CUT = 0.02
"""Mean probability that was cut off: a top_p of 0.95 takes about that of text that is not yet certain."""
WITHOUT_CUTS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def cut_mass(run: RunRecord) -> Iterator[Found]:
    """The sampler draws from less than the learner trains: top_p, top_k or min_p cut off a part of each."""
    cut = run.recent("policy/cut_mass")
    if len(cut) < MIN_STEPS or cut.mean < MUCH_CUT or run.setting("algorithm.renormalise_cuts", False):
        return
    evidence = f"the sampler cut {cut.mean:.1%} of the probability off in {cut.span}; "
    evidence += "ratios are those of whole distributions"
    why = "probabilities are then compared within what the sampler left"
    changes = [run.change("algorithm.renormalise_cuts", True, why)]
    for name, off in WITHOUT_CUTS.items():
        if run.setting(f"sampling.{name}", off) != off:
            changes.append(run.change(f"sampling.{name}", off, "the sampler then draws from all of it"))
    if len(changes) == 1:
        changes.append(Advice("or leave top_p, top_k, min_p and temperature 0 out of what the environment asks for"))
    yield "warning", "the sampler draws from less than the learner trains", [evidence], changes


SOME_LONG = 0.03
"""Share of the drawn rollouts that are long, from which it matters whether they are trained."""
LONG_KEPT = 0.5
"""Long rollouts among the trained, over those among the drawn: nothing but age takes any away."""


def length_bias(run: RunRecord) -> Iterator[Found]:
    """Long rollouts grow too old before they are trained: what is learned is learned from short ones."""
    drawn, trained = run.recent("rollouts/long_drawn_frac"), run.recent("rollouts/long_trained_frac")
    if len(trained) < MIN_STEPS or drawn.mean < SOME_LONG or trained.mean >= LONG_KEPT * drawn.mean:
        return
    limit, level = int(run.setting("max_off_policy_steps", 8)), int(run.setting("max_async_level", 1))
    evidence = [
        f"{drawn.mean:.0%} of the rollouts drawn in {drawn.span} are more than twice as long as the median, "
        f"{trained.mean:.0%} of those trained",
        f"a rollout that needs more than {limit} of the learner's steps is given up; it may begin {level} ahead",
    ]
    changes = [run.change("max_off_policy_steps", 2 * (limit + 1), "long rollouts then come to their end")]
    if level > 1:
        changes.append(run.change("max_async_level", 1, "rollouts then begin nearer to the step that trains them"))
    yield "warning", "long rollouts are left out of training", evidence, changes


WASTED = 0.1
"""Share of the rollouts that were cancelled or dropped for their age: work that taught nothing."""
OLD = 4.0
"""Mean age in versions: half of what max_off_policy_steps allows by default, so that many tokens are near its end."""


def staleness(run: RunRecord) -> Iterator[Found]:
    """Rollouts are too old when they are learned from, or so old that they are thrown away."""
    age = run.recent("staleness/mean")
    if not run.asynchronous or len(age) < MIN_STEPS:
        return
    cancelled, dropped = run.level("rollouts/cancelled_frac"), max(0.0, run.level("groups/too_old"))
    lost = dropped / (dropped + run.groups)
    wasted = lost + cancelled >= WASTED
    if not wasted and age.mean < OLD:
        return
    limit = int(run.setting("max_off_policy_steps", 8))
    evidence = [
        f"in {age.span} tokens were {age.mean:.2f} versions old on average; the limit is {limit}",
        f"{cancelled:.0%} of the rollouts were cancelled and {lost:.0%} of the groups dropped for their age",
    ]
    what = "rollouts are thrown away for their age" if wasted else "the learner learns from old rollouts"
    yield "warning", what, evidence, _younger(run, limit if wasted else None)


def _younger(run: RunRecord, limit: int | None) -> list[Advice]:
    changes = []
    if float(run.setting("oversampling_factor", 1.0)) > 1:
        changes.append(run.change("oversampling_factor", 1.0, "fewer groups are begun ahead"))
    if int(run.setting("max_async_level", 1)) > 1:
        changes.append(run.change("max_async_level", 1, "rollouts begin later, with newer weights"))
    if limit is not None and limit < OLD:
        changes.append(run.change("max_off_policy_steps", 2 * limit or 2, "the loss bounds what older tokens may do"))
    rollouts = max(1, int(run.setting("max_concurrent", 512)) // 2)
    return changes or [run.change("max_concurrent", rollouts, "fewer rollouts wait for a slot")]
