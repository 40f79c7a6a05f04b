"""Where each part of a run computes: its process, its GPUs, what it holds there. Pure.

GPUs are counted from 0 among those that the run may use (`visible_gpus`). A config that demands GPUs has them in order:
those that learn, then those of each server. One that does not takes what there is: a vLLM server gets the GPU after the
learner's, or shares the only one. `device = "cuda:N"` is where a part's GPUs begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from whet.rl.config import RunConfig
from whet.rl.memory import size_text, turns_peak
from whet.rl.sections.training import TrainingConfig
from whet.rl.sft.config import SftConfig

SHARED_GPU = 0.5
"""Share of a GPU's memory for a server whose GPU the learner uses, too; vLLM's own default is for a GPU of its own."""
COLOCATED_GPU = 0.85
"""The same where the two take turns: a learner in host memory keeps its CUDA context on the GPU."""
OF_A_HOST = 0.4
"""Share of a machine's memory for all servers that compute on CPUs."""
ON_EVERY_RANK = "activations"
"""What ranks do not divide among them: each computes micro-batches of its own."""
MODEL_PARTS = ("weights", "gradients", "optimiser", ON_EVERY_RANK)
"""What a learner holds, where its size is not known."""
SAMPLING = "weights, KV cache"


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part of a run in a process."""

    role: Literal["rollouts", "environment", "learner", "engine", "server"]
    process: str
    device: str
    """cpu, cuda or mps; of a server that runs already, its address."""
    gpus: tuple[int, ...]
    holds: str
    bytes_per_device: int | None
    """None where it is not known."""
    memory_share: float | None = None
    """Of each device's memory, reserved by a vLLM server; None: vLLM's default."""


@dataclass(frozen=True, slots=True)
class Placement:
    """All parts of a run."""

    parts: tuple[PlacedPart, ...]
    at_once: int | None = None
    """Most bytes of a device that engine and learner use in turn; None where they do not, or it is not known."""

    @property
    def gpus(self) -> int:
        """How many GPUs have to be there."""
        return max((gpu + 1 for part in self.parts for gpu in part.gpus), default=0)

    @property
    def learning(self) -> tuple[int, ...]:
        """The GPUs that learn, by rank."""
        return tuple(gpu for part in self.parts if part.role == "learner" for gpu in part.gpus)

    @property
    def rank_devices(self) -> list[str]:
        """What each rank of the learner computes on."""
        parts = [part for part in self.parts if part.role == "learner"]
        return [f"cuda:{gpu}" for part in parts for gpu in part.gpus] or [part.device for part in parts]

    @property
    def servers(self) -> tuple[PlacedPart, ...]:
        """vLLM servers that whet starts, in order."""
        return tuple(part for part in self.parts if part.role == "server" and "://" not in part.device)


def placement(
    config: RunConfig | SftConfig, devices: Mapping[str, str], gpus: int, memory: Mapping[str, int] | None = None
) -> Placement:
    """Place the parts of a run.

    Args:
        config: the run's. The engine of fine-tuning that evaluates is on the device of the first rank.
        devices: on what `learner` and `sampler` compute, without `auto`, as the estimate says it.
        gpus: how many are here; a config that demands GPUs is placed on as many as it demands.
        memory: bytes by what they are for (`memory_parts`), empty where the model is not known.
    """
    memory = memory or {}
    if isinstance(config, SftConfig):
        return Placement(tuple(_parts_of_fine_tuning(config, devices, memory)))
    learning = _gpus_of(devices["learner"], config.ranks)
    learner = "learner" if config.asynchronous else "run"
    parts = _rollouts(config, memory.get("handed over"))
    parts += _learners(learner, devices["learner"], config, memory)
    if config.engine == "embedded":
        parts += _engines(config, devices["sampler"], learning, memory)
    elif config.inference.base_url:
        parts += [PlacedPart("server", "runs already", url, (), "", None) for url in config.inference.base_url]
    else:
        parts += _servers(config, devices["sampler"], learning, gpus, memory)
    at_once = turns_peak(memory, on_cpu=devices["learner"] == "cpu") if config.deployment.colocate else None
    return Placement(tuple(parts), at_once)


def _parts_of_fine_tuning(config: SftConfig, devices: Mapping[str, str], memory: Mapping[str, int]) -> list[PlacedPart]:
    parts = [PlacedPart("rollouts", "run", "cpu", (), "data, records", None)]
    parts += _learners("run", devices["learner"], config, memory)
    if "sampler" in devices:
        kind, gpus = devices["sampler"].partition(":")[0], _gpus_of(devices["sampler"], 1)
        parts.append(PlacedPart("engine", "run", kind, gpus, SAMPLING, _sampling_bytes(memory, 1)))
    return parts


def embedded_device(config: RunConfig) -> str:
    """`[inference] device` of the embedded engine; for `auto`, where GPUs are demanded, the one after the learner's."""
    gpus, device = config.gpus, config.inference.device
    if not gpus.demanded or device != "auto" or not gpus.infer:
        return device
    return f"cuda:{0 if gpus.colocate else gpus.train}"


def _rollouts(config: RunConfig, handed: int | None) -> list[PlacedPart]:
    """The run's own process, and those of its environments."""
    if config.workers_per_env <= 1:
        return [PlacedPart("rollouts", "run", "cpu", (), "environments, scoring, weights that are handed over", handed)]
    return [
        PlacedPart(
            "rollouts", "run", "cpu", (), "prompts and tokens of rollouts, weights that are handed over", handed
        ),
        *(
            PlacedPart("environment", f"{env.label} worker {number + 1}", "cpu", (), "environment, scoring", None)
            for env in config.env
            for number in range(config.workers_per_env)
        ),
    ]


def _gpus_of(device: str, count: int) -> tuple[int, ...]:
    """`count` GPUs from that of the device on; none on another device."""
    kind, _, first = device.partition(":")
    return tuple(range(int(first or 0), int(first or 0) + max(1, count))) if kind == "cuda" else ()


def _learners(process: str, device: str, config: TrainingConfig, memory: Mapping[str, int]) -> list[PlacedPart]:
    """The learner in `process`, or its ranks in processes of their own."""
    ranks, shards = config.ranks, config.learner.shard_ranks or config.ranks
    gpus = _gpus_of(device, ranks)
    names = [process] if ranks == 1 else [f"learner rank {rank}" for rank in range(ranks)]
    return [_learner(name, device, gpus[rank : rank + 1], shards, memory) for rank, name in enumerate(names)]


def _learner(name: str, device: str, gpus: tuple[int, ...], ranks: int, memory: Mapping[str, int]) -> PlacedPart:
    held = {key.removeprefix("learner: "): size for key, size in memory.items() if key.startswith("learner: ")}
    names = tuple(held) or MODEL_PARTS
    divided = ", ".join(part for part in names if part != ON_EVERY_RANK)
    text = f"{divided}, {ON_EVERY_RANK}" if ranks <= 1 else f"1/{ranks} of {divided}; {ON_EVERY_RANK}"
    sizes = [size if part == ON_EVERY_RANK else -(-size // max(1, ranks)) for part, size in held.items()]
    return PlacedPart("learner", name, device.partition(":")[0], gpus, text, sum(sizes) or None)


def _engines(config: RunConfig, device: str, learning: Sequence[int], memory: Mapping[str, int]) -> list[PlacedPart]:
    """The embedded engine; on a cluster there may be several."""
    if config.gpus.demanded and config.inference.device == "auto":
        device = embedded_device(config)
    kind = device.partition(":")[0]
    size = _sampling_bytes(memory, 1)
    if config.deployment.ray_address is None:
        process = "engine" if config.engine_process else "run"
        return [PlacedPart("engine", process, kind, _gpus_of(device, 1), SAMPLING, size)]
    first, count = len(learning), config.gpus.servers
    size = _sampling_bytes(memory, count)
    gpus = [(first + number,) if kind == "cuda" else () for number in range(count)]
    return [PlacedPart("engine", f"engine {n}", kind, used, SAMPLING, size) for n, used in enumerate(gpus, 1)]


def _servers(
    config: RunConfig, device: str, learning: Sequence[int], gpus: int, memory: Mapping[str, int]
) -> list[PlacedPart]:
    """The servers of vLLM that are started."""
    split, kind = config.gpus, device.partition(":")[0]
    each = split.per_server if kind == "cuda" else 1
    first = _first_gpu(config, device, learning, gpus)
    size = _sampling_bytes(memory, split.servers * each)
    text = SAMPLING if each == 1 else f"1/{each} of {SAMPLING}"
    parts = []
    for number in range(split.servers):
        begin = first + number * each
        used = tuple(range(begin, begin + each)) if kind == "cuda" else ()
        share = config.inference.gpu_memory_utilization
        if share is None and not used:
            share = round(OF_A_HOST / split.servers, 3)
        elif share is None and set(used) & set(learning):
            share = COLOCATED_GPU if split.colocate else SHARED_GPU
        parts.append(PlacedPart("server", f"vLLM server {number}", kind, used, text, size, share))
    return parts


def _first_gpu(config: RunConfig, device: str, learning: Sequence[int], gpus: int) -> int:
    """Of the first server."""
    split, number = config.gpus, device.partition(":")[2]
    if number:
        return int(number)
    if not learning:
        return 0
    if split.colocate:
        return learning[0]
    shared = not split.demanded and split.servers == 1 and gpus <= len(learning)
    return learning[0] if shared else learning[-1] + 1


def _sampling_bytes(memory: Mapping[str, int], devices: int) -> int | None:
    """Of each of the devices that all copies of the weights, and the cache of all rollouts in flight, are on."""
    parts = [size for key, size in memory.items() if key.startswith("sampler: ")]
    return -(-sum(parts) // devices) if parts else None


def lines(placed: Placement) -> list[str]:
    """For people, a line each."""
    head = f"{placed.gpus} GPU{'s' * (placed.gpus != 1)}" if placed.gpus else "no GPU"
    rows = [(part.process, _device_text(part), _held_text(part)) for part in placed.parts]
    process, device = (max(len(row[column]) for row in rows) for column in (0, 1))
    turns = [] if placed.at_once is None else [f"  engine and learner in turn: {size_text(placed.at_once)} at most"]
    return [
        f"who runs where, on {head}:",
        *(f"  {a:<{process}}  {b:<{device}}  {c}".rstrip() for a, b, c in rows),
        *turns,
    ]


def _device_text(part: PlacedPart) -> str:
    if not part.gpus:
        return part.device
    first, last = part.gpus[0], part.gpus[-1]
    return f"{part.device}:{first}" if first == last else f"{part.device}:{first}-{last}"


def _held_text(part: PlacedPart) -> str:
    size = "size unknown" if part.bytes_per_device is None else size_text(part.bytes_per_device)
    each = " on each" if len(part.gpus) > 1 else ""
    if not part.holds:
        return ""
    share = "" if part.memory_share is None else f"{part.memory_share:g} of the memory is reserved"
    name = f"{part.role}: " * (part.role in ("learner", "engine"))
    return ", ".join(text for text in (f"{name}{part.holds}", f"{size}{each}", share) if text)
