"""`[optimizer]`, `[learner]` and `[lora]`: what a learner is made with. Torch-free, so that configs load fast."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.config import StrictModel
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, choose_device

LOGITS_AT_ONCE = 1 << 22
"""Numbers of the output layer that a learner on a CPU computes together; they are kept where that is all there are."""

MICRO_BATCH_TOKENS, CUDA_MICRO_BATCH_TOKENS = 2048, 8192
"""What is computed at once by default: enough rows to keep the device's matrix units busy. Activations of 8,192 tokens
of a model of 7 billion parameters are about 50 GB in bfloat16, of one of 0.6 billion about 10 GB."""

EAGER_KEYS = 1024
"""Up to so many keys, plain matrix products beat torch's fused attention in the backward pass on CPU."""

USED_BY: dict[str, tuple[str, ...]] = {
    "betas": ("adamw", "muon"),
    "momentum": ("muon", "sgd"),
    "muon_learning_rate": ("muon",),
}
"""Settings that only some update rules have; elsewhere they would have no effect, which is refused."""


Precision = Literal["auto", "float32", "bfloat16"]
AUTO_DTYPE = "auto: bfloat16 on CUDA, else float32."


def settled_dtype(section: StrictModel, key: str, began: StrictModel | None, otherwise: Precision) -> Precision:
    """What the section says, or for `auto` the one that the run `began` with, or `otherwise`."""
    for one in (section, began):
        chosen: Precision = getattr(one, key, "auto")
        if chosen != "auto":
            return chosen
    return otherwise


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


class CriticConfig(StrictModel):
    """`[algorithm.critic]`: of advantage = gae, a value head on the policy's hidden states."""

    learning_rate: float = Field(1e-3, gt=0, description="Of the critic's AdamW; it has the policy's schedule.")
    gae_lambda: float = Field(
        0.95,
        ge=0,
        le=1,
        description="1: advantages are returns less values; 0: the next token's value stands for the rest.",
    )
    value_clip: float | None = Field(
        0.2, gt=0, description="Values are clipped this far around those before the batch, in the critic's loss."
    )


class LearnerConfig(StrictModel):
    """`[learner]`: how a batch is computed. Only the dtypes change what is learned, as far as they round."""

    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where the learner computes: {DEVICE_HELP}")
    ranks: int | None = Field(
        None,
        ge=1,
        description="Processes that divide the learner among them (FSDP2). Absent: one for each GPU that learns.",
    )
    shard_ranks: int | None = Field(
        None,
        ge=2,
        description="Ranks that divide the model among them; other groups of as many hold the same (HSDP). As many as "
        "a host has GPUs: weights are gathered within it. Absent: all ranks.",
    )
    rank_timeout_seconds: float = Field(
        300.0,
        gt=0,
        description="Ranks end where one stands still, or none comes any further, for so long; less than "
        "watchdog.act_seconds.",
    )
    max_restarts: int = Field(
        3,
        ge=0,
        description="How often ranks or a learner's process that died are started again, from the last checkpoint.",
    )
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens computed at once; gradients of a batch add up over its micro-batches. Absent: "
        f"{CUDA_MICRO_BATCH_TOKENS} on CUDA, else {MICRO_BATCH_TOKENS}.",
    )
    activation_checkpointing: bool = Field(
        False, description="Keep only each layer's input and compute the layer again for its gradient: less memory."
    )
    compile: bool = Field(
        False,
        description="Norms, rotations, gates and the loss by torch.compile; meant for CUDA, and no faster on a CPU.",
    )
    context_parallel_size: int = Field(
        1, ge=1, description="Devices that a sequence is divided among: 1, since what sequences share is computed once."
    )
    dtype: Precision = Field("auto", description=f"Of matrix products while learning; sums stay float32. {AUTO_DTYPE}")
    weights_dtype: Precision = Field(
        "auto",
        description=f"Of matrices that the model computes with; in bfloat16 they have float32 masters. {AUTO_DTYPE}",
    )
    base_dtype: Precision = Field(
        "auto", description=f"Of matrices that [lora] leaves as they are; bfloat16 halves them. {AUTO_DTYPE}"
    )
    keep_token_details: bool = Field(
        True, description="Rollouts on disk say what the learner made of each token: logprob, ratio, clipped, masked."
    )
    peak_tflops: float | None = Field(
        None, gt=0, description="What the learner's device can do at most, for perf/mfu; known by name for some GPUs."
    )

    @field_validator("context_parallel_size")
    @classmethod
    def _one_sequence_on_one_device(cls, size: int) -> int:
        if size > 1:
            raise ValueError(
                "a sequence is computed on one device: the learner computes what sequences share once, which is no "
                "attention that torch can divide. Set it to 1. Where one sequence needs too much memory: "
                "activation_checkpointing = true, dtype and weights_dtype = bfloat16, [lora], or shorter answers "
                "(sampling.max_tokens). More ranks leave it more room, a smaller micro_batch_tokens does not."
            )
        return size

    def settled(self, *, adapter: bool, began: LearnerConfig | None = None, on_cuda: bool | None = None) -> Self:
        """With a dtype for each `auto` and the tokens of a micro-batch, where training is of an `adapter` or of all
        weights. `began` is `[learner]` of the run that is resumed; `on_cuda` says whether it computes there, where
        another machine is planned for. Raises `ConfigError` for a device that is not there."""
        if on_cuda is None:
            on_cuda = choose_device(self.device, "[learner] device").startswith("cuda")
        dtype = settled_dtype(self, "dtype", began, "bfloat16" if on_cuda else "float32")
        half: Precision = "bfloat16" if on_cuda and dtype == "bfloat16" else "float32"
        weights = settled_dtype(self, "weights_dtype", began, "float32" if adapter else half)
        base = settled_dtype(self, "base_dtype", began, half if adapter else "float32")
        tokens = self.micro_batch_tokens or (began.micro_batch_tokens if began is not None else None)
        tokens = tokens or (CUDA_MICRO_BATCH_TOKENS if on_cuda else MICRO_BATCH_TOKENS)
        update = {"dtype": dtype, "weights_dtype": weights, "base_dtype": base, "micro_batch_tokens": tokens}
        return self.model_copy(update=update)

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a micro-batch; of a config that is not settled those of a CPU."""
        return self.micro_batch_tokens or MICRO_BATCH_TOKENS

    def check_dtypes(self, lora: LoraConfig | None) -> None:
        """Raise `ValueError` for a dtype that would have no effect, or that another one contradicts."""
        if lora is None and self.base_dtype == "bfloat16":
            raise ValueError(
                "learner.base_dtype has no effect without [lora]: all weights are trained. For their matrices in "
                "bfloat16 set learner.weights_dtype; remove base_dtype, or add [lora]."
            )
        if lora is not None and lora.base != "dense" and self.base_dtype == "bfloat16":
            raise ValueError(
                f'learner.base_dtype would have no effect with lora.base = "{lora.base}", which says how the base is '
                'held. Remove it, or set lora.base = "dense".'
            )
        if lora is not None and self.weights_dtype == "bfloat16":
            raise ValueError(
                "learner.weights_dtype has no effect with [lora]: adapters are trained in float32. For the base in "
                "bfloat16 set learner.base_dtype."
            )
        if lora is not None and self.ranks not in (None, 1) and (reason := lora.in_one_process):
            raise ValueError(f"{reason} is computed with in one process: set learner.ranks = 1.")
        for key in ("base_dtype", "weights_dtype"):
            if getattr(self, key) == "bfloat16" != self.dtype:
                raise ValueError(
                    f"learner.{key} = bfloat16 needs learner.dtype = bfloat16: products of weights in bfloat16 are "
                    "made in it"
                )


class LoraConfig(StrictModel):
    """`[lora]`: present = train a low-rank adapter (through PEFT); absent = all weights."""

    rank: int = Field(16, ge=1, description="Rank of the adapter.")
    alpha: float = Field(32.0, gt=0, description="Scale: the adapter's output is multiplied by alpha / rank.")
    use_rslora: bool = Field(
        False, description="Rank-stabilised: the adapter's output is multiplied by alpha / sqrt(rank) instead."
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the adapter's input, in gradients alone; one more forward pass."
    )
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Which linear layers get an adapter; lm_head is the output matrix.",
    )
    path: str | None = Field(
        None, min_length=1, description="Adapter to begin with, of this rank, alpha and targets; absent: a new one."
    )
    base: Literal["dense", "packed", "nf4", "int8"] = Field(
        "dense",
        description="What the adapter is trained on: dense: matrices in learner.base_dtype; packed: as they are in the "
        "model's GGUF file; nf4, int8: layers of safetensors quantised by bitsandbytes. In learner and engine.",
    )

    merge: bool = Field(False, description="At the end, write the whole model with the adapter in it as well.")

    @property
    def in_one_process(self) -> str | None:
        """What of these settings ranks cannot divide among them."""
        if self.base != "dense":
            return f'lora.base = "{self.base}"'
        return "an adapter of lm_head (lora.target_modules)" if "lm_head" in self.target_modules else None
