"""`--dry-run`: what a run will hold in memory, and how long a step takes where that is known.

<<<<<<< HEAD
    parameters    V H (twice where the head is not tied) + L (H (2 W + 2 K) + 3 H I + norms) + H    + biases
    weights       sampler: P x 4 bytes (2 in bfloat16); learner: P x 4 (2 with weights_dtype, or of an adapter's base
                  with base_dtype bfloat16), and 4 for each of an adapter; handed over in files: twice what is
                  sampled with
    masters       with weights_dtype bfloat16 4 x trained parameters
    gradients     4 x trained parameters
    optimiser     adamw 8, sgd 4 x trained parameters; muon 4 of matrices in layers, 8 of the rest
    KV cache      sampler: rollouts in flight x max_tokens x 2 L K x 4 bytes (2 in bfloat16); prompts come on top
    taking turns  with colocate the device holds what learning or what sampling takes, whichever is more. A learner on a
                  GPU moves weights, masters and optimiser to host memory meanwhile; one on a CPU keeps them. Files are
                  handed over once
    adapters      an embedded engine samples with the learner's base, which a process of its own shares where the file
                  has base_dtype. A small base, one of experts, and one that takes turns: it keeps the file mapped,
                  merges in float32 (4 x parameters of layers) and packs new weights while the old ones sample; a
                  learner whose base is bfloat16 maps it once more. Of a packed base engine and learner have the GGUF
                  file mapped, and nothing else of it
    processes     Python, torch and other libraries with what malloc keeps: 440 MiB of the run, 340 of each further
                  process, 1.4 GiB of a vLLM server on its host
    activations   learner: tokens of a micro-batch x (L (4 H + 4 I + 4 W + 3 K + heads x length) + 2 H) x 4 bytes; with
                  activation checkpointing x (L H + that of one layer + 2 H). The length is max_tokens, or in
                  fine-tuning that of the longest sequence. Where tokens x V are few enough for one piece, 2 V more

Each vLLM server that is started holds weights of its own; those of base_url are not counted. Where the config asks for
more GPUs than are here, it is estimated for a machine that has them.

V tokens of the vocabulary, H hidden size, I intermediate size (of all experts for parameters, of those that a token
goes to for activations), L layers, W and K the widths of all query and of all key heads. The scores of attention, heads
x length, are held up to a length of 1024. Data of environments is not in it. Fine-tuning is estimated in
`plan.py`, by the same parts. docs/design/log.md has what runs used.
=======
Memory by the formulas of `memory.py`, of fine-tuning in `plan.py`. docs/design/log.md has what runs used.
>>>>>>> e86e97d9 (A run records its peak memory by phase and process beside what its plan said; the doctor compares; what cannot fit is refused before anything is loaded)
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from whet.errors import ModelLoadError
from whet.inference.architecture import COPIED, Architecture
from whet.inference.devices import choose_device
from whet.inference.loading import base_of_adapter
from whet.inference.model_names import on_this_machine
from whet.inference.plain.family import OtherFamily, describe
from whet.rl.config import RunConfig
from whet.rl.memory import (
    CACHE,
    parameter_count,
    run_memory,
    size_text,
    trained_count,
    turns_peak,
)
from whet.rl.sections.training import TrainingConfig
from whet.rl.sft.config import SftConfig
from whet.rl.stored.stored_run import find_runs

SAME_WORK = ("batch_size", "rollouts_per_example", "max_async_level", "sampling", "env", "lora", "learner", "inference")
"""Keys that must be equal for the steps of one run to say how long those of another take."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for, and seconds a step. None, with a reason in `unknown`, where that is not known."""

    parameters: int | None
    trained_parameters: int | None
    memory: dict[str, int]
    total: int | None
    steps: int | None
    step_seconds: float | None
    source: str | None  # where the seconds are from
    unknown: list[str]
    devices: dict[str, str] = field(default_factory=dict)  # where each part computes
    data: dict[str, int] = field(default_factory=dict)  # of fine-tuning: rows, tokens, ... where it could be read


def estimate(config: RunConfig, devices: Mapping[str, str]) -> Estimate:
    """For a settled config that is about to run on these devices. Nothing is downloaded and no weight is read."""
    arch, why = architecture(config.model)
    memory = {} if arch is None else run_memory(arch, config, devices)
    result = made_up(config, devices, arch, why, memory, SAME_WORK, steps=config.max_steps)
    return replace(result, total=_total_in_turn(result)) if config.deployment.colocate else result


def made_up(
    config: RunConfig | SftConfig,
    devices: Mapping[str, str],
    arch: Architecture | None,
    why: str,
    memory: dict[str, int],
    same_work: Sequence[str],
    *,
    steps: int | None,
    unknown: Sequence[str] = (),
    data: Mapping[str, int] | None = None,
) -> Estimate:
    """The estimate of these parts; `why` says why the model is not known, where it is not."""
    unknown = [*unknown] if arch is not None else [f"memory: {why}", *unknown]
    seconds, source = measured_step(config, same_work)
    if seconds is None:
        unknown.append(f"time of a step: no run below {config.runs_directory}/ did the same work")
    return Estimate(
        parameters=None if arch is None else parameter_count(arch),
        trained_parameters=None if arch is None else trained_count(arch, config.lora),
        memory=memory,
        total=sum(memory.values()) or None,
        steps=steps,
        step_seconds=seconds,
        source=source,
        unknown=unknown,
        devices=dict(devices),
        data=dict(data or {}),
    )


def _total_in_turn(estimated: Estimate) -> int | None:
    """Of the device, and of the host."""
    on_cpu = estimated.devices["learner"] == "cpu"
    peak = turns_peak(estimated.memory, on_cpu=on_cpu)
    if peak is None:
        return None
    host = sum(size for key, size in estimated.memory.items() if ": " not in key)
    return peak + host


def devices(config: RunConfig | SftConfig) -> dict[str, str]:
    """Which device each part computes on; fine-tuning has a sampler where it evaluates."""
    learns, samples = config.on_cuda
    names = {"learner": _device(config.learner.device, "[learner] device", learns)}
    if config.samples:
        inference = config.inference
        names["sampler"] = ", ".join(inference.base_url) or _device(inference.device, "[inference] device", samples)
    return names


def _device(device: str, key: str, on_cuda: bool | None) -> str:
    """Without `auto`. `on_cuda` is what the config says, also of another machine; None: what is here."""
    if on_cuda is None:
        return choose_device(device, key)
    if on_cuda:
        return device if device.startswith("cuda") else "cuda"
    return "cpu" if device == "auto" else device


<<<<<<< HEAD
def parameter_count(arch: Architecture) -> int:
    """Of the whole model."""
    hidden, query, keys = _widths(arch)
    attention = hidden * (2 * query + 2 * keys)
    attention += {None: 0, "head": 2 * arch.head_dim, "width": query + keys}[arch.qk_norm]
    attention += (query + 2 * keys if arch.qkv_bias else 0) + (hidden if arch.output_bias else 0)
    dense = 3 * hidden * arch.intermediate_size + (2 * arch.intermediate_size + hidden if arch.mlp_bias else 0)
    mixed = sparse = 0
    if arch.experts is not None:
        mixed = len(arch.experts.layers)
        sparse = arch.experts.count * (3 * hidden * arch.experts.intermediate_size + hidden)
    norms = hidden * sum(name is not None for name in arch.norms)
    layers = arch.num_layers * (attention + norms) + (arch.num_layers - mixed) * dense + mixed * sparse
    return layers + hidden + arch.vocab_size * hidden * (1 if arch.tied_embeddings else 2)


def trained_count(arch: Architecture, lora: LoraConfig | None) -> int:
    """All of them, or those of the adapter: rank x (in + out) of every layer that has one."""
    if lora is None:
        return parameter_count(arch)
    hidden, query, keys = _widths(arch)
    apart = {"q_proj": query, "k_proj": keys, "v_proj": keys}
    widths = ({"qkv_proj": query + 2 * keys} if arch.fused_qkv else apart) | {"o_proj": query}
    if arch.experts is None:  # with experts there are adapters at attention alone
        inner = arch.intermediate_size
        widths |= {"gate_up_proj": 2 * inner} if arch.fused_gate_up else {"gate_proj": inner, "up_proj": inner}
        widths |= {"down_proj": inner}
    own = widths if not lora.differs("target_modules") else [name for name in lora.target_modules if name in widths]
    return lora.rank * arch.num_layers * sum(hidden + widths[name] for name in own)


def _widths(arch: Architecture) -> tuple[int, int, int]:
    """Of the hidden states, of all query heads and of all key heads."""
    return arch.hidden_size, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim


def memory_parts(arch: Architecture, config: RunConfig) -> dict[str, int]:
    """Bytes, by the formulas above."""
    in_flight = min(config.max_concurrent, round(config.batch_size * max(1.0, config.oversampling_factor)))
    most = config.sampling.max_tokens
    engines = config.gpus.servers
    parts = sampler_parts(arch, config.inference, config.lora, tokens=in_flight * most, engines=engines)
    if config.lora is not None and config.engine == "embedded":
        parts |= merging_parts(arch, config, config.inference)
    if config.deployment.colocate:
        parts["handed over"] //= 2  # the file before is deleted when the learner has its turn
    parts |= learner_parts(arch, config, tokens=config.learner.tokens_at_once, length=most)
    if config.algorithm.kl_coef and not (config.lora is not None and config.algorithm.reference == "initial"):
        parts["learner: reference"] = parameter_count(arch) * _held_bytes(config)
    return parts


def sampler_parts(
    arch: Architecture, inference: InferenceConfig, lora: LoraConfig | None, *, tokens: int, engines: int = 1
) -> dict[str, int]:
    """Of engines that hold so many tokens at once, all together, and what they are handed; 0 engines are elsewhere."""
    sampled = 2 if inference.dtype == "bfloat16" else 4
    handed = handed_bytes(arch, inference, lora)
    held = {
        "sampler: weights": parameter_count(arch) * sampled * engines,
        CACHE: tokens * arch.kv_values_per_token * sampled,
    }
    return {**(held if engines else {}), "handed over": 2 * handed}


def merging_parts(arch: Architecture, config: TrainingConfig, inference: InferenceConfig) -> dict[str, int]:
    """Of an embedded engine that adapters are merged into, and of the base's files."""
    count, directory = parameter_count(arch), on_this_machine(config.model)
    if config.packed_base:
        source = None if directory is None else source_of(directory)
        return {"sampler: weights": 0, "base, mapped": 0 if source is None else source.stat().st_size}
    files = () if directory is None else (base_of_adapter(directory) or directory).glob("*.safetensors")
    if arch.experts is None and count > COPIED and not config.deployment.colocate:  # see `frozen_base.py`
        base = count * _held_bytes(config)
        as_it_is = abs(sum(file.stat().st_size for file in files) - base) < base // 8  # then processes share it
        apart = isinstance(config, RunConfig) and config.engine_process
        return {"sampler: weights": base if apart and not as_it_is else 0}
    embeddings = arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    return {
        "sampler: next weights": count * (2 if inference.dtype == "bfloat16" else 4),
        "base, mapped": sum(file.stat().st_size for file in files) * (2 if _held_bytes(config) == 2 else 1),
        "adapter merged in": (count - embeddings) * 4,
    }


def handed_bytes(arch: Architecture, inference: InferenceConfig, lora: LoraConfig | None) -> int:
    """Of the weights that engines are given for a step."""
    if lora is not None:
        return trained_count(arch, lora) * 4
    return parameter_count(arch) * (2 if inference.dtype == "bfloat16" else 4)


def learner_parts(arch: Architecture, config: TrainingConfig, *, tokens: int, length: int) -> dict[str, int]:
    """Of a learner whose micro-batches have so many tokens, in sequences of this length."""
    trained = trained_count(arch, config.lora)
    adapter = 0 if config.lora is None else trained
    held = _held_bytes(config)
    return {
        "learner: weights": parameter_count(arch) * held + adapter * 4,
        **({"learner: masters": trained * 4} if config.learner.weights_dtype == "bfloat16" else {}),
        "learner: gradients": trained * 4,
        "learner: optimiser": optimiser_bytes(arch, config, trained),
        "learner: activations": tokens * _kept_per_token(arch, config, tokens, length) * 4,
    }


def _held_bytes(config: TrainingConfig) -> int:
    """Of a parameter that the model computes with; of a packed base none is held."""
    if config.packed_base:
        return 0
    dtype = config.learner.weights_dtype if config.lora is None else config.learner.base_dtype
    return 2 if dtype == "bfloat16" else 4


def optimiser_bytes(arch: Architecture, config: TrainingConfig, trained: int) -> int:
    """Of the optimiser's states of so many trained parameters."""
    kind = config.optimizer.type
    if kind != "muon":
        return trained * (8 if kind == "adamw" else 4)
    rest = 0 if config.lora is not None else arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    return (trained - rest) * 4 + rest * 8


def _kept_per_token(arch: Architecture, config: TrainingConfig, tokens: int, length: int) -> int:
    """Numbers that one token leaves for the backward pass."""
    inner = arch.intermediate_size if arch.experts is None else arch.experts.intermediate_size * arch.experts.per_token
    widths = (4 * arch.num_heads + 3 * arch.num_kv_heads) * arch.head_dim
    layer = 4 * arch.hidden_size + 4 * inner + widths + (arch.num_heads * length if length <= EAGER_KEYS else 0)
    ends = 2 * arch.hidden_size + (2 * arch.vocab_size if tokens * arch.vocab_size <= LOGITS_AT_ONCE else 0)
    if config.learner.activation_checkpointing:
        inputs = arch.num_layers * arch.hidden_size
        return (inputs // 2 if config.learner.dtype == "bfloat16" else inputs) + layer + ends
    return arch.num_layers * layer + ends


=======
>>>>>>> e86e97d9 (A run records its peak memory by phase and process beside what its plan said; the doctor compares; what cannot fit is refused before anything is loaded)
def measured_step(config: TrainingConfig, same_work: Sequence[str]) -> tuple[float | None, str | None]:
    """The median seconds of a step of the newest run of the same work on this machine, and which run that is."""
    wanted, folder = config.model_dump(mode="json", exclude_none=True), config.runs_directory
    for run in find_runs(folder) if folder.is_dir() else ():
        if any(run.config.get(key) != wanted.get(key) for key in ("model", *same_work)):
            continue
        times = [row["time/step"] for row in run.metrics() if isinstance(row.get("time/step"), float)]
        if times:
            return statistics.median(times), f"median of {len(times)} steps of {run.directory}"
    return None, None


def architecture(model: str) -> tuple[Architecture | None, str]:
    """The model's, or why it is not known here."""
    try:
        if (directory := on_this_machine(model)) is None:
            return None, f"{model} is not on this machine as a directory; it is fetched when the run begins"
        arch = describe(base_of_adapter(directory) or directory)
    except ModelLoadError as error:
        return None, str(error)
    return (None, f"not estimated, since {arch.notice}") if isinstance(arch, OtherFamily) else (arch, "")


def lines(estimated: Estimate) -> list[str]:
    """For people, a line each."""
    shown = []
    if estimated.data:
        shown.append(", ".join(f"{name} {count:,}" for name, count in estimated.data.items()))
    if estimated.parameters is not None and estimated.trained_parameters is not None:
        shown.append(f"parameters {estimated.parameters:,}, trained {estimated.trained_parameters:,}")
    shown.append(", ".join(f"the {part} computes on {device}" for part, device in estimated.devices.items()))
    width = max(map(len, estimated.memory), default=0)
    for name, size in estimated.memory.items():
        device = estimated.devices.get(name.partition(":")[0])
        shown.append(f"{name:<{width}}  {size_text(size):>9}" + (f"  {device}" if device else ""))
    if estimated.total is not None:
        besides = "prompts and the environments' data come" if CACHE in estimated.memory else "the data comes"
        shown.append(f"{'together':<{width}}  {size_text(estimated.total):>9}; {besides} on top")
    if estimated.step_seconds is not None:
        line = f"a step takes {estimated.step_seconds:.2f} s ({estimated.source})"
        if estimated.steps is not None:
            line += f", {estimated.steps:,} steps {estimated.step_seconds * estimated.steps / 3600:.1f} h"
        shown.append(line)
    elif estimated.steps is not None:
        shown.append(f"{estimated.steps:,} steps")
    return [*shown, *(f"unknown: {line}" for line in estimated.unknown)]
