"""`--dry-run`: what a run will hold in memory, and how long a step takes where that is known. Pure, but for `estimate`.

    parameters    V H (twice where the head is not tied) + L (H (2 W + 2 K) + 3 H I + 2 H) + H      + biases, norms
    weights       sampler: P x 4 bytes (2 in bfloat16); learner: P x 4; handed over in files: 2 x 4 x what is trained
    gradients     4 x trained parameters
    optimiser     adamw 8, sgd 4 x trained parameters; muon 4 of matrices in layers, 8 of the rest
    KV cache      sampler: rollouts in flight x max_tokens x 2 L K x 4 bytes (2 in bfloat16); prompts come on top
    activations   learner: tokens of a micro-batch x (L (4 H + 4 I + 3 W + 3 K + heads x max_tokens) + 2 H) x 4 bytes;
                  with activation checkpointing x (L H + that of one layer + 2 H)

V tokens of the vocabulary, H hidden size, I intermediate size (of all experts for parameters, of those that a token
goes to for activations), L layers, W and K the widths of all query and of all key heads. The scores of attention, heads
x max_tokens, are held on a CPU only. Python, torch and data are not in it: some hundred MB a process.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture, read_architecture
from whet.rl.config import RunConfig
from whet.rl.stored.stored_run import StoredRun, find_runs

SAME_WORK = ("batch_size", "rollouts_per_example", "max_async_level", "sampling", "env", "lora", "learner", "inference")
"""Keys that must be equal for the steps of one run to say how long those of another take."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for, and seconds a step. None, with a reason in `unknown`, where that is not known."""

    parameters: int | None
    trained_parameters: int | None
    memory: dict[str, int]
    total: int | None
    step_seconds: float | None
    source: str | None  # where the seconds are from
    unknown: list[str]


def estimate(config: RunConfig) -> Estimate:
    """For a config that is about to run. Nothing is downloaded and no weight is read."""
    unknown = []
    arch, why = _architecture(config.model)
    memory: dict[str, int] = {}
    trained = parameters = None
    if arch is None:
        unknown.append(f"memory: {why}")
    else:
        parameters, trained = parameter_count(arch), trained_count(arch, config)
        memory = memory_parts(arch, config)
    seconds, source = measured_step(config, _runs(config.runs_directory))
    if seconds is None:
        unknown.append(f"time of a step: no run below {config.runs_directory}/ did the same work")
    return Estimate(parameters, trained, memory, sum(memory.values()) or None, seconds, source, unknown)


def parameter_count(arch: Architecture) -> int:
    """Of the whole model."""
    hidden, query, keys = arch.hidden_size, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    attention = hidden * (2 * query + 2 * keys) + (2 * arch.head_dim if arch.qk_norm else 0)
    attention += (query + 2 * keys if arch.qkv_bias else 0) + (hidden if arch.output_bias else 0)
    dense = 3 * hidden * arch.intermediate_size + (2 * arch.intermediate_size + hidden if arch.mlp_bias else 0)
    mixed = sparse = 0
    if arch.experts is not None:
        mixed = len(arch.experts.layers)
        sparse = arch.experts.count * (3 * hidden * arch.experts.intermediate_size + hidden)
    layers = arch.num_layers * (attention + 2 * hidden) + (arch.num_layers - mixed) * dense + mixed * sparse
    return layers + hidden + arch.vocab_size * hidden * (1 if arch.tied_embeddings else 2)


def trained_count(arch: Architecture, config: RunConfig) -> int:
    """All of them, or those of the adapter: rank x (in + out) of every layer that has one."""
    if config.lora is None:
        return parameter_count(arch)
    hidden, query, keys = arch.hidden_size, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    inner = arch.intermediate_size
    sizes = {
        "q_proj": hidden + query,
        "k_proj": hidden + keys,
        "v_proj": hidden + keys,
        "o_proj": query + hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    return config.lora.rank * arch.num_layers * sum(sizes.get(name, 0) for name in config.lora.target_modules)


def memory_parts(arch: Architecture, config: RunConfig) -> dict[str, int]:
    """Bytes, by the formulas above."""
    parameters, trained = parameter_count(arch), trained_count(arch, config)
    sampled = 2 if config.inference.dtype == "bfloat16" else 4
    in_flight = min(config.max_concurrent, round(config.batch_size * config.oversampling_factor))
    base = 0 if config.lora is None else trained
    parts = {
        "sampler: weights": parameters * sampled,
        "sampler: KV cache": in_flight * config.sampling.max_tokens * arch.kv_values_per_token * sampled,
        "learner: weights": (parameters + base) * 4,
        "learner: gradients": trained * 4,
        "learner: optimiser": _optimiser_bytes(arch, config, trained),
        "learner: activations": config.learner.micro_batch_tokens * _kept_per_token(arch, config) * 4,
        "handed over": 2 * 4 * (trained if config.lora is not None else parameters),
    }
    if config.algorithm.kl_coef and not (config.lora is not None and config.algorithm.reference == "initial"):
        parts["learner: reference"] = parameters * 4
    return parts


def _optimiser_bytes(arch: Architecture, config: RunConfig, trained: int) -> int:
    kind = config.optimizer.type
    if kind != "muon":
        return trained * (8 if kind == "adamw" else 4)
    rest = 0 if config.lora is not None else arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    return (trained - rest) * 4 + rest * 8


def _kept_per_token(arch: Architecture, config: RunConfig) -> int:
    """Numbers that one token leaves for the backward pass."""
    inner = arch.intermediate_size if arch.experts is None else arch.experts.intermediate_size * arch.experts.per_token
    widths = 3 * (arch.num_heads + arch.num_kv_heads) * arch.head_dim
    layer = 4 * arch.hidden_size + 4 * inner + widths + arch.num_heads * config.sampling.max_tokens
    if config.learner.activation_checkpointing:
        return (arch.num_layers + 2) * arch.hidden_size + layer
    return arch.num_layers * layer + 2 * arch.hidden_size


def measured_step(config: RunConfig, runs: list[StoredRun]) -> tuple[float | None, str | None]:
    """The median seconds of a step of the newest run of the same work on this machine, and which run that is."""
    wanted = config.model_dump(mode="json", exclude_none=True)
    for run in runs:
        if any(run.config.get(key) != wanted.get(key) for key in ("model", *SAME_WORK)):
            continue
        times = [row["time/step"] for row in run.metrics() if isinstance(row.get("time/step"), float)]
        if times:
            return statistics.median(times), f"median of {len(times)} steps of {run.path}"
    return None, None


def _runs(folder: Path) -> list[StoredRun]:
    return find_runs(folder) if folder.is_dir() else []


def _architecture(model: str) -> tuple[Architecture | None, str]:
    """The model's, or why it is not known here."""
    try:
        if (directory := _on_this_machine(model)) is None:
            return None, f"{model} is not on this machine; it is downloaded when the run begins"
        return read_architecture(directory), ""
    except ModelLoadError as error:
        return None, str(error)


def _on_this_machine(model: str) -> Path | None:
    from whet.inference.loading import TINY, base_of_adapter, resolve_model

    if model != TINY and not Path(model).expanduser().is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json") if model.count("/") == 1 else None
        return Path(found).parent if isinstance(found, str) else None
    directory = resolve_model(model)
    return base_of_adapter(directory) or directory


def lines(found: Estimate, config: RunConfig) -> list[str]:
    """For people, a line each."""
    shown = []
    if found.parameters is not None and found.trained_parameters is not None:
        shown.append(f"parameters {found.parameters:,}, trained {found.trained_parameters:,}")
    width = max(map(len, found.memory), default=0)
    shown += [f"{name:<{width}}  {_size(size):>9}" for name, size in found.memory.items()]
    if found.total is not None:
        shown.append(f"{'together':<{width}}  {_size(found.total):>9}; prompts, Python and torch come on top")
    if found.step_seconds is not None:
        hours = found.step_seconds * config.max_steps / 3600
        shown.append(
            f"a step takes {found.step_seconds:.2f} s ({found.source}), {config.max_steps} steps {hours:.1f} h"
        )
    return [*shown, *(f"unknown: {line}" for line in found.unknown)]


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
