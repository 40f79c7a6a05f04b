"""`TrainingConfig`: the sections and keys that every run that trains has, whatever it learns from.

`[sampling]` and `[eval.sampling]`: how rollouts draw their tokens.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.config import Paths, StrictModel
from whet.envs.config.env_table import EnvTable
from whet.envs.identity.ids import parse_id
from whet.inference.model_names import MODEL_HELP
from whet.records.directory import free_path
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig, Precision
from whet.rl.monitors.config import TrackioConfig, WandbConfig
from whet.rl.sections.inference import DeploymentConfig, InferenceConfig
from whet.rl.supervision.ending import EarlyStopConfig
from whet.rl.supervision.watchdog import WatchdogConfig
from whet.system.redaction import redacted


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


HINT = "{hint}"
HINT_PROMPT = f"This is known of the task. Answer as if you had come to it yourself:\n{HINT}"


class TrainingEnvConfig(EnvTable):
    """`[[env]]`: one environment to learn from."""

    weight: float = Field(1.0, gt=0, description="Share of the groups of a batch, relative to the other environments.")
    algorithm: Literal["rl", "opd", "opsd"] = Field(
        "rl",
        description="What its rollouts are learned by: their rewards, or (opd, on-policy distillation) the KL to the "
        "teacher, which is [algorithm] reference; with opsd (self-distillation) the teacher has a hint in its prompt.",
    )
    hint_prompt: str = Field(
        HINT_PROMPT,
        description=f"Of opsd: what the teacher reads behind the last message of the user; {HINT} becomes the hint.",
    )
    loss_weight: float = Field(
        1.0, gt=0, description="What the loss of its tokens is multiplied with, relative to the other environments."
    )
    max_concurrent: int | None = Field(
        None,
        ge=1,
        description="Its rollouts in flight at once, so that slow ones leave slots to others; None: as of the run.",
    )
    name: str | None = Field(
        None, min_length=1, description="Name in metrics; if absent the id without owner and version."
    )

    @field_validator("hint_prompt")
    @classmethod
    def _has_the_hint(cls, value: str) -> str:
        if HINT not in value:
            raise ValueError(f"hint_prompt has to say where the hint goes: {HINT}")
        return value

    @property
    def label(self) -> str:
        if self.name is not None:
            return self.name
        wanted = parse_id(self.id)
        return wanted.name if wanted.verified or wanted.contract else Path(self.id).name


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
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="How rollouts draw tokens.")
    eval: HeldOutConfig = Field(default_factory=HeldOutConfig, description="Scores on held-out tasks.")
    inference: InferenceConfig = Field(default_factory=InferenceConfig, description="The engine that samples.")

    @property
    def samples(self) -> bool:
        """Whether there is an engine."""
        return True

    def eval_sampling(self) -> SamplingConfig:
        """`[sampling]` with what `[eval.sampling]` changes."""
        return self.sampling.model_copy(update=self.eval.sampling.model_dump(exclude_none=True))

    @property
    def ranks(self) -> int:
        """Processes that divide the learner among them; 1: it is not divided."""
        return self.learner.ranks or 1

    @property
    def learner_process(self) -> bool:
        """Whether the learner computes in a process, or in ranks, of its own."""
        return self.ranks > 1

    @model_validator(mode="after")
    def _ranks_fit(self) -> Self:
        learner, ranks, act = self.learner, self.ranks, self.watchdog.act_seconds
        if ranks > 1 and learner.device == "mps":
            raise ValueError(f'learner.ranks = {ranks}: ranks compute on CUDA devices or CPUs, not on device = "mps"')
        if ranks > 1 and learner.rank_timeout_seconds >= act:
            raise ValueError(
                f"learner.rank_timeout_seconds = {learner.rank_timeout_seconds:g} has to be less than "
                f"watchdog.act_seconds = {act:g}: otherwise the run is stopped before it is known which rank hangs"
            )
        if learner.shard_ranks is not None and (ranks == 1 or ranks % learner.shard_ranks):
            raise ValueError(
                f"learner.shard_ranks = {learner.shard_ranks}: {ranks} rank{'s' * (ranks > 1)} cannot be divided into "
                "groups of so many. Set it to a divisor of the number of ranks, or remove it."
            )
        if ranks == 1 and learner.differs("rank_timeout_seconds"):
            raise ValueError("learner.rank_timeout_seconds would have no effect: the learner is one rank. Remove it.")
        if not self.learner_process and learner.differs("max_restarts"):
            raise ValueError(
                "learner.max_restarts would have no effect: the learner computes in the run's own process. Remove it."
            )
        return self

    @model_validator(mode="after")
    def _dtypes_have_an_effect(self) -> Self:
        self.learner.check_dtypes(self.lora)
        return self

    @property
    def quantised_base(self) -> Literal["packed", "nf4", "int8"] | None:
        """How the base of an adapter is held whose matrices are dequantised when they are multiplied with."""
        return None if self.lora is None or self.lora.base == "dense" else self.lora.base

    @property
    def shared_base(self) -> Precision | Literal["packed", "nf4", "int8"] | None:
        """The dtype of the base that an embedded engine and the learner hold together; None where each has its own
        weights, as those that take turns on a GPU, which move them away."""
        if self.quantised_base:
            return self.quantised_base
        if self.lora is None or self.deployment.colocate:
            return None
        return self.learner.settled(adapter=True).base_dtype

    def settled(self, began: TrainingConfig | None = None) -> Self:
        """With a dtype for each `auto`: by device, or, resumed, by the config that the run `began` with.

        So a run keeps its dtypes on whatever device it is resumed. Raises `ConfigError` for a missing device.
        """
        learns, samples = self.on_cuda
        before = None if began is None else began.learner
        learner = self.learner.settled(adapter=self.lora is not None, began=before, on_cuda=learns)
        inference = self.inference
        if self.samples:
            inference = inference.settled(None if began is None else began.inference, on_cuda=samples)
        return self.model_copy(update={"learner": learner, "inference": inference})

    @property
    def on_cuda(self) -> tuple[bool | None, bool | None]:
        """Whether learner and engine compute on CUDA, where the config says it; None: as the device of this process."""
        return None, None

    @property
    def directory(self) -> Path:
        return self.runs_directory / self.name

    def to_toml(self) -> str:
        """The resolved config; reading it back gives an equal config."""
        import tomli_w

        return tomli_w.dumps(redacted(self.model_dump(mode="json", exclude_none=True)))


def early_stop_without_effect(
    early_stop: EarlyStopConfig, evaluated: HeldOutConfig, environments: tuple[TrainingEnvConfig, ...] = ()
) -> str | None:
    """Why nothing would ever be measured, if so. `environments` are evaluated where [eval] names none."""
    if not evaluated.interval:
        return "[early_stop] has no effect without evaluations during training: set eval.interval"
    names = [env.label for env in evaluated.env or environments]
    if early_stop.environment in (None, *names):
        return None
    return f"early_stop.environment = {early_stop.environment!r} is not evaluated; choose from {', '.join(names)}"


def set_name(data: dict[str, Any], path: Path) -> None:
    """Name a run after its file where the config does not name it; `auto` is the first such name that is free."""
    runs, stem = Path(str(data.get("runs_directory", "runs"))), path.stem
    if data.setdefault("name", stem) == "auto":
        data["name"] = free_path(runs, stem).name
