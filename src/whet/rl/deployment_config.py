"""`[deployment]`: what of the machine a run may use, and how GPUs are divided between learning and sampling. Pure.

    num_train_gpus + num_infer_gpus = num_gpus
    num_infer_gpus                  = servers x tensor_parallel_size x pipeline_parallel_size

Whichever of these the config leaves out follows from the others. Where it names num_gpus alone, sampling gets as many
whole vLLM servers as half of them hold, at least one; the rest learn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from whet.config import StrictModel
from whet.rl.inference_config import InferenceConfig

GPU_COUNTS = ("num_gpus", "num_train_gpus", "num_infer_gpus")


class DeploymentConfig(StrictModel):
    """`[deployment]`: what of the machine a run may use."""

    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 uses one per core, at most 4.")
    engine_process: bool | Literal["auto"] = Field(
        "auto", description="Sample in a process apart from rollouts and scoring; auto: with asynchronous training."
    )
    num_gpus: int | None = Field(
        None,
        ge=1,
        description="GPUs of the run. Alone: whole vLLM servers on up to half of them, at least one; the rest learn.",
    )
    num_train_gpus: int | None = Field(
        None, ge=1, description="GPUs that learn. Absent: what num_infer_gpus leaves of num_gpus, else 1."
    )
    num_infer_gpus: int | None = Field(
        None,
        ge=1,
        description="GPUs that sample. Absent: servers x tensor_parallel_size x pipeline_parallel_size.",
    )
    colocate: bool = Field(
        False, description="Sample and learn on the same device in turn: engine and learner leave it to each other."
    )
    ray_address: str | None = Field(
        None,
        min_length=1,
        description='A Ray cluster to run on: "auto" is that of this machine, "local" one for the run, else host:port.',
    )

    def torch_threads(self) -> int:
        return self.threads or min(4, _cores())


@dataclass(frozen=True, slots=True)
class GpuSplit:
    """How many GPUs a config asks for. `train` and `infer` are 0 for a part that computes elsewhere."""

    train: int
    infer: int
    servers: int  # engines: vLLM servers that are started, or the embedded engine
    per_server: int
    demanded: bool  # false: the config takes what there is, a CPU too, and the two parts may share a GPU
    colocate: bool

    @property
    def total(self) -> int:
        return max(self.train, self.infer) if self.colocate else self.train + self.infer


def split_gpus(deployment: DeploymentConfig, inference: InferenceConfig, learner_device: str) -> GpuSplit:
    """Divide the GPUs. Raises `ValueError` with the arithmetic where the numbers do not fit together."""
    each, total = inference.gpus_per_server, deployment.num_gpus
    _refuse_elsewhere(deployment, inference, learner_device)
    samples_here = not inference.base_url and not _elsewhere(inference.device)
    learns_here = not _elsewhere(learner_device)
    many = [key for key in GPU_COUNTS if (getattr(deployment, key) or 1) > 1]
    demanded = bool(many) or (samples_here and each > 1)
    if deployment.colocate:
        train = infer = _colocated(deployment, inference)
    else:
        infer = _for_sampling(deployment, inference, learns_here) if samples_here else 0
        train = deployment.num_train_gpus or max(1, (total or 0) - infer) if learns_here else 0
    servers = infer // each if samples_here else 0 if inference.base_url else inference.servers or 1
    found = GpuSplit(train, infer, servers, each, demanded, deployment.colocate)
    _check(found, deployment, inference, shared=not many and each == 1 and servers == 1)
    return found


def _for_sampling(deployment: DeploymentConfig, inference: InferenceConfig, learns_here: bool) -> int:
    each, total = inference.gpus_per_server, deployment.num_gpus
    if deployment.num_infer_gpus is not None:
        return deployment.num_infer_gpus
    if inference.servers is not None:
        return inference.servers * each
    if total is None or inference.engine == "embedded":
        return each
    if not learns_here:
        return total
    if deployment.num_train_gpus is not None:
        return max(each, total - deployment.num_train_gpus)
    return max(each, total // 2 // each * each)


def _colocated(deployment: DeploymentConfig, inference: InferenceConfig) -> int:
    """GPUs that do both."""
    said = {key: count for key in GPU_COUNTS if (count := getattr(deployment, key)) is not None}
    if len({*said.values()}) > 1:
        text = ", ".join(f"{key} = {count}" for key, count in said.items())
        raise ValueError(f"colocate = true samples and learns on the same GPUs, so these are one number: {text}")
    return next(iter(said.values()), (inference.servers or 1) * inference.gpus_per_server)


def _elsewhere(device: str) -> bool:
    """Whether a part computes on no GPU that is counted here."""
    return device in ("cpu", "mps")


def _refuse_elsewhere(deployment: DeploymentConfig, inference: InferenceConfig, learner_device: str) -> None:
    """Refuse a count of GPUs for a part that uses none."""
    no_sampling = "base_url" if inference.base_url else f'inference.device = "{inference.device}"'
    if inference.base_url and deployment.colocate:
        raise ValueError("colocate contradicts base_url: servers that run already have GPUs of their own")
    samples_elsewhere = bool(inference.base_url) or _elsewhere(inference.device)
    for key, elsewhere, why in (
        ("num_infer_gpus", samples_elsewhere, no_sampling),
        ("num_train_gpus", _elsewhere(learner_device), f'learner.device = "{learner_device}"'),
        (
            "num_gpus",
            samples_elsewhere and _elsewhere(learner_device),
            f'{no_sampling} and learner.device = "{learner_device}"',
        ),
    ):
        if elsewhere and (count := getattr(deployment, key) or 1) > 1:
            raise ValueError(f"{key} = {count} would have no effect with {why}. Remove one of the two.")


def _check(found: GpuSplit, deployment: DeploymentConfig, inference: InferenceConfig, *, shared: bool) -> None:
    each, servers, total = found.per_server, inference.servers, deployment.num_gpus
    sizes = (
        f"tensor_parallel_size {inference.tensor_parallel_size} x pipeline_parallel_size "
        f"{inference.pipeline_parallel_size} = {each} GPUs a server"
    )
    if found.infer and (found.infer % each or servers not in (None, found.servers)):
        asked = "" if servers is None else f", and servers = {servers} need {servers * each}"
        raise ValueError(f"{found.infer} GPUs that sample are not whole servers: {sizes}{asked}")
    if total is None or found.colocate or (shared and total == 1):
        return
    if found.total != total:
        parts = [f"{found.train} to learn"] if found.train else []
        parts += [f"{found.infer} to sample (servers {found.servers} x {each})"] if found.infer else []
        raise ValueError(f"num_gpus = {total}, but the other keys ask for {found.total}: {' and '.join(parts)}")


def _cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
