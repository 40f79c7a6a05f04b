"""`--dry-run`: what a run will hold in memory, and how long a step takes where that is known.

Memory by the formulas of `memory.py`, of fine-tuning in `plan.py`. docs/design/log.md has what runs used.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whet.errors import MissingExtraError, ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.devices import choose_device
from whet.inference.loading import base_of_adapter
from whet.inference.model_names import gguf_file, on_this_machine
from whet.inference.plain.family import OtherFamily, describe
from whet.inference.rendering.vocabulary import Vocabulary
from whet.inference.weights.gguf_cache import prepared
from whet.messages import content_text
from whet.rl.config import RunConfig
from whet.rl.loop.group_runner import TrainingEnv
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


def estimate(config: RunConfig, devices: Mapping[str, str], prompt: int = 0) -> Estimate:
    """For a settled config that is about to run on these devices. Nothing is downloaded and no weight is read.

    prompt: tokens of the longest one, 0 where it is not known.
    """
    arch, why = architecture(config.model)
    memory = {} if arch is None else run_memory(arch, config, devices, prompt)
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
        directory = on_this_machine(model)
        if directory is None and (file := gguf_file(model)) is not None:
            directory = prepared(file)
        if directory is None:
            return None, f"{model} is not on this machine as a directory; it is fetched when the run begins"
        arch = describe(base_of_adapter(directory) or directory)
    except ModelLoadError as error:
        return None, str(error)
    return (None, f"not estimated, since {arch.notice}") if isinstance(arch, OtherFamily) else (arch, "")


CHARACTERS_OF_A_TOKEN = 3
"""Where the model's tokenizer is not on this machine."""


def longest_prompt(model: str, environments: Iterable[TrainingEnv]) -> int:
    """Tokens of the longest prompt to learn from, tools included, as far as it is text, by the model's tokenizer."""
    longest = max((text for env in environments for text in _texts(env)), key=len, default="")
    try:
        return Vocabulary(model).count(longest)
    except (MissingExtraError, ModelLoadError):
        return math.ceil(len(longest) / CHARACTERS_OF_A_TOKEN)


def _texts(env: TrainingEnv) -> Iterator[str]:
    tools = json.dumps(env.env.tool_defs) if env.env.tool_defs else ""
    for row in env.rows:
        info = row.get("info")
        own = info.get("tool_defs") if isinstance(info, Mapping) else None
        said = (content_text(message.get("content")) for message in row["prompt"])
        yield "".join([*said, json.dumps(own) if own else tools])


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
        besides = "later turns and the environments' data come" if CACHE in estimated.memory else "the data comes"
        shown.append(f"{'together':<{width}}  {size_text(estimated.total):>9}; {besides} on top")
    if estimated.step_seconds is not None:
        line = f"a step takes {estimated.step_seconds:.2f} s ({estimated.source})"
        if estimated.steps is not None:
            line += f", {estimated.steps:,} steps {estimated.step_seconds * estimated.steps / 3600:.1f} h"
        shown.append(line)
    elif estimated.steps is not None:
        shown.append(f"{estimated.steps:,} steps")
    return [*shown, *(f"unknown: {line}" for line in estimated.unknown)]
