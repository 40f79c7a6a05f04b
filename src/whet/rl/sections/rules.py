"""What the keys of a run's config demand of each other: a function for each rule, which says why a config breaks it.

They are checked in their order, and the first that is broken is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whet.inference.protocol import GREEDY_BELOW
from whet.rl.sections.algorithm import CURRENT
from whet.rl.sections.inference import OF_A_POOL
from whet.rl.sections.training import early_stop_without_effect

if TYPE_CHECKING:
    from whet.rl.config import RunConfig

Rule = Callable[["RunConfig"], str | None]


def batches_are_whole_groups(run: RunConfig) -> str | None:
    over = run.batch_size % run.rollouts_per_example
    if not over:
        return None
    low = run.batch_size - over
    near = " or ".join(str(size) for size in (low, low + run.rollouts_per_example) if size)
    return (
        f"batch_size = {run.batch_size} is not divisible by rollouts_per_example = {run.rollouts_per_example}; "
        f"use batch_size = {near}"
    )


def minibatches_are_whole_groups(run: RunConfig) -> str | None:
    groups = run.batch_size // run.rollouts_per_example
    if not groups % run.algorithm.minibatches:
        return None
    return (
        f"algorithm.minibatches = {run.algorithm.minibatches} does not divide the {groups} groups of a batch "
        f"(batch_size / rollouts_per_example): an optimiser step learns from whole groups"
    )


def a_group_runs_whole(run: RunConfig) -> str | None:
    if run.max_concurrent >= run.rollouts_per_example:
        return None
    return (
        f"max_concurrent = {run.max_concurrent} is less than rollouts_per_example = {run.rollouts_per_example}: a "
        "group could never run whole"
    )


def synchronous_training_has_no_lead(run: RunConfig) -> str | None:
    if run.asynchronous:
        return None
    why = "max_async_level is 0" + ("" if "max_async_level" in run.model_fields_set else " (its default)")
    if run.deployment.engine_process is True:
        return (
            f"deployment.engine_process = true has no effect: {why}, so sampling and learning take turns in one "
            "process. Set max_async_level = 1, or remove engine_process."
        )
    for key in ("oversampling_factor", "max_off_policy_steps"):
        if run.differs(key):
            return (
                f"{key} = {getattr(run, key):g} has no effect: {why}, so training is synchronous. Set "
                f"max_async_level = 1, or remove {key}."
            )
    return None


def rollouts_may_be_as_old_as_their_lead(run: RunConfig) -> str | None:
    if not run.asynchronous or run.max_off_policy_steps >= run.max_async_level:
        return None
    return (
        f"max_off_policy_steps = {run.max_off_policy_steps} is less than max_async_level = {run.max_async_level}: most "
        "rollouts would be too old before they are trained"
    )


def early_stopping_can_act(run: RunConfig) -> str | None:
    return None if run.early_stop is None else early_stop_without_effect(run.early_stop, run.eval, run.env)


def environments_have_one_share_each(run: RunConfig) -> str | None:
    ratios = run.buffer.env_ratios
    if ratios and len(ratios) != len(run.env):
        return f"buffer.env_ratios has {len(ratios)} shares for {len(run.env)} [[env]]: one for each"
    if ratios and any(env.weight != 1 for env in run.env):
        return "buffer.env_ratios and the weight of an [[env]] say the same thing: drop one of the two"
    if any(env.weight != 1 or env.loss_weight != 1 for env in run.eval.env):
        return "a weight of an [[eval.env]] has no effect: each is scored on eval.num_examples tasks"
    return None


def a_teacher_teaches(run: RunConfig) -> str | None:
    reference, kinds = run.algorithm.differs("reference"), {env.algorithm for env in run.env}
    if any(env.max_concurrent is not None for env in run.eval.env):
        return "max_concurrent of an [[eval.env]] has no effect: evaluations have eval.max_concurrent"
    if any(env.algorithm != "rl" or env.differs("hint_prompt") for env in run.eval.env):
        return "algorithm and hint_prompt of an [[eval.env]] have no effect: it is not learned from"
    if any(env.differs("hint_prompt") and env.algorithm != "opsd" for env in run.env):
        return 'hint_prompt of an [[env]] has no effect without algorithm = "opsd"'
    if run.algorithm.reference == CURRENT and (run.algorithm.kl_coef or kinds.isdisjoint({"opsd"}) or "opd" in kinds):
        return 'algorithm.reference = "current" is the teacher of opsd alone: kl_coef and opd need other weights'
    for key in ("reset_reference", "reference_decay"):
        if getattr(run.algorithm, key) is not None and run.reference is None:
            return f"{key} would have no effect: kl_coef is 0, and no [[env]] has a teacher"
    if not run.distilled:
        return "algorithm.reference would have no effect: kl_coef is 0" if reference and run.reference is None else None
    if run.teacher is None and "opd" in kinds and not reference:
        return 'algorithm = "opd" of an [[env]] needs a teacher: set [algorithm] reference to a model, or [teacher]'
    if run.algorithm.has_critic:
        return 'algorithm of an [[env]]: a critic (advantage = "gae") learns rewards, which distillation ignores'
    if run.buffer.difficulty_threshold:
        return "buffer.difficulty_threshold replaces groups by their rewards, which distillation ignores: remove it"
    if run.algorithm.loss == "cross_entropy":
        return 'algorithm of an [[env]] has no effect on loss = "cross_entropy", which imitates all rollouts'
    return None


def preferences_are_of_pairs(run: RunConfig) -> str | None:
    if not run.algorithm.prefers:
        return None
    if run.rollouts_per_example < 2:
        return 'algorithm.loss = "dpo" compares rollouts of a group: set rollouts_per_example to 2 or more'
    if run.distilled:
        return 'algorithm.loss = "dpo" is divided by its pairs, of which an [[env]] that is distilled has none'
    for key in ("minibatches", "epochs", "aggregation", "kl_coef", "entropy_coef", "entropy_target", "critic"):
        if run.algorithm.differs(key) or (key == "critic" and run.algorithm.has_critic):
            return (
                f'algorithm.{key} is not for loss = "dpo": its margins are those before the one step of a batch, its '
                "loss is the mean over pairs, and dpo_beta holds to the reference"
            )
    return None


def the_learner_has_the_whole_distribution_of_its_teacher(run: RunConfig) -> str | None:
    if not run.algorithm.distill_top_k:
        return None
    if run.hinted or run.teacher is not None or not run.distilled:
        return (
            'distill_top_k needs a teacher that the learner has, and its prompts: algorithm = "opd", and no [teacher]'
        )
    if run.algorithm.renormalise_cuts:
        return "distill_top_k is of all tokens, and renormalise_cuts compares within what was left to draw. Remove one."
    return None


def a_teacher_at_an_endpoint_scores_what_was_sampled(run: RunConfig) -> str | None:
    if run.teacher is None:
        return None
    if not run.distilled:
        return '[teacher] has no effect: no [[env]] has algorithm = "opd" or "opsd"'
    if run.algorithm.differs("reference") and not run.algorithm.kl_coef:
        return "algorithm.reference has no effect: the teacher is that of [teacher], and kl_coef is 0"
    if run.sampling.temperature != 1 or run.sampling.temp_scheduler is not None:
        return "[teacher] returns probabilities of temperature 1: set sampling.temperature = 1, without a scheduler"
    if run.algorithm.renormalise_cuts:
        return "algorithm.renormalise_cuts compares within what was left to draw, which [teacher] does not. Remove one."
    return None


def environments_have_names_of_their_own(run: RunConfig) -> str | None:
    for environments, where in ((run.env, "[[env]]"), (run.eval.env, "[[eval.env]]")):
        labels = [env.label for env in environments]
        if twice := {label for label in labels if labels.count(label) > 1}:
            return f'{where} {sorted(twice)[0]!r} is there twice; give each its own name = "..."'
    return None


def rollouts_of_a_group_differ(run: RunConfig) -> str | None:
    if run.sampling.temperature >= GREEDY_BELOW:
        return None
    return (
        f"sampling.temperature = {run.sampling.temperature:g} makes every rollout of a group the same: nothing to "
        "learn from"
    )


def an_embedded_engine_is_one(run: RunConfig) -> str | None:
    inference, gpus = run.inference, run.gpus
    if inference.engine != "embedded" or run.deployment.ray_address is not None:
        return None
    if keys := set(OF_A_POOL) & set(inference.vllm_keys):
        return (
            f"inference.{min(keys)} would have no effect: without ray_address there is one embedded engine. "
            'Set engine = "vllm", or remove the key.'
        )
    if gpus.infer > 1:
        return (
            f"num_infer_gpus = {gpus.infer}: the embedded engine computes on one GPU. Use inference.engine = "
            '"vllm", or 1.'
        )
    return None


def a_quantised_base_is_sampled_from_here(run: RunConfig) -> str | None:
    if not (form := run.quantised_base):
        return None
    if run.deployment.colocate:
        return (
            "colocate = true frees the engine's weights while the learner computes, and with lora.base = "
            f'"{form}" both have the same ones. Remove colocate.'
        )
    if run.engine == "embedded":
        return None
    return (
        f'lora.base = "{form}" is of matrices that learner and engine dequantise when they multiply with them, and '
        'vLLM is given weights in float32 or bfloat16. Set inference.engine = "embedded", or lora.base = "dense".'
    )


def a_cluster_shares_no_machine(run: RunConfig) -> str | None:
    if run.deployment.ray_address is None:
        return None
    if run.deployment.colocate:
        return "colocate = true shares GPUs of one machine, and ray_address spreads a run. Remove one."
    if run.deployment.engine_process != "auto":
        return "deployment.engine_process has no effect with ray_address: engines are in actors. Remove it."
    return None


def taking_turns_is_on_one_device(run: RunConfig) -> str | None:
    if not run.deployment.colocate:
        return None
    if run.asynchronous:
        return (
            "colocate = true takes turns, and max_async_level > 0 samples while the learner computes. Remove one "
            "of the two."
        )
    if run.learner.device != run.inference.device:
        return (
            f'colocate = true samples and learns on one device: learner.device = "{run.learner.device}" and '
            f'inference.device = "{run.inference.device}" are two. Set both to the same, or remove colocate.'
        )
    return None


def there_are_as_many_servers_as_must_answer(run: RunConfig) -> str | None:
    servers = len(run.inference.base_url) or run.gpus.servers
    if run.inference.min_healthy <= servers:
        return None
    return f"inference.min_healthy = {run.inference.min_healthy}, but there are {servers} servers"


def vllm_reports_what_is_learned_from(run: RunConfig) -> str | None:
    if run.engine == "embedded":
        return None
    if run.deployment.engine_process != "auto":
        return "deployment.engine_process has no effect with vLLM: its servers are processes of their own. Remove it."
    if run.algorithm.renormalise_cuts:
        return (
            "algorithm.renormalise_cuts needs the embedded engine: vLLM does not report which tokens were left to "
            'draw. Set inference.engine = "embedded", or remove renormalise_cuts.'
        )
    cuts, scaled = run.cuts(), run.temperatures()
    if not cuts or not scaled:
        return None
    named = " and ".join(cuts)
    return (
        f"{scaled[0]} with {named} would give wrong logprobs with vLLM: they are either those of temperature 1, or of "
        f"the tokens that {named} left. Use temperature = 1, or drop {named}; "
        'inference.engine = "embedded" allows both.'
    )


def a_budget_of_rollouts_holds_a_batch(run: RunConfig) -> str | None:
    most = run.budget.max_rollouts
    if most is None or most >= run.batch_size:
        return None
    return (
        f"budget.max_rollouts = {most} is less than one batch (batch_size = {run.batch_size}): no step could be taken"
    )


RULES: tuple[Rule, ...] = (
    batches_are_whole_groups,
    a_budget_of_rollouts_holds_a_batch,
    minibatches_are_whole_groups,
    a_group_runs_whole,
    synchronous_training_has_no_lead,
    rollouts_may_be_as_old_as_their_lead,
    early_stopping_can_act,
    environments_have_one_share_each,
    a_teacher_teaches,
    preferences_are_of_pairs,
    the_learner_has_the_whole_distribution_of_its_teacher,
    a_teacher_at_an_endpoint_scores_what_was_sampled,
    environments_have_names_of_their_own,
    rollouts_of_a_group_differ,
    an_embedded_engine_is_one,
    a_quantised_base_is_sampled_from_here,
    a_cluster_shares_no_machine,
    taking_turns_is_on_one_device,
    there_are_as_many_servers_as_must_answer,
    vllm_reports_what_is_learned_from,
)
