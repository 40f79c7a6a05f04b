"""`RunConfig`: one TOML shape for a local run, a cluster run and a submitted run.

Strict: an unknown key, a key that would have no effect, or two that contradict (`sections/rules.py`) are errors.
Sections are in `sections/`, or next to what they configure (`learner/config.py`); what a run of whet train sft has too
is in `sections/training.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from whet.config import apply_overrides, parse_overrides, read_toml, validate
from whet.envs.config.sections import with_files
from whet.errors import ConfigError
from whet.inference.devices import visible_gpus
from whet.rl.data.curriculum import BufferConfig
from whet.rl.sections.algorithm import CURRENT, AlgorithmConfig
from whet.rl.sections.inference import EngineKind, GpuSplit, LogprobsMode, split_gpus
from whet.rl.sections.recipes import with_recipe_of_run
from whet.rl.sections.rules import RULES
from whet.rl.sections.spellings import canonical, canonical_overrides, lifted
from whet.rl.sections.teacher import TeacherConfig
from whet.rl.sections.training import (
    SamplingConfig,
    TrainingConfig,
    TrainingEnvConfig,
    set_name,
)
from whet.rl.supervision.ending import BudgetConfig, EarlyStopConfig

LEAST_SLACK, RECOMMENDED_SLACK = 2, 7
"""Versions that max_off_policy_steps is above max_async_level: below the first, long rollouts may never be trained; the
second is what the defaults of asynchronous training leave."""


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
    max_retries: int = Field(
        2, ge=0, description="Further attempts of a rollout that failed because of a model, an endpoint or its scoring."
    )
    workers_per_env: int = Field(
        1, ge=0, description="Worker processes for each environment's rollouts; 0 and 1: they run in the run's own."
    )

    env: tuple[TrainingEnvConfig, ...] = Field(min_length=1, description="One or many environments.")
    buffer: BufferConfig = Field(default_factory=BufferConfig, description="Which groups make a batch.")
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig, description="Advantage and loss.")
    teacher: TeacherConfig | None = Field(None, description="Present: the teacher is at an endpoint.")
    budget: BudgetConfig = Field(default_factory=BudgetConfig, description="When the run ends before its last step.")
    early_stop: EarlyStopConfig | None = Field(None, description="Present: end when held-out scores stop rising.")

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_recipe(cls, data: Any) -> Any:
        return with_recipe_of_run(data, SamplingConfig().max_tokens) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        for rule in RULES:
            if (broken := rule(self)) is not None:
                raise ValueError(broken)
        return self

    def cuts(self) -> list[str]:
        """The keys by which training or evaluation leaves out tokens that it could draw."""
        both = {"sampling": self.sampling, "eval.sampling": self.eval_sampling()}
        pairs = [
            (table, key)
            for table, sampling in both.items()
            for key in ("top_p", "top_k", "min_p")
            if sampling.temperature and sampling.differs(key)
        ]
        return [f"{table}.{key}" for table, key in pairs if table == "sampling" or ("sampling", key) not in pairs]

    def temperatures(self) -> list[str]:
        """The keys by which training or evaluation draws at another temperature than 1; greedy draws do not count."""
        keys = []
        if self.sampling.temp_scheduler is not None:
            keys.append("sampling.temp_scheduler")
        elif self.sampling.temperature not in (0, 1):
            keys.append("sampling.temperature")
        if self.eval_sampling().temperature not in (0, 1):
            keys.append("eval.sampling.temperature")
        return keys

    @property
    def learns_from(self) -> list[str]:
        """Names of the environments."""
        return [env.label for env in self.env]

    @property
    def distilled(self) -> frozenset[str]:
        """Names of the environments that are learned from a teacher."""
        return frozenset(env.label for env in self.env if env.algorithm != "rl")

    @property
    def hinted(self) -> dict[str, str]:
        """Of the environments whose teacher has hints, what holds them."""
        return {env.label: env.hint_prompt for env in self.env if env.algorithm == "opsd"}

    @property
    def reference(self) -> str | None:
        """The policy that the learner is compared with; None where it is with none, or with itself."""
        taught = bool(self.distilled) and self.teacher is None
        needed = self.algorithm.kl_coef or self.algorithm.prefers or taught
        reference = self.algorithm.reference if needed else None
        return None if reference == CURRENT else reference

    @property
    def gpus(self) -> GpuSplit:
        """How many GPUs learn and sample."""
        return split_gpus(self.deployment, self.inference, self.learner.device)

    @property
    def ranks(self) -> int:
        """One for each GPU that learns, or on a CPU as many as the config says."""
        gpus, ranks = self.gpus, self.learner.ranks
        if ranks is not None and gpus.demanded and gpus.train not in (0, ranks):
            raise ValueError(
                f"learner.ranks = {ranks}, but {gpus.train} of the {gpus.total} GPUs learn, and each rank has one. "
                "Remove learner.ranks, or set deployment.num_train_gpus to the same number."
            )
        return ranks or max(1, gpus.train)

    @property
    def learner_process(self) -> bool:
        return self.ranks > 1 or self.asynchronous

    @property
    def engine(self) -> EngineKind:
        """What samples, where `auto` is decided."""
        if self.inference.engine != "auto":
            return self.inference.engine
        return "vllm" if self.inference.asks_for_vllm or self.gpus.infer > 1 else "embedded"

    @property
    def on_cuda(self) -> tuple[bool | None, bool | None]:
        gpus, device = self.gpus, self.inference.device
        if gpus.demanded:
            return gpus.train > 0, gpus.infer > 0
        if self.engine == "embedded":
            return None, None
        return None, device.startswith("cuda") or (device == "auto" and bool(visible_gpus()))

    @property
    def logprobs_mode(self) -> LogprobsMode:
        """vLLM's mode in which logprobs are log softmax(logits / T) of all tokens.

        Raw ones are of T = 1; processed ones are of the tokens that top_p, top_k and min_p leave.
        """
        return "raw_logprobs" if self.cuts() else "processed_logprobs"

    @property
    def groups_per_batch(self) -> int:
        return self.batch_size // self.rollouts_per_example

    @property
    def last_step(self) -> int:
        """The last step that `max_steps` and `budget.max_rollouts` allow; schedules go by `max_steps` alone."""
        most = self.budget.max_rollouts
        return self.max_steps if most is None else min(self.max_steps, most // self.batch_size)

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
    def engine_location(self) -> Literal["here", "process", "vllm", "cluster"]:
        """Where the engine computes: in the run's process, in one of its own, in servers, or on a Ray cluster."""
        if self.deployment.ray_address is not None:
            return "cluster"
        if self.engine == "vllm":
            return "vllm"
        wanted = self.deployment.engine_process
        return "process" if (self.asynchronous if wanted == "auto" else wanted) else "here"

    @property
    def engine_process(self) -> bool:
        """Whether the embedded engine runs in a process of its own."""
        return self.engine_location == "process"

    @property
    def repeatable(self) -> bool:
        """Whether sampling and learning take turns in one process, so that a run repeats bit by bit."""
        return self.engine_location == "here" and not self.asynchronous

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


def load_run_config(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a config file, apply `--key value` overrides, and check everything.

    `--name auto` takes the first free of `<file name>`, `<file name>-2`, `<file name>-3`, ...
    Raises `ConfigError`, one line per mistake.
    """
    data = canonical(lifted(read_toml(path), str(path)), str(path))
    data = canonical(apply_overrides(data, canonical_overrides(parse_overrides(overrides or []))), str(path))
    if "data" in data and "env" not in data:
        raise ConfigError(f"{path} is a config of whet train sft: it has [data] and no [[env]]")
    set_name(data, path)
    for sections in (data.get("env"), data["eval"].get("env") if isinstance(data.get("eval"), dict) else None):
        for section in sections if isinstance(sections, list) else ():
            if isinstance(section, dict) and isinstance(section.get("args"), dict):
                section["args"] = with_files(section["args"], path.parent, str(path))
    return validate(RunConfig, data, str(path))
