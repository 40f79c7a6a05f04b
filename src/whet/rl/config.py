"""`RunConfig`: one TOML shape for a local run, a cluster run and a submitted run.

Strict: an unknown key, a key that would have no effect, or two that contradict are errors. Sections live next to what
they configure (`learner/config.py`, `algorithm_config.py`); those that only describe a run are here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.config import Paths, StrictModel, all_keys, apply_overrides, parse_overrides, read_toml, validate
from whet.envs.config.env_table import EnvTable
from whet.envs.config.sections import with_files
from whet.envs.identity.ids import label_of
from whet.errors import ConfigError
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, choose_device
from whet.inference.model_names import MODEL_HELP
from whet.inference.protocol import GREEDY_BELOW
from whet.rl.algorithm_config import AlgorithmConfig
from whet.rl.data.buffer import BufferConfig
from whet.rl.learner.config import (
    AUTO_DTYPE,
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    Precision,
    settled_dtype,
)
from whet.rl.monitors.config import TrackioConfig, WandbConfig
from whet.rl.spellings import canonical
from whet.rl.supervision.budgets import BudgetConfig
from whet.rl.supervision.early_stop import EarlyStopConfig
from whet.rl.supervision.watchdog import WatchdogConfig
from whet.runs.directory import free_path
from whet.system.redaction import redacted

LATER = {
    "workers_per_env": "worker processes for environments",
    "sampling.extra_body": "extra fields for remote engines",
    "inference.tensor_parallel_size": "vLLM",
    "inference.pipeline_parallel_size": "vLLM",
    "inference.gpu_memory_utilization": "vLLM",
    "inference.base_url": "remote engines",
    "deployment.num_gpus": "several GPUs",
    "deployment.num_train_gpus": "several GPUs",
    "deployment.num_infer_gpus": "several GPUs",
    "deployment.colocate": "several GPUs",
    "deployment.ray_address": "Ray clusters",
    "num_gpus": "several GPUs",
    "tensor_parallel_size": "vLLM",
    "pipeline_parallel_size": "vLLM",
}
"""Keys of the planned config that this version cannot honour, and what they belong to. Refused rather than ignored."""


ONE_DEVICE = ("num_gpus", "tensor_parallel_size", "pipeline_parallel_size")
"""Keys of `LATER`, in any table, whose value 1 asks for what this version does anyway: dropped."""

INSTEAD = {
    "sampling.seed": "rollouts of a group would all be the same. The run's own 'seed' fixes every draw",
    "sampling.n": "rollouts_per_example says how often a task is attempted",
}
"""Keys of sampling arguments elsewhere that a run has no use for, and why."""


LEAST_SLACK, RECOMMENDED_SLACK = 2, 7
"""Versions that max_off_policy_steps is above max_async_level: below the first, long rollouts may never be trained; the
second is what the defaults of asynchronous training leave."""


class TemperatureSchedule(StrictModel):
    """`[sampling.temp_scheduler]`: rollouts of training begin at another temperature with each policy version."""

    type: Literal["linear", "cosine"] = Field("linear", description="How the temperature goes from start to end.")
    start: float = Field(gt=0, description="Temperature of the first step.")
    end: float = Field(gt=0, description="Temperature of the last step of the schedule, and of those after it.")
    steps: int = Field(0, ge=0, description="Steps of the schedule; 0: all of max_steps.")

    def at(self, version: int, max_steps: int) -> float:
        """The temperature of rollouts that begin with weights of policy `version`; 0 is before the first step."""
        share = min(version / max((self.steps or max_steps) - 1, 1), 1.0)
        if self.type == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


class SamplingConfig(StrictModel):
    """`[sampling]`: how rollouts draw their tokens."""

    max_tokens: int = Field(512, ge=1, description="Most new tokens in one turn.")
    temperature: float = Field(1.0, ge=0, description="Softmax temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the most likely tokens up to this probability.")
    top_k: int = Field(0, ge=0, description="Keep this many most likely tokens; 0 keeps all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Drop tokens less likely than this share of the likeliest.")
    stop: tuple[str, ...] = Field((), description="Strings that end a turn.")
    enable_thinking: bool | None = Field(
        None, description="Ask the chat template for thinking or for none; absent: what the template does by itself."
    )
    temp_scheduler: TemperatureSchedule | None = Field(
        None, description="Temperature of training's rollouts by step; evaluations keep temperature."
    )

    def args(self) -> dict[str, Any]:
        """The sampling arguments that a rollout is given; settings that change nothing are left out."""
        always = self.model_dump(include={"max_tokens", "temperature"})
        return always | self.model_dump(mode="json", exclude={"temp_scheduler"}, exclude_defaults=True)


class EvalSamplingConfig(StrictModel):
    """`[eval.sampling]`: what differs from `[sampling]` while evaluating."""

    max_tokens: int | None = Field(None, ge=1, description="Most new tokens in one turn.")
    temperature: float | None = Field(None, ge=0, description="Softmax temperature; 0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1, description="Keep the most likely tokens up to this probability.")
    top_k: int | None = Field(None, ge=0, description="Keep this many most likely tokens; 0 keeps all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Drop tokens below this share of the likeliest.")
    stop: tuple[str, ...] | None = Field(None, description="Strings that end a turn.")
    enable_thinking: bool | None = Field(None, description="Ask the chat template for thinking or for none.")


class TrainingEnvConfig(EnvTable):
    """`[[env]]`: one environment to learn from."""

    weight: float = Field(1.0, gt=0, description="Share of the groups of a batch, relative to the other environments.")
    name: str | None = Field(None, min_length=1, description="Name in metrics; the id if absent.")

    @property
    def label(self) -> str:
        return self.name or Path(label_of(self.id)).name


class HeldOutConfig(StrictModel):
    """`[eval]`: scores on held-out tasks before, during and after training."""

    interval: int = Field(0, ge=0, description="Steps between evaluations; 0 evaluates only before and after.")
    num_examples: int = Field(64, ge=1, description="Held-out tasks per environment.")
    rollouts_per_example: int = Field(1, ge=1, description="Rollouts of each task.")
    before: bool = Field(True, description="Evaluate before the first step.")
    after: bool = Field(True, description="Evaluate after the last step.")
    greedy: bool = Field(True, description="Evaluate greedily as well as at the evaluation's temperature.")
    max_retries: int = Field(
        0, ge=0, description="Further attempts of a rollout that failed because of a model or an endpoint."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds a rollout may take; one that takes longer failed.")
    sampling: EvalSamplingConfig = Field(default_factory=EvalSamplingConfig, description="Overrides of [sampling].")
    env: tuple[TrainingEnvConfig, ...] = Field((), description="Environments to evaluate; those of training if absent.")


class CheckpointingConfig(StrictModel):
    """`[checkpointing]`: when the run is saved."""

    save_every_n_steps: int = Field(50, ge=1, description="Steps between checkpoints; the last step is always saved.")
    keep_n_checkpoints: int = Field(10, ge=1, description="How many of the newest checkpoints to keep.")
    export_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the weights that a run leaves, and of those that whet train export writes."
    )


class InferenceConfig(StrictModel):
    """`[inference]`: the engine that samples."""

    engine: Literal["auto", "embedded"] = Field("auto", description="auto picks the embedded torch engine.")
    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where the engine computes: {DEVICE_HELP}")
    dtype: Precision = Field(
        "auto", description=f"bfloat16 is faster from about 4M parameters up, float32 exact. {AUTO_DTYPE}"
    )

    @field_validator("engine", mode="before")
    @classmethod
    def _one_engine(cls, engine: Any) -> Any:
        if engine not in ("auto", "embedded"):
            raise ValueError(
                f"this version samples with the embedded torch engine alone, because training hands it new weights "
                f"at every step; {engine!r} is not in it. Use 'embedded', or remove the key."
            )
        return engine

    def settled(self, began: Mapping[str, Any] | None) -> Self:
        """As `TrainingConfig.settled`."""
        on_cuda = choose_device(self.device, "[inference] device").startswith("cuda")
        otherwise: Precision = "bfloat16" if on_cuda else "float32"
        return self.model_copy(update={"dtype": settled_dtype(self.dtype, "dtype", began, otherwise)})


class DeploymentConfig(StrictModel):
    """`[deployment]`: what of the machine a run may use."""

    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 uses one per core, at most 4.")
    engine_process: bool | Literal["auto"] = Field(
        "auto", description="Sample in a process apart from rollouts and scoring; auto: with asynchronous training."
    )

    def torch_threads(self) -> int:
        return self.threads or min(4, _cores())


def _cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TrainingConfig(StrictModel):
    """What every run that trains is configured with, whatever it learns from."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="The run is the directory runs/<name>.")
    model: str = Field("whet/tiny", min_length=1, description=MODEL_HELP)
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate.")
    seed: int = Field(0, ge=0, description="Seed of everything random.")
    env_file: Paths = Field((), description="Files of KEY=VALUE lines for environments; never saved.")
    runs_directory: Path = Field(Path("runs"), description="Where run directories are made.")

    lora: LoraConfig | None = Field(None, description="Present: train an adapter. Absent: all weights.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="Update rule and schedule.")
    learner: LearnerConfig = Field(default_factory=LearnerConfig, description="How a batch is computed.")
    checkpointing: CheckpointingConfig = Field(
        default_factory=CheckpointingConfig, description="When the run is saved."
    )
    watchdog: WatchdogConfig = Field(
        default_factory=WatchdogConfig, description="How long anything may wait for anything."
    )
    wandb: WandbConfig | None = Field(None, description="Present: track the run with Weights & Biases.")
    trackio: TrackioConfig | None = Field(None, description="Present: track the run with trackio.")
    deployment: DeploymentConfig = Field(default_factory=DeploymentConfig, description="What of the machine to use.")

    @model_validator(mode="after")
    def _dtypes_have_an_effect(self) -> Self:
        self.learner.check_dtypes(self.lora)
        return self

    def settled(self, began: Mapping[str, Any] | None = None) -> Self:
        """With a dtype for each `auto`: by device, or, resumed, by the saved config that the run `began` with.

        So a run keeps its dtypes on whatever device it is resumed. Raises `ConfigError` for a missing device.
        """
        before: Mapping[str, Any] = began or {}
        learner = before.get("learner", {}) if began is not None else None
        changes: dict[str, Any] = {"learner": self.learner.settled(adapter=self.lora is not None, began=learner)}
        inference: InferenceConfig | None = getattr(self, "inference", None)
        if inference is not None:
            changes["inference"] = inference.settled(before.get("inference", {}) if began is not None else None)
        return self.model_copy(update=changes)

    @property
    def directory(self) -> Path:
        return self.runs_directory / self.name

    def to_toml(self) -> str:
        """The resolved config; reading it back gives an equal config."""
        import tomli_w

        return tomli_w.dumps(redacted(self.model_dump(mode="json", exclude_none=True)))


class RunConfig(TrainingConfig):
    """A training run."""

    max_steps: int = Field(100, ge=1, description="Optimiser steps.")
    batch_size: int = Field(128, ge=1, description="Rollouts per optimiser step.")
    rollouts_per_example: int = Field(8, ge=1, description="Group size: rollouts of one task.")
    max_async_level: int = Field(
        0, ge=0, description="Policy versions that sampling may begin ahead of the learner; 0 is synchronous."
    )
    oversampling_factor: float = Field(
        1.0, gt=0, description="Groups sampled ahead, in batches: below 1 they are fresher, above it hide slow ones."
    )
    max_off_policy_steps: int = Field(
        8, ge=0, description="Rollouts begun more policy versions ago than this are cancelled and replaced."
    )
    max_concurrent: int = Field(512, ge=1, description="Rollouts in flight at once.")

    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="How rollouts draw tokens.")
    env: tuple[TrainingEnvConfig, ...] = Field(min_length=1, description="One or many environments.")
    buffer: BufferConfig = Field(default_factory=BufferConfig, description="Which groups make a batch.")
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig, description="Advantage and loss.")
    eval: HeldOutConfig = Field(default_factory=HeldOutConfig, description="Scores on held-out tasks.")
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="When the run ends before its last step.")
    early_stop: EarlyStopConfig | None = Field(None, description="Present: end when held-out scores stop rising.")
    inference: InferenceConfig = Field(default_factory=InferenceConfig, description="The engine that samples.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_size % self.rollouts_per_example:
            low = self.batch_size - self.batch_size % self.rollouts_per_example
            near = " or ".join(str(size) for size in (low, low + self.rollouts_per_example) if size)
            raise ValueError(
                f"batch_size = {self.batch_size} is not divisible by rollouts_per_example = "
                f"{self.rollouts_per_example}; use batch_size = {near}"
            )
        if self.max_concurrent < self.rollouts_per_example:
            raise ValueError(
                f"max_concurrent = {self.max_concurrent} is less than rollouts_per_example = "
                f"{self.rollouts_per_example}: a group could never run whole"
            )
        if not self.asynchronous:
            why = "max_async_level is 0" + ("" if "max_async_level" in self.model_fields_set else " (its default)")
            if self.deployment.engine_process is True:
                raise ValueError(
                    f"deployment.engine_process = true has no effect: {why}, so sampling and learning take turns "
                    "in one process. Set max_async_level = 1, or remove engine_process."
                )
            for key in ("oversampling_factor", "max_off_policy_steps"):
                if self.differs(key):
                    raise ValueError(
                        f"{key} = {getattr(self, key):g} has no effect: {why}, so training is synchronous. "
                        f"Set max_async_level = 1, or remove {key}."
                    )
        elif self.max_off_policy_steps < self.max_async_level:
            raise ValueError(
                f"max_off_policy_steps = {self.max_off_policy_steps} is less than max_async_level = "
                f"{self.max_async_level}: most rollouts would be too old before they are trained"
            )
        if self.early_stop is not None:
            check_early_stop(self.early_stop, self.eval, self.env)
        ratios = self.buffer.env_ratios
        if ratios and len(ratios) != len(self.env):
            raise ValueError(f"buffer.env_ratios has {len(ratios)} shares for {len(self.env)} [[env]]: one for each")
        if ratios and any(env.weight != 1 for env in self.env):
            raise ValueError("buffer.env_ratios and the weight of an [[env]] say the same thing: drop one of the two")
        if any(env.weight != 1 for env in self.eval.env):
            raise ValueError("the weight of an [[eval.env]] has no effect: each is scored on eval.num_examples tasks")
        for environments, where in ((self.env, "[[env]]"), (self.eval.env, "[[eval.env]]")):
            labels = [env.label for env in environments]
            if twice := {label for label in labels if labels.count(label) > 1}:
                raise ValueError(f'{where} {sorted(twice)[0]!r} is there twice; give each its own name = "..."')
        if self.sampling.temperature < GREEDY_BELOW:
            raise ValueError(
                f"sampling.temperature = {self.sampling.temperature:g} makes every rollout of a group the same: "
                "nothing to learn from"
            )
        return self

    @property
    def groups_per_batch(self) -> int:
        return self.batch_size // self.rollouts_per_example

    @property
    def asynchronous(self) -> bool:
        """Whether rollouts run while the learner computes."""
        return self.max_async_level > 0

    @property
    def cautions(self) -> list[str]:
        """Warnings at the start of the run: what is allowed and rarely meant."""
        limit, level = self.max_off_policy_steps, self.max_async_level
        if not self.asynchronous or limit - level >= LEAST_SLACK:
            return []
        return [
            f"max_off_policy_steps = {limit} with max_async_level = {level}: a rollout that takes longer than {limit} "
            f"step{'s' * (limit != 1)} of the learner is never trained, so long ones may be missing "
            "(rollouts/long_drawn_frac and rollouts/long_trained_frac say how many). "
            f"max_off_policy_steps = {level + RECOMMENDED_SLACK} leaves them time."
        ]

    @property
    def engine_process(self) -> bool:
        """Whether the engine runs in a process of its own."""
        wanted = self.deployment.engine_process
        return self.asynchronous if wanted == "auto" else wanted

    def threads(self) -> tuple[int, int]:
        """Torch threads of engine and learner: the same ones in turn, or a part each where both compute at once."""
        threads = self.deployment.torch_threads()
        if not self.asynchronous:
            return threads, threads
        return max(1, threads // 2), max(1, threads - threads // 2)

    @property
    def env_weights(self) -> tuple[float, ...]:
        """Shares of the environments, in their order."""
        return self.buffer.env_ratios or tuple(env.weight for env in self.env)

    def eval_sampling(self) -> SamplingConfig:
        """`[sampling]` with what `[eval.sampling]` changes."""
        return self.sampling.model_copy(update=self.eval.sampling.model_dump(exclude_none=True))


def check_early_stop(
    early_stop: EarlyStopConfig, evaluated: HeldOutConfig | None, environments: tuple[TrainingEnvConfig, ...] = ()
) -> None:
    """Raise `ValueError` where nothing would ever be measured. `environments` are evaluated where [eval] names none."""
    if evaluated is None or not evaluated.interval:
        raise ValueError("[early_stop] has no effect without evaluations during training: set eval.interval")
    names = [env.label for env in evaluated.env or environments]
    if early_stop.environment not in (None, *names):
        raise ValueError(
            f"early_stop.environment = {early_stop.environment!r} is not evaluated; choose from {', '.join(names)}"
        )


def load_run_config(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a config file, apply `--key value` overrides, and check everything.

    `--name auto` takes the first free of `<file name>`, `<file name>-2`, `<file name>-3`, ...
    Raises `ConfigError`, one line per mistake.
    """
    data = canonical(read_toml(path), str(path))
    data = canonical(apply_overrides(data, parse_overrides(overrides or [])), str(path))
    if "data" in data and "env" not in data:
        raise ConfigError(f"{path} is a config of whet train sft: it has [data] and no [[env]]")
    set_name(data, path)
    for sections in (data.get("env"), data["eval"].get("env") if isinstance(data.get("eval"), dict) else None):
        for section in sections if isinstance(sections, list) else ():
            if isinstance(section, dict) and isinstance(section.get("args"), dict):
                section["args"] = with_files(section["args"], path.parent, str(path))
    _refuse_later(data, str(path))
    return validate(RunConfig, data, str(path))


def _refuse_later(data: dict[str, Any], source: str) -> None:
    known = set(all_keys(RunConfig))
    lines = []
    for key, feature in LATER.items():
        assert key not in known, f"{key} is implemented: take it out of LATER"
        section, _, last = key.rpartition(".")
        table = data.get(section, {}) if section else data
        if last in ONE_DEVICE and isinstance(table, dict) and type(one := table.get(last)) is int and one == 1:
            del table[last]
        elif isinstance(table, dict) and last in table:
            lines.append(f"{source}: '{key}' would have no effect: {feature} is not in this version. Remove the key.")
    lines += [
        f"{source}: '{key}' is not a setting of a run: {reason}. Remove the key."
        for key, reason in INSTEAD.items()
        if key.rpartition(".")[2] in data.get("sampling", {})
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def set_name(data: dict[str, Any], path: Path) -> None:
    """Name a run after its file where the config does not name it; `auto` is the first such name that is free."""
    runs, stem = Path(str(data.get("runs_directory", "runs"))), path.stem
    if data.setdefault("name", stem) == "auto":
        data["name"] = free_path(runs, stem).name
