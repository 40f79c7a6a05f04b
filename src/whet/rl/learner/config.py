"""`[optimizer]`, `[learner]` and `[lora]`: what a learner is made with. Torch-free, so that configs load fast."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from whet.config import StrictModel
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN

LOGITS_AT_ONCE = 1 << 22
"""Numbers of the output layer that a learner on a CPU computes together; they are kept where that is all there are."""

EAGER_KEYS = 1024
"""Up to so many keys, plain matrix products beat torch's fused attention in the backward pass on CPU."""

USED_BY: dict[str, tuple[str, ...]] = {
    "betas": ("adamw", "muon"),
    "momentum": ("muon", "sgd"),
    "muon_learning_rate": ("muon",),
}
"""Settings that only some update rules have; elsewhere they would have no effect, which is refused."""


class OptimizerConfig(StrictModel):
    """`[optimizer]`: the update rule and its schedule. The learning rate itself is the run's `learning_rate`."""

    type: Literal["adamw", "muon", "sgd"] = Field("adamw", description="muon: Muon on matrices, AdamW on the rest.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's moment decays.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of matrices; plain L2 with sgd.")
    momentum: float = Field(0.95, ge=0, lt=1, description="Momentum of muon and sgd.")
    muon_learning_rate: float | None = Field(None, gt=0, description="Muon's learning rate; learning_rate if absent.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this global norm; 0 never clips.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Learning rate after warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises from 0.")
    decay_start: float = Field(0.0, ge=0, le=1, description="Share of max_steps after which the schedule decays.")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="Share of the peak at which a decay ends.")

    @model_validator(mode="after")
    def _everything_has_an_effect(self) -> Self:
        for name, types in USED_BY.items():
            if self.type not in types and self.differs(name):
                raise ValueError(f"{name} would have no effect with type = {self.type}; it is for {' or '.join(types)}")
        for name in ("decay_start", "min_lr_ratio"):
            if self.schedule == "constant" and getattr(self, name):
                raise ValueError(f'{name} would have no effect: schedule = "constant" never decays')
        return self


class LearnerConfig(StrictModel):
    """`[learner]`: how a batch is computed. None of it changes what is learned, only memory and time."""

    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where the learner computes: {DEVICE_HELP}")
    micro_batch_tokens: int = Field(
        2048, ge=1, description="Tokens computed at once; gradients of a batch add up over its micro-batches."
    )
    activation_checkpointing: bool = Field(
        False, description="Keep only each layer's input and compute the layer again for its gradient: less memory."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of matrix products while learning; weights and sums stay float32."
    )
    base_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the matrices of a model that [lora] leaves as they are; bfloat16 halves them."
    )
    keep_token_details: bool = Field(
        True, description="Rollouts on disk say what the learner made of each token: logprob, ratio, clipped, masked."
    )
    peak_tflops: float | None = Field(
        None, gt=0, description="What the learner's device can do at most, for perf/mfu; known by name for some GPUs."
    )


class LoraConfig(StrictModel):
    """`[lora]`: present = train a low-rank adapter (through PEFT); absent = all weights."""

    rank: int = Field(16, ge=1, description="Rank of the adapter.")
    alpha: float = Field(32.0, gt=0, description="Scale: the adapter's output is multiplied by alpha / rank.")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the adapter's input, in gradients alone; one more forward pass."
    )
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Which linear layers get an adapter.",
    )
    path: str | None = Field(
        None, min_length=1, description="Adapter to begin with, of this rank, alpha and targets; absent: a new one."
    )
    merge: bool = Field(False, description="At the end, write the whole model with the adapter in it as well.")
