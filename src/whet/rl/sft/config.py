"""`SftConfig`: the TOML of `whet train sft`. Sections that reinforcement learning has too are its own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from whet.config import StrictModel, apply_overrides, parse_overrides, read_toml, validate
from whet.errors import ConfigError
from whet.rl.sections.algorithm import INITIAL
from whet.rl.sections.spellings import lifted
from whet.rl.sections.training import TrainingConfig, early_stop_without_effect, set_name
from whet.rl.supervision.ending import BudgetConfig, EarlyStopConfig

VALIDATION_LOSS = "validation/loss"
NO_ROLLOUTS: dict[str, tuple[str, ...]] = {
    "learner": ("keep_token_details",),
    "deployment": ("engine_process",),
    "budget": ("max_rollouts", "max_cost"),
    "sampling": ("temp_scheduler",),
    "wandb": ("samples_every",),
}
"""Keys of shared sections that are about rollouts of training; here they would have no effect, which is refused."""


class DataConfig(StrictModel):
    """`[data]`: the conversations to imitate."""

    path: Path | None = Field(
        None,
        description="A .jsonl, .json or .parquet file, a saved dataset, or a directory of evaluations or of a run.",
    )
    dataset: str | None = Field(None, min_length=1, description="Instead of path: a dataset of the Hugging Face hub.")
    split: str = Field("train", min_length=1, description="Split of a dataset that has several.")
    min_reward: float | None = Field(
        None,
        description="Keep rows whose reward is at least this. Rollouts of an evaluation or a run need this or "
        "best_per_example.",
    )
    best_per_example: int | None = Field(
        None, ge=1, description="Keep so many rows of each task, those with the highest rewards."
    )
    num_examples: int = Field(0, ge=0, description="Use only the first so many rows; 0 uses all.")
    train_on: Literal["assistant", "last"] = Field(
        "assistant", description="Which messages carry loss: every one of the assistant, or the last of them."
    )
    text: bool = Field(False, description="prompt and completion are plain text, outside any chat format.")
    enable_thinking: bool | None = Field(
        None, description="Thinking switch of the chat format; absent leaves its own default."
    )
    max_length: int | None = Field(None, ge=2, description="Most tokens of a sequence; absent: the model's context.")
    too_long: Literal["refuse", "cut", "skip"] = Field(
        "refuse", description="What becomes of longer ones: an error that names them, their beginning, or nothing."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            raise ValueError("give either path (a file or directory) or dataset (a name on the Hugging Face hub)")
        if self.text and (self.enable_thinking is not None or self.train_on != "assistant"):
            raise ValueError("text = true has no chat format: enable_thinking and train_on would have no effect")
        return self


class PreferenceConfig(StrictModel):
    """`[dpo]`: present = learn from pairs, to make the better answer likelier and the worse one less likely."""

    beta: float = Field(0.1, gt=0, description="How much it takes to leave the reference.")
    reference: str = Field(
        INITIAL,
        min_length=1,
        description="What margins are compared with: initial (the weights the run began with; with [lora] the base), a "
        "model, or an adapter.",
    )


class ValidationConfig(StrictModel):
    """`[validation]`: conversations that are never trained on, and how often their loss is computed."""

    path: Path | None = Field(None, description="A file or directory, read as [data] path is.")
    fraction: float = Field(0.0, ge=0, lt=1, description="Instead: this share of the rows of [data], by seed.")
    interval: int = Field(0, ge=0, description="Steps between; 0 computes it before the first step and after the last.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.fraction == 0):
            raise ValueError("[validation] needs either path or fraction")
        return self


class SftBudgetConfig(BudgetConfig):
    """`[budget]`: when a run ends before its last step, with a checkpoint. With a larger budget it can be resumed."""

    max_tokens: int | None = Field(None, ge=1, description="Tokens of the rows that were trained, prompts included.")
    max_rows: int | None = Field(
        None, ge=1, description="Rows to train on, in whole batches; evaluated and validated as after the last step."
    )
    max_rollouts: int | None = Field(None, ge=1, description="Refused: no rollout is trained on.")
    max_cost: float | None = Field(None, gt=0, description="Refused: no rollout is trained on that would cost.")


class SftEarlyStopConfig(EarlyStopConfig):
    """`[early_stop]`: present = end the run when what is held out stops getting better, or gets much worse."""

    metric: str = Field(
        VALIDATION_LOSS,
        min_length=1,
        description="validation/loss; or, of evaluations, reward or a reward function or metric of the rubric.",
    )
    patience: int = Field(3, ge=1, description="Validations or evaluations in a row without a new best that end it.")
    collapse: float | None = Field(
        None, gt=0, description="End the run at once when the metric is this much worse than its best; absent: never."
    )

    @property
    def watches_evaluations(self) -> bool:
        return self.metric != VALIDATION_LOSS


class SftConfig(TrainingConfig):
    """A run of supervised fine-tuning."""

    num_epochs: int | None = Field(None, ge=1, description="How often every row is trained; 1 unless max_steps is set.")
    max_steps: int | None = Field(None, ge=1, description="Instead of num_epochs: optimiser steps.")
    batch_size: int = Field(32, ge=1, description="Rows per optimiser step.")
    batch_tokens: int | None = Field(
        None, ge=1, description="Most tokens per optimiser step; a batch ends before the row that would exceed it."
    )
    max_concurrent: int = Field(512, ge=1, description="Rollouts of an evaluation in flight at once.")

    data: DataConfig = Field(description="The conversations to imitate.")
    dpo: PreferenceConfig | None = Field(
        None, description="Present: direct preference optimisation on pairs, and no imitation."
    )
    validation: ValidationConfig | None = Field(None, description="Conversations that are never trained on.")
    budget: SftBudgetConfig = Field(
        default_factory=SftBudgetConfig, description="When the run ends before its last step."
    )
    early_stop: SftEarlyStopConfig | None = Field(
        None, description="Present: end when the validation loss, or a held-out score, gets no better."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_epochs is not None and self.max_steps is not None:
            raise ValueError("max_steps and num_epochs both say when to stop: drop one of the two")
        for name, keys in NO_ROLLOUTS.items():
            section: StrictModel | None = getattr(self, name)
            for key in keys:
                if section is not None and section.differs(key):
                    raise ValueError(f"{name}.{key} would have no effect: no rollout is trained on")
        self._one_device()
        for name in () if self.samples else ("eval", "sampling", "inference"):
            if self.differs(name):
                raise ValueError(f"[{name}] would have no effect: there is no [[eval.env]] to evaluate on")
        data = self.data
        if self.dpo is not None and (data.min_reward is not None or data.best_per_example or data.too_long == "cut"):
            raise ValueError(
                "with [dpo] rollouts are compared with each other: data.min_reward and data.best_per_example have no "
                'effect, and too_long = "cut" could leave nothing to compare'
            )
        if any(env.weight != 1 or env.loss_weight != 1 for env in self.eval.env):
            raise ValueError("a weight of an [[eval.env]] has no effect: each is scored on eval.num_examples tasks")
        if any(env.max_concurrent is not None for env in self.eval.env):
            raise ValueError(
                "max_concurrent of an [[eval.env]] has no effect: evaluations have a max_concurrent of all"
            )
        if any(env.algorithm != "rl" or env.differs("hint_prompt") for env in self.eval.env):
            raise ValueError("algorithm and hint_prompt of an [[eval.env]] have no effect: it is not learned from")
        if self.early_stop is not None:
            self._early_stop_can_act(self.early_stop)
        return self

    def _one_device(self) -> None:
        """Refuse what only reinforcement learning does with several devices or servers."""
        if self.inference.asks_for_vllm:
            key = next(iter(self.inference.vllm_keys), "engine")
            raise ValueError(f"inference.{key}: evaluations of fine-tuning use the embedded engine, not vLLM")
        if (count := self.deployment.num_infer_gpus or 1) > 1:
            raise ValueError(f"deployment.num_infer_gpus = {count}: the engine of evaluations computes on one GPU")
        if self.deployment.colocate:
            raise ValueError("deployment.colocate would have no effect: fine-tuning samples nothing to learn from")
        if self.deployment.ray_address is not None:
            raise ValueError("deployment.ray_address would have no effect: fine-tuning computes on this machine")

    @property
    def ranks(self) -> int:
        """One for each GPU, all of which learn, or on a CPU as many as the config says."""
        said = {
            "learner.ranks": self.learner.ranks,
            "deployment.num_train_gpus": self.deployment.num_train_gpus,
            "deployment.num_gpus": self.deployment.num_gpus,
        }
        counts = {key: count for key, count in said.items() if count is not None}
        if len({*counts.values()}) > 1:
            text = ", ".join(f"{key} = {count}" for key, count in counts.items())
            raise ValueError(f"in fine-tuning each GPU learns, as one rank, so these are one number: {text}")
        many = [key for key, count in counts.items() if key.endswith("gpus") and count > 1]
        if many and self.learner.device == "cpu":
            raise ValueError(f'{many[0]} = {counts[many[0]]} would have no effect with learner.device = "cpu"')
        return next(iter(counts.values()), 1)

    @property
    def on_cuda(self) -> tuple[bool | None, bool | None]:
        demanded = max(self.deployment.num_train_gpus or 1, self.deployment.num_gpus or 1) > 1
        return (True if demanded else None), None

    def _early_stop_can_act(self, early_stop: SftEarlyStopConfig) -> None:
        if early_stop.watches_evaluations:
            if (why := early_stop_without_effect(early_stop, self.eval)) is not None:
                raise ValueError(why)
            return
        if self.validation is None or not self.validation.interval:
            raise ValueError(
                "[early_stop] has no effect without the validation loss during training: set validation.interval"
            )
        if early_stop.environment is not None:
            raise ValueError("early_stop.environment would have no effect: validation/loss is of no environment")

    @property
    def paths(self) -> list[Path]:
        """Files and directories that rows are read from."""
        return [section.path for section in (self.data, self.validation) if section and section.path is not None]

    @property
    def reference(self) -> str | None:
        """The policy that the learner is compared with; None where it is with none."""
        return None if self.dpo is None else self.dpo.reference

    @property
    def learns_from(self) -> list[str]:
        """Files, or a dataset, in words."""
        return [*map(str, self.paths)] or [str(self.data.dataset)]

    @property
    def samples(self) -> bool:
        """Whether environments are evaluated: nothing else is sampled."""
        return bool(self.eval.env)

    @property
    def epochs(self) -> int:
        """How often every row is trained, where that says when to stop."""
        return self.num_epochs or 1


def load_sft_config(path: Path, overrides: list[str] | None = None) -> SftConfig:
    """Read a config file, apply `--key value` overrides, and check everything.

    `--name auto` takes the first free of `<file name>`, `<file name>-2`, ... Raises `ConfigError`, a line per mistake.
    """
    tables = lifted(read_toml(path), str(path), ("wandb",))
    data = apply_overrides(tables, parse_overrides(overrides or []))
    if "env" in data and "data" not in data:
        raise ConfigError(f"{path} is a config of whet train run: it has [[env]] and no [data]")
    set_name(data, path)
    return validate(SftConfig, data, str(path))
