"""Whether what a plan says of memory fits into the host, its shared memory and each GPU; what to change where not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whet.rl.config import RunConfig
from whet.rl.estimate import architecture
from whet.rl.memory import (
    CACHE,
    MOST_FILES,
    WEIGHTS,
    by_process,
    handed_bytes,
    size_text,
)
from whet.rl.placement import Placement
from whet.rl.sft.config import SftConfig
from whet.rl.step_time import ASSUMED, gpu_memory
from whet.rl.storage.weight_directory import IN_MEMORY, shared_memory
from whet.system.gpus import MIB, ask_nvidia
from whet.system.memory import memory_available, memory_limit

ANSWER_S = 10.0
TOLERANCE = 1.15
"""Of an estimate: a run is refused where more than this times what is there is said to be needed."""
LARGE = 0.2
"""Share of what is needed from which a part is worth a change."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory that a plan needs and a machine lacks."""

    text: str
    """What is needed, what there is, and what to change."""
    certain: bool
    """Of this machine, and by more than an estimate may be wrong."""


def shortages(
    config: RunConfig | SftConfig,
    devices: Mapping[str, str],
    placed: Placement,
    memory: Mapping[str, int],
    gpus: int,
) -> list[Shortage]:
    """What does not fit. GPUs that are not here are taken for those of `step_time.ASSUMED`.

    Args:
        placed: with sizes (`TrainingPlan.sized_placement`).
        memory: bytes by what they are for; empty where the model is not known: then nothing is.
        gpus: how many are here.
    """
    lacking: list[Shortage] = []
    here = config.deployment.ray_address is None and placed.gpus <= gpus
    if memory and here:
        lacking += _of_host(config, devices, memory)
    if memory and placed.gpus:
        lacking += _of_gpus(config, placed, memory, here=here)
    return lacking


def _of_host(
    config: RunConfig | SftConfig, devices: Mapping[str, str], memory: Mapping[str, int]
) -> Iterator[Shortage]:
    sizes = by_process(config, devices, memory)
    needed, free = sum(sizes.values()), memory_available()
    there = memory_limit() if free is None else free
    if needed > there:
        held = ", ".join(f"{name} {size_text(size)}" for name, size in sorted(sizes.items(), key=lambda one: -one[1]))
        text = f"memory of this machine: {size_text(needed)} are needed ({held}), {size_text(there)} are free."
        yield Shortage(f"{text} {_changes(config, memory, needed, on_gpu=False)}", needed > TOLERANCE * there)
    arch, _ = architecture(config.model)
    if arch is None or not config.samples or shared_memory() != IN_MEMORY:
        return
    needed, room = MOST_FILES * handed_bytes(arch, config.inference, config.lora), os.statvfs(IN_MEMORY)
    if needed > (left := room.f_bavail * room.f_frsize):
        text = f"{IN_MEMORY}: {MOST_FILES} files of new weights are {size_text(needed)}, {size_text(left)} are free."
        yield Shortage(f"{text} Make it larger (Docker: --shm-size). {_ANYWAY}", certain=True)


def _of_gpus(
    config: RunConfig | SftConfig, placed: Placement, memory: Mapping[str, int], *, here: bool
) -> Iterator[Shortage]:
    name, there = _card() if here else (ASSUMED, gpu_memory(ASSUMED))
    if there is None:
        return
    learning, sampling = defaultdict[int, int](int), defaultdict[int, int](int)
    servers = [gpu for part in placed.servers for gpu in part.gpus]
    for part in placed.parts:
        for gpu in part.gpus:
            # A server gives its cache what weights leave of its GPU.
            size = memory.get(WEIGHTS, 0) // len(servers) if part.role == "server" else part.bytes_per_device or 0
            (learning if part.role == "learner" else sampling)[gpu] += size
    turns = config.deployment.colocate
    needs = {
        gpu: max(learning[gpu], sampling[gpu]) if turns else learning[gpu] + sampling[gpu]
        for gpu in sorted({*learning, *sampling})
    }
    short = [gpu for gpu, size in needs.items() if size > there]
    if short:
        most = max(short, key=needs.__getitem__)
        who = " and ".join(
            f"{part} {size_text(held[most])}"
            for part, held in (("the learner", learning), ("the engine", sampling))
            if held[most]
        )
        which = f"GPU {short[0]}" if len(short) == 1 else f"GPUs {_span(short)}, each"
        text = f"memory of {which}: {size_text(needs[most])} are needed ({who}), and {name} has {size_text(there)}."
        certain = here and needs[most] > TOLERANCE * there
        yield Shortage(f"{text} {_changes(config, memory, needs[most], on_gpu=True)}", certain)


def _span(gpus: Sequence[int]) -> str:
    whole = list(range(gpus[0], gpus[-1] + 1)) == list(gpus)
    return f"{gpus[0]} to {gpus[-1]}" if whole else ", ".join(map(str, gpus))


def _card() -> tuple[str, int | None]:
    """Name and bytes of the smallest GPU here; None where no driver says it."""
    rows = ask_nvidia("gpu", "name,memory.total", ANSWER_S)
    cards = [(int(size) * MIB, name) for name, size in rows if size.isdigit()]
    size, name = min(cards, default=(None, ""))
    return name, size


_ANYWAY = "deployment.check_memory = false goes on regardless."


def _changes(config: RunConfig | SftConfig, memory: Mapping[str, int], needed: int, *, on_gpu: bool) -> str:
    """What to set, the largest savings first."""
    learner, whole = config.learner, LARGE * needed
    activations = memory["learner: activations"]
    changes = []
    if config.lora is None:
        changes.append("[lora] (an adapter in place of all weights)")
    elif not config.quantised_base and config.ranks == 1 and config.inference.engine == "embedded":
        changes.append(f'lora.base = "{"packed" if config.model.endswith(".gguf") else "nf4"}"')
    key, dtype = ("base_dtype", learner.base_dtype) if config.lora else ("weights_dtype", learner.weights_dtype)
    if dtype != "bfloat16" and not config.quantised_base:
        changes.append(f'learner.{key} = "bfloat16"')
    if memory.get(WEIGHTS, 0) and config.inference.dtype == "float32":
        changes.append('inference.dtype = "bfloat16"')
    if activations > whole and not learner.activation_checkpointing:
        changes.append("learner.activation_checkpointing = true")
    if activations > whole:
        changes.append(f"learner.micro_batch_tokens = {max(1, learner.tokens_at_once // 2)}")
    if memory.get(CACHE, 0) > whole:
        changes.append("a smaller max_concurrent")
    if on_gpu:
        changes.append("more GPUs that learn (deployment.num_train_gpus)")
    changes.append("a smaller model")
    return f"Less takes: {', '.join(changes)}. {_ANYWAY}"
