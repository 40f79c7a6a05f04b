"""`whet tinker serve MODEL`: the training API for one base model, until a signal ends it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from whet.config import Option, StrictModel
from whet.errors import ConfigError
from whet.gateway.serve import address_of, listen
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN
from whet.inference.model_names import MODEL_HELP
from whet.system.files import expanded

if TYPE_CHECKING:
    from whet.rl.learner.adapters.bank import AdapterBank
    from whet.tinker.sampling import OpenPolicy
    from whet.tinker.server import ServedBase, TinkerLimits

RANK, VLLM_RANK = 512, 64


class TinkerConfig(StrictModel):
    """`whet tinker serve MODEL`. Each description is the option's `--help`."""

    model: str = Field("whet/tiny", min_length=1, description=MODEL_HELP)
    data: Annotated[Path, Option(metavar="DIR")] = Field(
        Path("tinker"), description="Folder of the database, the log and the states; made if absent."
    )
    database: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="postgresql://USER@HOST/NAME, or sqlite:///FILE; if absent, hub.sqlite in DIR."
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: Annotated[int, Option("-p")] = Field(8700, ge=0, le=65535, description="Port; 0 takes a free one.")
    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where models are trained: {DEVICE_HELP}")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Of matrix products; auto: bfloat16 on CUDA, else float32."
    )
    base: Literal["dense", "packed"] = Field(
        "dense", description="packed: the base stays in the blocks of its GGUF file."
    )
    engine: Literal["embedded", "vllm"] = Field(
        "embedded", description="What samples: whet's own engine, or a vLLM server that whet starts and ends."
    )
    engine_device: str | None = Field(
        None, pattern=DEVICE_PATTERN, description="Where vllm samples, such as cuda:1; as --device if absent."
    )
    engine_memory: float | None = Field(
        None, gt=0, le=1, description="Share of its GPU's memory that vllm takes; its own choice, 0.9, if absent."
    )
    adapter_gib: Annotated[float, Option(metavar="GIB")] = Field(
        4.0, gt=0, description="Memory for the adapters of all clients with their gradients and optimisers."
    )
    log_gib: Annotated[float, Option(metavar="GIB")] = Field(
        32.0, gt=0, description="Disk for requests that wait, or that a start would repeat, of all users."
    )
    user_log_gib: Annotated[float, Option(metavar="GIB")] = Field(8.0, gt=0, description="The same of one user.")
    max_rank: int | None = Field(
        None,
        ge=1,
        le=512,
        description="Highest rank of an adapter; 512 if absent, 64 with vllm, which reserves memory.",
    )
    state_every: int = Field(
        16, ge=1, description="Optimiser steps of a model between two states; a start repeats those after the last."
    )


class TrainedModel(NamedTuple):
    """What a server needs of its base model, and its limits."""

    base: ServedBase
    bank: AdapterBank
    limits: TinkerLimits
    sampled: OpenPolicy


def load_model(config: TinkerConfig) -> TrainedModel:
    """Raises `ModelLoadError`, `ConfigError` for a device that is not there."""
    from whet.tinker.opening import load_base
    from whet.tinker.server import GIB, TinkerLimits

    check_config(config)
    limits = TinkerLimits(
        adapter_bytes=int(config.adapter_gib * GIB),
        log_bytes=int(config.log_gib * GIB),
        own_log_bytes=int(config.user_log_gib * GIB),
        rank=highest_rank(config),
        state_every=config.state_every,
    )
    base, bank = load_base(config.model, device=config.device, dtype=config.dtype, held=config.base)
    return TrainedModel(base, bank, limits, engine_of(config))


def serve(config: TinkerConfig, on_ready: Callable[[str, str, str | None], None]) -> None:
    """Serve until interrupted. `on_ready` is called with the address, the name of the base model, and at the first
    start with the administrator's key, once requests are answered.

    Raises `ConfigError` where the port is taken or the folder cannot be used, `ModelLoadError`.
    """
    from whet.hub.serve import run
    from whet.tinker.api.app import create_tinker_app
    from whet.tinker.opening import open_server

    data = expanded(config.data).absolute()
    with listen(config.host, config.port) as listening:
        model = load_model(config)
        opened = open_server(data, model.base, model.bank, config.database, model.limits, model.sampled)
        with opened as (server, key):
            run(create_tinker_app(server), listening, lambda: on_ready(address_of(listening), model.base.name, key))


def check_config(config: TinkerConfig) -> None:
    """What can be said before anything is loaded. Raises `ConfigError`, `EngineError`, `ModelLoadError`."""
    from whet.inference.loading import check_model

    check_engine(config)
    check_model(config.model)


def check_engine(config: TinkerConfig) -> None:
    """Raises `ConfigError` for options that the engine does not have, `EngineError` where there is no vLLM."""
    if config.engine == "vllm":
        from whet.inference.vllm.interpreter import find_vllm

        if config.base == "packed":
            raise ConfigError("--base packed is for --engine embedded: vLLM is given weights in float32 or bfloat16.")
        find_vllm(None)
    if config.engine == "embedded" and (config.engine_device is not None or config.engine_memory is not None):
        raise ConfigError("--engine-device and --engine-memory are for --engine vllm; the embedded one is on --device.")


def highest_rank(config: TinkerConfig) -> int:
    """Of an adapter."""
    return config.max_rank or (VLLM_RANK if config.engine == "vllm" else RANK)


def engine_of(config: TinkerConfig) -> OpenPolicy:
    """What the server samples with. Raises `ModelLoadError`."""
    from whet.tinker.opening import load_engine

    if config.engine == "embedded":
        return load_engine(config.model, device=config.device, dtype=config.dtype, held=config.base)
    from whet.inference.vllm.policy import open_vllm_policy
    from whet.rl.learner.config import LearnerConfig

    dtype = LearnerConfig(device=config.device, dtype=config.dtype).settled(adapter=True).dtype
    device = config.engine_device or config.device
    how: dict[str, Any] = {"highest_rank": highest_rank(config), "gpu_memory": config.engine_memory}
    return partial(open_vllm_policy, config.model, dtype=dtype, device=device, adapters=True, **how)
