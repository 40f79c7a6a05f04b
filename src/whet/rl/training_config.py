"""`TrainingConfig`: the sections and keys that every run that trains has, whatever it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from whet.config import Paths, StrictModel
from whet.envs.config.env_table import EnvTable
from whet.envs.identity.ids import parse_id
from whet.inference.model_names import MODEL_HELP
from whet.rl.deployment_config import DeploymentConfig
from whet.rl.inference_config import InferenceConfig
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.monitors.config import TrackioConfig, WandbConfig
from whet.rl.sampling_config import EvalSamplingConfig
from whet.rl.supervision.early_stop import EarlyStopConfig
from whet.rl.supervision.watchdog import WatchdogConfig
from whet.runs.directory import free_path
from whet.system.redaction import redacted


class TrainingEnvConfig(EnvTable):
    """`[[env]]`: one environment to learn from."""

    weight: float = Field(1.0, gt=0, description="Share of the groups of a batch, relative to the other environments.")
    name: str | None = Field(
        None, min_length=1, description="Name in metrics; if absent the id without owner and version."
    )

    @property
    def label(self) -> str:
        if self.name is not None:
            return self.name
        wanted = parse_id(self.id)
        return wanted.name if wanted.verified else Path(self.id).name


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

    def settled(self, began: Mapping[str, Any] | None = None) -> Self:
        """With a dtype for each `auto`: by device, or, resumed, by the saved config that the run `began` with.

        So a run keeps its dtypes on whatever device it is resumed. Raises `ConfigError` for a missing device.
        """
        before: Mapping[str, Any] = began or {}
        learner = before.get("learner", {}) if began is not None else None
        learns, samples = self.on_cuda
        adapter = self.lora is not None
        changes: dict[str, Any] = {"learner": self.learner.settled(adapter=adapter, began=learner, on_cuda=learns)}
        inference: InferenceConfig | None = getattr(self, "inference", None)
        if inference is not None:
            sampler = before.get("inference", {}) if began is not None else None
            changes["inference"] = inference.settled(sampler, on_cuda=samples)
        return self.model_copy(update=changes)

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


def set_name(data: dict[str, Any], path: Path) -> None:
    """Name a run after its file where the config does not name it; `auto` is the first such name that is free."""
    runs, stem = Path(str(data.get("runs_directory", "runs"))), path.stem
    if data.setdefault("name", stem) == "auto":
        data["name"] = free_path(runs, stem).name
