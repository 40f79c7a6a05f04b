"""`whet tinker serve MODEL`: the training API for one base model, until a signal ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from whet.config import Option, StrictModel
from whet.gateway.serve import address_of, listen
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN
from whet.inference.model_names import MODEL_HELP
from whet.system.files import expanded


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
    adapter_gib: Annotated[float, Option(metavar="GIB")] = Field(
        4.0, gt=0, description="Memory for the adapters of all clients with their gradients and optimisers."
    )
    max_rank: int = Field(512, ge=1, description="Highest rank of an adapter.")
    state_every: int = Field(
        16, ge=1, description="Optimiser steps of a model between two states; a start repeats those after the last."
    )


def serve(config: TinkerConfig, on_ready: Callable[[str, str, str | None], None]) -> None:
    """Serve until interrupted. `on_ready` is called with the address, the name of the base model, and at the first
    start with the administrator's key, once requests are answered.

    Raises `ConfigError` where the port is taken or the folder cannot be used, `ModelLoadError`.
    """
    from whet.hub.serve import run
    from whet.inference.loading import check_model
    from whet.tinker.api.app import create_tinker_app
    from whet.tinker.opening import load_base, load_engine, open_server
    from whet.tinker.server import GIB, TinkerLimits

    check_model(config.model)
    limits = TinkerLimits(
        adapter_bytes=int(config.adapter_gib * GIB), rank=config.max_rank, state_every=config.state_every
    )
    with listen(config.host, config.port) as listening:
        base, bank = load_base(config.model, device=config.device, dtype=config.dtype, held=config.base)
        data = expanded(config.data).absolute()
        sampled = load_engine(config.model, device=config.device, dtype=config.dtype, held=config.base)
        with open_server(data, base, bank, config.database, limits, sampled) as (server, key):
            run(create_tinker_app(server), listening, lambda: on_ready(address_of(listening), base.name, key))
