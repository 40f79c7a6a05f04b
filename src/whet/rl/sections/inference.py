"""`[inference]` and `[deployment]`: the engine that samples, and what of the machine a run may use.

`[inference]` is an engine embedded in whet, or one or several vLLM servers. Nothing here starts one.

Every key has an effect on the engine that is chosen, or is refused by name. What depends on other sections (GPUs,
sampling, the algorithm) is checked where those are known: in `split_gpus` and `rules.py`.

`[deployment]` says how GPUs are divided between learning and sampling:

    num_train_gpus + num_infer_gpus = num_gpus
    num_infer_gpus                  = servers x tensor_parallel_size x pipeline_parallel_size

Whichever of these the config leaves out follows from the others. Where it names num_gpus alone, sampling gets as many
whole vLLM servers as half of them hold, at least one; the rest learn.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from whet.config import StrictModel
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, choose_device
from whet.rl.learner.config import AUTO_DTYPE, Precision, settled_dtype
from whet.system.redaction import MARK

Flags = dict[str, bool | int | float | str]
EngineKind = Literal["embedded", "vllm"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]

NEUTRAL: dict[str, Any] = {
    "base_url": (),
    "servers": 1,
    "python": None,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "gpu_memory_utilization": None,
    "max_model_len": None,
    "server_args": {},
    "min_healthy": 1,
    "max_restarts": 3,
}
"""Keys that only vLLM has, with the value that asks for what the embedded engine does anyway."""

OF_A_POOL = ("servers", "min_healthy", "max_restarts")
"""Keys of `NEUTRAL` that several embedded engines have as well, which are those on a cluster."""

OF_STARTED = (
    "servers",
    "python",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "max_model_len",
    "server_args",
    "max_restarts",
)
"""Keys of `NEUTRAL` that say how servers are started; those of base_url run already."""

SET_BY_WHET: dict[str, str] = {
    "model": "it is 'model' of the run",
    "tokenizer": "it is that of 'model'",
    "tokenizer_mode": "token ids go in and come out",
    "skip_tokenizer_init": "token ids go in and come out",
    "served_model_name": "the policy has a name of its own",
    "host": "servers listen on this machine alone",
    "port": "each server has a free one",
    "uds": "servers listen on this machine alone",
    "api_key": "each server has one of its own",
    "ssl_keyfile": "servers listen on this machine alone",
    "ssl_certfile": "servers listen on this machine alone",
    "root_path": "servers listen on this machine alone",
    "config": "write its keys into this table",
    "dtype": "it is 'inference.dtype'",
    "seed": "each request has one",
    "logprobs_mode": "it follows from [sampling], so that logprobs are those of the policy",
    "generation_config": "sampling is [sampling] alone",
    "override_generation_config": "sampling is [sampling] alone",
    "worker_extension_cls": "it is the one that takes new weights",
    "tensor_parallel_size": "it is 'inference.tensor_parallel_size'",
    "pipeline_parallel_size": "it is 'inference.pipeline_parallel_size'",
    "data_parallel_size": "it is 'inference.servers'",
    "gpu_memory_utilization": "it is 'inference.gpu_memory_utilization'",
    "max_model_len": "it is 'inference.max_model_len'",
    "enable_lora": "it follows from [lora]",
    "max_loras": "it follows from [lora]",
    "max_lora_rank": "it is 'lora.rank'",
    "enable_sleep_mode": "it is 'deployment.colocate'",
    "enable_return_routed_experts": "it is 'algorithm.router_replay'",
    "trust_remote_code": "code that comes with a model is never run",
    "headless": "a server without an address takes no requests",
    "api_server_count": "a server has one process that answers, so that pauses reach all requests",
}
"""Flags of vLLM's server that whet sets itself, and by what."""


def _urls(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class InferenceConfig(StrictModel):
    """`[inference]`: the engine that samples."""

    engine: Literal["auto", "embedded", "vllm"] = Field(
        "auto",
        description="auto: vllm where a key asks for what only vLLM does, else embedded, whet's own torch engine.",
    )
    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where the engine computes: {DEVICE_HELP}")
    dtype: Precision = Field(
        "auto", description=f"bfloat16 is faster from about 4M parameters up, float32 exact. {AUTO_DTYPE}"
    )
    base_url: Annotated[tuple[str, ...], BeforeValidator(_urls)] = Field(
        (), description="vLLM servers that run already: one URL or several. Absent: whet starts and stops them."
    )
    servers: int | None = Field(
        None,
        ge=1,
        description="vLLM servers to start (on a Ray cluster engines of any kind), each with the whole model. "
        "Absent: as many as num_infer_gpus are for.",
    )
    python: Path | None = Field(
        None,
        description="The Python that has vLLM. Absent: the variable WHET_VLLM_PYTHON, else that of whet.",
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs over which a vLLM server splits each layer.")
    pipeline_parallel_size: int = Field(1, ge=1, description="GPUs over which a vLLM server divides its layers.")
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a device's memory for a vLLM server. Absent: vLLM's default; less on a shared device.",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Most tokens of a sequence in vLLM. Absent: the model's context."
    )
    server_args: Flags = Field(
        default_factory=dict, description="More flags of vLLM's server, in snake_case: enforce_eager = true."
    )
    min_healthy: int = Field(1, ge=1, description="vLLM servers that must answer; with fewer the run waits for them.")
    max_restarts: int = Field(3, ge=0, description="How often each vLLM server that dies is started again.")

    @field_validator("engine", mode="before")
    @classmethod
    def _known_engine(cls, engine: Any) -> Any:
        if engine == "openai":
            raise ValueError(
                "an OpenAI endpoint gives no token ids and takes no new weights, so nothing can be learned from what "
                "it samples. Use 'embedded', or 'vllm'."
            )
        if engine not in ("auto", "embedded", "vllm"):
            raise ValueError(f"there is no engine {engine!r}. Use 'auto', 'embedded' or 'vllm'.")
        return engine

    @field_validator("base_url")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        addresses = tuple(url.rstrip("/").removesuffix("/v1") for url in urls)
        for url, given in zip(addresses, urls, strict=True):
            parts = urlsplit(url.replace(MARK, "user"))  # that of a run which was saved without its secret
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError(f"{given!r} is not the address of a server. Write it as http://host:8000.")
            if addresses.count(url) > 1:
                raise ValueError(f"{given!r} is there twice; name each server once")
        return addresses

    @field_validator("server_args")
    @classmethod
    def _flags(cls, flags: Flags) -> Flags:
        for name in flags:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"{name!r} is not a flag in snake_case; --max-num-seqs is max_num_seqs")
            flag = name.removeprefix("no_")
            if flag in SET_BY_WHET or flag.startswith("data_parallel_"):
                why = SET_BY_WHET.get(flag, SET_BY_WHET["data_parallel_size"])
                raise ValueError(f"{name!r} is set by whet: {why}. Remove it.")
        return flags

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> Self:
        if self.engine == "embedded" and (keys := [key for key in self.vllm_keys if key not in OF_A_POOL]):
            raise ValueError(
                f'{keys[0]} would have no effect with engine = "embedded": only vLLM has it. '
                'Set engine = "vllm", or remove the key.'
            )
        if self.base_url:
            for key in OF_STARTED:
                if key in self.vllm_keys or (key == "servers" and self.servers is not None):
                    raise ValueError(
                        f"{key} contradicts base_url: servers of base_url run already, with flags of their own, and "
                        "whet starts none. Remove one of the two."
                    )
            if self.device != "auto":
                raise ValueError("device would have no effect: servers of base_url run already. Remove one of the two.")
        if self.asks_for_vllm and self.device == "mps":
            raise ValueError('device = "mps": vLLM computes on CUDA devices or CPUs. Set another device, or remove it.')
        return self

    @property
    def vllm_keys(self) -> list[str]:
        """The keys that ask for what only vLLM does."""
        return [key for key, value in NEUTRAL.items() if getattr(self, key) not in (None, value)]

    @property
    def asks_for_vllm(self) -> bool:
        return self.engine == "vllm" or bool(self.vllm_keys)

    @property
    def gpus_per_server(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def settled(self, began: InferenceConfig | None, *, on_cuda: bool | None = None) -> Self:
        """As `TrainingConfig.settled`. `on_cuda` says whether it computes there, where this process does not."""
        if on_cuda is None:
            on_cuda = choose_device(self.device, "[inference] device").startswith("cuda")
        otherwise: Precision = "bfloat16" if on_cuda else "float32"
        return self.model_copy(update={"dtype": settled_dtype(self, "dtype", began, otherwise)})


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
    check_memory: bool = Field(
        True,
        description="Refuse to begin where the plan needs far more memory than there is; false goes on.",
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
    split = GpuSplit(train, infer, servers, each, demanded, deployment.colocate)
    _check(split, deployment, inference, shared=not many and each == 1 and servers == 1)
    return split


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


def _check(split: GpuSplit, deployment: DeploymentConfig, inference: InferenceConfig, *, shared: bool) -> None:
    each, servers, total = split.per_server, inference.servers, deployment.num_gpus
    sizes = (
        f"tensor_parallel_size {inference.tensor_parallel_size} x pipeline_parallel_size "
        f"{inference.pipeline_parallel_size} = {each} GPUs a server"
    )
    if split.infer and (split.infer % each or servers not in (None, split.servers)):
        needed = "" if servers is None else f", and servers = {servers} need {servers * each}"
        raise ValueError(f"{split.infer} GPUs that sample are not whole servers: {sizes}{needed}")
    if total is None or split.colocate or (shared and total == 1):
        return
    if split.total != total:
        parts = [f"{split.train} to learn"] if split.train else []
        parts += [f"{split.infer} to sample (servers {split.servers} x {each})"] if split.infer else []
        raise ValueError(f"num_gpus = {total}, but the other keys ask for {split.total}: {' and '.join(parts)}")


def _cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
