"""What a training step takes on paper: operations over the rate of products, bytes over bandwidths.

    sampling     waves x answer x max(held bytes / memory, 2 P rows / products), in each server
                 held bytes = weights + rows x answer / 2 x KV of a token; rows of a wave are answered together, as many
                 as are in flight and fit into the memory; before it 2 P / products for each token of a group's prompt
    learning     (6 P T + 12 W L pairs) / (ranks x products); 4 P T under an adapter, 2 P T more for each layer that is
                 computed again (activation checkpointing) and for a reference
    gathering    with R ranks, for each micro-batch: the weights for the forward and for the backward pass, and the
                 gradients, (R - 1) / R of the bytes over the link; on GPUs it runs while the rank computes. With
                 shard_ranks S the same with S, and the gradients summed over R / S groups: 2 (1 - S / R) / S of them
    update       weights, gradients and optimiser states of a rank, read and written once / memory
    weights      what is handed to engines, out of the learner's device and into that of each engine / host link; with
                 colocate, on a GPU, also what the learner moves to the host's memory and back

P are the parameters a token is multiplied with (the head where it is sampled or trained), T the tokens of a batch, W
the width of all query heads, L layers, pairs those of a token and an earlier one. Taking turns, a step is the sum of
all; asynchronous, the larger of sampling and the rest. Environments, scoring and what Python adds are not in it.
Before a run each prompt is as long as the longest of them. docs/scaling.md compares it with what was measured.

Sources: operations of a token, Kaplan et al. 2020 (arXiv:2001.08361); of decoding, Pope et al. 2022 (arXiv:2211.05102);
gathered bytes, Rajbhandari et al. 2019 (arXiv:1910.02054).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from whet.inference.architecture import Architecture
from whet.inference.devices import visible_gpus
from whet.rl.config import RunConfig
from whet.rl.estimate import architecture
from whet.rl.learner.flops import PEAK_TFLOPS, layer_parameters
from whet.rl.memory import handed_bytes, memory_parts, optimiser_bytes, parameter_count, staying_bytes, trained_count

OF_PEAK_PRODUCTS = 0.4
"""Share of a GPU's peak that training reaches: 0.38 to 0.43 in Grattafiori et al. 2024 (arXiv:2407.21783)."""
OF_PEAK_BYTES = 0.7
"""Share of a bandwidth of a data sheet that is counted on."""
OF_MEMORY = 0.9
"""Share of a GPU's memory for weights and keys and values: what vLLM takes by default."""
GPUS_OF_A_HOST = 8
NETWORK = 50e9
"""Bytes a second between GPUs of two hosts, each with 400 Gbit/s."""
ASSUMED = "H100"


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches, in operations and bytes a second."""

    name: str
    products: float
    memory: float
    link: float  # to another device of the host
    host: float  # to the host's memory
    capacity: float = math.inf  # bytes
    overlaps: bool = True  # gathers while it computes


@dataclass(frozen=True, slots=True)
class Work:
    """One step, in tokens."""

    rollouts: int
    answer: float  # sampled tokens of a rollout
    prompt: float = 0.0  # of a task; computed once for its group


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of the parts of a step, and what they come to."""

    device: str
    sampling: float
    learning: float
    gathering: float
    update: float
    weights: float
    overlaps: bool
    asynchronous: bool

    @property
    def learner(self) -> float:
        """Of the learner until engines can take the weights."""
        computes = max(self.learning, self.gathering) if self.overlaps else self.learning + self.gathering
        return computes + self.update + self.weights

    @property
    def step(self) -> float:
        return max(self.sampling, self.learner) if self.asynchronous else self.sampling + self.learner

    @property
    def bottleneck(self) -> str:
        """The largest part, by the name of what would have to be faster."""
        parts = {
            "sampling": self.sampling,
            "learning": self.learning,
            "the link between ranks": self.gathering,
            "the optimiser": self.update,
            "handing weights over": self.weights,
        }
        return max(parts, key=parts.__getitem__)


# By the makers' data sheets: GB/s of memory, of the link to another GPU (one direction), of PCIe; and GB of memory.
_GPUS = {
    "H200": (4800, 450, 64, 141),
    "H100": (3350, 450, 64, 80),
    "A100": (2039, 300, 32, 80),
    "L40S": (864, 32, 32, 48),
    "L4": (300, 32, 32, 24),
    "RTX 4090": (1008, 32, 32, 24),
}


def gpu_rates(name: str) -> Rates | None:
    """Of a GPU by the name its driver has for it; None for one that is not in the table."""
    kind = next((kind for kind in PEAK_TFLOPS if kind in name), None)
    if kind is None:
        return None
    *bandwidths, size = _GPUS[kind]
    memory, link, host = (OF_PEAK_BYTES * 1e9 * rate for rate in bandwidths)
    return Rates(kind, OF_PEAK_PRODUCTS * PEAK_TFLOPS[kind] * 1e12, memory, link, host, OF_MEMORY * size * 1e9)


def gpu_memory(kind: str) -> int:
    """Bytes of a GPU of the table: makers' GB of a card are GiB."""
    return _GPUS[kind][3] << 30


def cpu_rates(threads: int) -> Rates:
    """Of so many cores of this machine, from what one reaches now: it is measured."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-c", _MEASURE]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | one_thread)
    products, copied = (threads * rate for rate in json.loads(done.stdout))
    return Rates("this CPU", products, copied, copied / 2, copied, overlaps=False)


# In a process of its own, with one thread: several that share busy cores wait for each other most of the time.
_MEASURE = """
import json, time
import numpy as np
side, size = 512, 1 << 25
matrix, source, target = np.ones((side, side), np.float32), np.ones(size, np.uint8), np.empty(size, np.uint8)
rates = []
for work, amount in ((lambda: matrix @ matrix, 2 * side**3), (lambda: np.copyto(target, source), 2 * size)):
    work()
    fastest, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < 0.1:
        call = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - call)
    rates.append(amount / fastest)
print(json.dumps(rates))
"""


def expected(config: RunConfig, devices: Mapping[str, str], prompt: int = 0) -> StepTime | None:
    """For a settled config and prompts of so many tokens; None where the sizes of the model or the rates of its devices
    are not known.

    Where the config asks for GPUs that are not here, they are taken for H100.
    """
    arch, _ = architecture(config.model)
    device = devices["learner"]
    rates = cpu_rates(config.threads()[1]) if device == "cpu" else _gpus_here() if device.startswith("cuda") else None
    work = Work(config.batch_size, config.sampling.max_tokens, prompt)
    return None if arch is None or rates is None else step_time(arch, config, rates, work)


def _gpus_here() -> Rates | None:
    if not visible_gpus():
        return gpu_rates(ASSUMED)
    import torch

    return gpu_rates(torch.cuda.get_device_name(0))


def step_time(arch: Architecture, config: RunConfig, rates: Rates, work: Work | None = None) -> StepTime:
    """Of a run of `config` on devices of these rates; without `work` each answer has max_tokens and no prompt."""
    work = work or Work(config.batch_size, config.sampling.max_tokens)
    ranks = max(1, config.gpus.train)
    learning, gathering = _learning(arch, config, rates, work, ranks)
    trained = trained_count(arch, config.lora)
    held = parameter_count(arch) * _bytes(config.learner.weights_dtype) if config.lora is None else trained * 4
    touched = held + trained * 4 + optimiser_bytes(arch, config, trained)
    handed = handed_bytes(arch, config.inference, config.lora)
    return StepTime(
        device=rates.name,
        sampling=_sampling(arch, config, rates, work),
        learning=learning,
        gathering=gathering,
        update=2 * touched / ranks / rates.memory,
        weights=2 * (handed + (_moved(arch, config) if rates.overlaps else 0)) / rates.host,
        overlaps=rates.overlaps,
        asynchronous=config.asynchronous,
    )


def _moved(arch: Architecture, config: RunConfig) -> int:
    """Bytes of a learner that leaves its GPU to the engine."""
    return staying_bytes(memory_parts(arch, config)) if config.deployment.colocate else 0


def _sampling(arch: Architecture, config: RunConfig, rates: Rates, work: Work) -> float:
    """Of the slowest server; those that run elsewhere are counted as if they were of these rates."""
    servers, each = max(1, config.gpus.servers or len(config.inference.base_url)), config.gpus.per_server
    share, size = math.ceil(work.rollouts / servers), _bytes(config.inference.dtype)
    weights, kv = parameter_count(arch) * size, work.answer / 2 * arch.kv_values_per_token * size
    fit = max(1.0, (each * rates.capacity - weights) / kv)
    rows = max(1, int(min(share, config.max_concurrent // servers, fit)))
    waves = math.ceil(share / rows)
    token = max((weights + rows * kv) / rates.memory, 2 * _multiplied(arch) * rows / rates.products) / each
    prompts = 2 * layer_parameters(arch) * work.prompt * work.rollouts / config.rollouts_per_example / rates.products
    return waves * work.answer * token + prompts / servers / each


def _learning(arch: Architecture, config: RunConfig, rates: Rates, work: Work, ranks: int) -> tuple[float, float]:
    """Seconds that ranks compute, and that they gather."""
    groups, adapter = work.rollouts / config.rollouts_per_example, config.lora is not None
    tokens = work.rollouts * work.answer + groups * work.prompt
    algorithm = config.algorithm
    passes = (4 if adapter else 6) + 2 * config.learner.activation_checkpointing + 2 * (config.reference is not None)
    passes = passes * algorithm.epochs + 2 * algorithm.learns_in_passes
    pairs = work.rollouts * work.answer * (work.prompt + work.answer / 2) + groups * work.prompt**2 / 2
    products = layer_parameters(arch) * tokens + arch.hidden_size * arch.vocab_size * work.rollouts * work.answer
    operations = passes * products + 12 * arch.num_heads * arch.head_dim * arch.num_layers * pairs
    micro_batches = math.ceil(tokens / ranks / config.learner.tokens_at_once)
    held = config.learner.base_dtype if adapter else config.learner.weights_dtype
    each = 2 * parameter_count(arch) * _bytes(held) + 4 * trained_count(arch, config.lora)
    shards, network = config.learner.shard_ranks or ranks, min(rates.link, OF_PEAK_BYTES * NETWORK)
    gathered = each * (shards - 1) / shards / (rates.link if shards <= GPUS_OF_A_HOST else network)
    groups = ranks / shards
    summed = 2 * 4 * trained_count(arch, config.lora) / shards * (groups - 1) / groups
    summed /= rates.link if ranks <= GPUS_OF_A_HOST else network
    return operations / ranks / rates.products, micro_batches * (gathered + summed)


def _multiplied(arch: Architecture) -> int:
    """Parameters that one sampled token is multiplied with."""
    return layer_parameters(arch) + arch.hidden_size * arch.vocab_size


def _bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def as_json(step_time: StepTime) -> dict[str, Any]:
    """All seconds, and what they come to."""
    return {**asdict(step_time), "step": step_time.step, "bottleneck": step_time.bottleneck}


def lines(step_time: StepTime, answer: int) -> list[str]:
    """For people."""
    parts = {
        "sampling": step_time.sampling,
        "learning": step_time.learning,
        "gathering": step_time.gathering,
        "update": step_time.update,
        "weights": step_time.weights,
    }
    shown = ", ".join(f"{name} {seconds_text(taken)}" for name, taken in parts.items() if taken)
    where = step_time.device if step_time.device.startswith("this") else f"{step_time.device} GPUs"
    return [
        f"on paper, on {where}, a step of answers of {answer:,} tokens takes {seconds_text(step_time.step)}: {shown}",
        f"expected bottleneck: {step_time.bottleneck}; environments come on top",
    ]


def seconds_text(taken: float) -> str:
    """`12 s`, `0.30 s`, `8 ms`."""
    if taken < 0.1:
        return f"{taken * 1000:.2g} ms"
    return f"{taken:.2f} s" if taken < 10 else f"{taken:,.0f} s"
