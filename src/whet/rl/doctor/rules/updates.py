"""How rollouts become updates: engine mismatch, drift, gradient spikes, clipped tokens, cut sampling, staleness."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from whet.rl.algorithms import algorithms
from whet.rl.doctor.record import MIN_STEPS, Advice, Found, MetricSeries, RunRecord, Severity, lower_rate, rounded

ROUNDING = 1e-4
"""KL per token of one policy computed twice, from which it is reported: in float32 it stays below 1e-6. With bfloat16
on one side whet/tiny has about that on tasks it knows, which is worth knowing and nothing more."""
SAME_WEIGHTS = 1e-3
"""From here on rounding costs something: SmolLM2-135M with a bfloat16 engine had 0.003 to 0.007."""
NOT_ROUNDING = 1e-2
"""What bfloat16 does not explain: beyond it prime-rl's check of a model against vLLM fails (its pull request 3414)."""
PER_VERSION = 0.02
"""KL per token that a version of age may add: a step that moves the policy more than this is too large by itself."""
TIS, MIS = 2.0, 5.0
"""Limits of ratios that are proposed: that of verl's examples, and INTELLECT-3's upper bound (arXiv:2512.16144)."""


def mismatch(run: RunRecord) -> Iterator[Found]:
    """Engine and learner compute other probabilities with the same weights."""
    name = "policy/kl_engine" if len(run.series("policy/kl_engine")) else "policy/kl"
    kl, age = run.recent(name), run.level("staleness/mean")
    if not len(kl) or len(kl) < min(MIN_STEPS, run.steps) or (name == "policy/kl" and age):
        return
    level = _weighted(run, kl)
    if abs(level) <= ROUNDING:
        return
    severity: Severity = "error"
    what = "sampler and learner are not the same policy"
    if "bfloat16" in (run.setting("inference.dtype"), run.setting("learner.dtype")) and abs(level) <= NOT_ROUNDING:
        severity, amount = ("info", "a little") if abs(level) <= SAME_WEIGHTS else ("warning", "noticeably")
        what = f"bfloat16 makes sampler and learner differ {amount}"
    evidence = [f"{name} {level:.2g} per token in {kl.span}, of tokens that the learner's own weights sampled"]
    if len(mean := run.recent("policy/logprob_diff_mean")):
        largest = max(run.recent("policy/logprob_diff_max").values, default=mean.mean)
        evidence.append(f"their log-probabilities differ by {mean.mean:.2g} on average, by {largest:.2g} at most")
    yield severity, what, evidence, list(_same_numbers(run, bound=abs(level) > SAME_WEIGHTS))


def _weighted(run: RunRecord, kl: MetricSeries) -> float:
    """The mean over the tokens that were measured, not over steps: some steps have few."""
    share = run.series("policy/fresh_frac")
    tokens = dict(zip(share.steps, share.values, strict=True))
    weights = [max(0.0, tokens.get(step, 0.0)) for step in kl.steps]
    return statistics.fmean(kl.values, weights) if sum(weights) else kl.mean


def _same_numbers(run: RunRecord, *, bound: bool) -> Iterator[Advice]:
    if run.setting("inference.dtype") == "bfloat16":
        yield run.change("inference.dtype", "float32", "the sampler then computes what the learner does")
    if run.setting("learner.dtype") == "bfloat16":
        yield run.change("learner.dtype", "float32", "the learner then computes what the sampler does")
    if run.setting("inference.base_url"):
        yield Advice(
            "the servers of inference.base_url have to report what was sampled from: --logprobs-mode processed_logprobs"
        )
    if not run.setting("algorithm.router_replay", False):
        yield Advice("of a mixture of experts: algorithm.router_replay = true sends tokens where the sampler sent them")
    if bound:
        yield from _bounded(run)


def _bounded(run: RunRecord) -> Iterator[Advice]:
    """A limit on the ratios, where the loss takes one and has none."""
    loss = algorithms().get(str(run.setting("algorithm.loss", "masked_is")))
    if loss is None or run.setting("algorithm.tis_limit") or run.setting("algorithm.mis_limit"):
        return
    if loss.weighs_by_ratio and 1 + float(run.setting("algorithm.eps_high") or 0) < TIS:
        yield run.change("algorithm.tis_limit", TIS, "bounds what a token weighs whose probability is far off")
    elif loss.compares_with_sampler:
        yield run.change("algorithm.mis_limit", MIS, "leaves tokens out whose probability is far off")


def drift(run: RunRecord) -> Iterator[Found]:
    """The policy moves between sampling and learning by more than the age of tokens explains."""
    name = "policy/kl_stale" if len(run.series("policy/kl_stale")) else "policy/kl"
    kl, age = run.recent(name), run.level("staleness/mean")
    if not age or not len(kl) or len(kl) < min(MIN_STEPS, run.steps):
        return
    explained = ROUNDING + PER_VERSION * age
    if kl.mean <= explained:
        return
    evidence = [f"{name} {kl.mean:.2g} per token in {kl.span}; tokens {age:.2f} versions old explain {explained:.2g}"]
    changes = [lower_rate(run, 3, "each version is then nearer to the one before")]
    level, oldest = int(run.setting("max_async_level", 1)), run.level("staleness/max")
    if level > 1 or float(run.setting("oversampling_factor", 1.0)) > 1:
        changes += _younger(run, None)
    else:
        why = "half of a batch is begun ahead: tokens are half a version old"
        changes.append(run.change("oversampling_factor", 0.5, why))
    if oldest > level + 2 and int(run.setting("max_off_policy_steps", 8)) > level + 2:
        evidence.append(f"the oldest token of a step is {oldest:.1f} versions old")
        why = "rollouts that ran through more updates are left out"
        changes.append(run.change("max_off_policy_steps", level + 2, why))
    yield "warning", "the policy moves too far between sampling and learning", evidence, [*changes, *_bounded(run)]


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
    changes = list(_wider_limits(run, clipped.mean))
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


def _wider_limits(run: RunRecord, clipped: float) -> Iterator[Advice]:
    """Of the limits of ratios, those that account for half of the tokens."""
    for key, share in (("tis_limit", "policy/tis_frac"), ("mis_limit", "policy/mis_frac")):
        limit = float(run.setting(f"algorithm.{key}") or 0)
        if limit and run.level(share) >= clipped / 2:
            yield run.change(f"algorithm.{key}", rounded(2 * limit), f"{run.level(share):.0%} of the tokens are beyond")


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
