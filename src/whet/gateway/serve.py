"""`whet serve`: a model of this machine, behind the interfaces of OpenAI and Anthropic."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from whet.config import Option, StrictModel
from whet.errors import ConfigError
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, DTYPE_HELP, EngineDtype, check_device
from whet.inference.model_names import MODEL_HELP
from whet.system.env_files import find_key
from whet.system.offline import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from whet.inference.loading import Policy

UNREAD_MS = 60_000
"""How long what was sent may stay unread before the connection is closed."""


class ServeConfig(StrictModel):
    """`whet serve MODEL`. Each description is the option's `--help`."""

    model: str = Field("whet/tiny", min_length=1, description=MODEL_HELP)
    name: str | None = Field(None, min_length=1, description="Name that requests call the model by; MODEL if absent.")
    adapters: dict[str, Path] = Field(default_factory=dict, description="Adapters to serve with it, as MODEL:NAME.")
    adapters_from: Annotated[Path | None, Option(metavar="DIR")] = Field(
        None, description="Folder whose adapters requests may load and unload; absent, none."
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; others than loopback need a key.")
    allow_host: Annotated[tuple[str, ...], Option(metavar="NAME")] = Field(
        (), description="A further host name that requests may be for, or pages may come from; '*' allows any."
    )
    port: Annotated[int, Option("-p")] = Field(
        8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    api_key_var: Annotated[str | None, Option("-k", metavar="NAME")] = Field(
        None, description="Environment variable that holds the key requests must carry."
    )
    max_concurrent: Annotated[int, Option("-c")] = Field(
        64, ge=1, description="Answers in the making at once; more wait in line."
    )
    engine: Literal["embedded", "vllm"] = Field(
        "embedded", description="What computes it: whet's own engine, or a vLLM server that whet starts and ends."
    )
    dtype: EngineDtype = Field("float32", description=DTYPE_HELP)
    device: str = Field("auto", pattern=DEVICE_PATTERN, description=f"Where the model computes: {DEVICE_HELP}")
    threads: int | None = Field(None, ge=1, description="CPU threads; torch's own choice if absent.")


def serve(
    config: ServeConfig,
    on_ready: Callable[[str, str], None],
    on_loading: Callable[[str], None] = lambda model: None,
) -> None:
    """Serve until interrupted. `on_ready` is called with the address and the model's name once requests are answered,
    `on_loading` with the model before it is loaded.

    Raises `ConfigError` for an address that needs a key and has none, or that cannot be listened on, and
    `ModelLoadError` for a model that is missing.
    """
    from whet.inference.loading import check_model

    key = required_key(config)
    check_model(config.model)
    check_device(config.device, "device")
    listening = listen(config.host, config.port)
    on_loading(config.model)
    with listening, asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(config, key, listening, on_ready))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, as the `serve` extra does: with hundreds of requests at once it is quicker."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def required_key(config: ServeConfig) -> str | None:
    """The key that requests must carry; None for no key, which only loopback allows."""
    if config.api_key_var is not None:
        key = find_key(config.api_key_var)
        if not key:
            raise ConfigError(f"the environment variable {config.api_key_var}, which should hold the key, is not set.")
        return key
    if not is_loopback(config.host):
        raise ConfigError(
            f"host {config.host} is open to other machines. Set a key: put it into an environment variable and name "
            "that with --api-key-var, or listen on 127.0.0.1."
        )
    return None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ConfigError` where there can be none."""
    # The protocol is named, because asyncio sends small packets at once only where it is: otherwise every answer waits
    # 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from here: a client that reads nothing is cut off
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        listening.bind((host, port))
        listening.listen(2048)
        return listening
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}). Choose another --port.") from error


def address_of(listening: socket.socket) -> str:
    """The URL of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def answer(app: ASGIApp, listening: socket.socket, http: Any, on_ready: Callable[[], None], grace: int) -> None:
    """Answer requests until SIGINT or SIGTERM; those in progress have `grace` seconds, or until the next signal."""
    import uvicorn

    options = uvicorn.Config(
        app, http=http, ws="none", log_level="warning", lifespan="off", timeout_graceful_shutdown=grace
    )
    server = uvicorn.Server(options)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign] # which would end the process

    def end() -> None:
        server.force_exit = server.should_exit  # the second signal waits for no answer
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
    answering = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started and not answering.done():
        await asyncio.sleep(0.01)
    if not answering.done():
        on_ready()
    await answering


async def _serve(
    config: ServeConfig, key: str | None, listening: socket.socket, on_ready: Callable[[str, str], None]
) -> None:
    async with _opened(config) as policy:
        await _answer(config, policy, key, listening, on_ready)


@asynccontextmanager
async def _opened(config: ServeConfig) -> AsyncIterator[Policy]:
    """The model, ready to answer, for the length of the block."""
    how: dict[str, Any] = {
        "dtype": config.dtype,
        "device": config.device,
        "threads": config.threads,
        "max_rows": config.max_concurrent,
    }
    if config.engine == "vllm":
        from whet.inference.vllm.policy import open_vllm_policy

        adapters = bool(config.adapters) or config.adapters_from is not None
        async with open_vllm_policy(config.model, adapters=adapters, **how) as policy:
            yield policy
        return
    from whet.inference.loading import load_policy

    policy = load_policy(config.model, repeatable=False, **how)
    try:
        yield policy
    finally:
        await policy.engine.close()


async def _answer(
    config: ServeConfig,
    policy: Policy,
    key: str | None,
    listening: socket.socket,
    on_ready: Callable[[str, str], None],
) -> None:
    from whet.gateway.adapters import Adapters
    from whet.gateway.app import Gateway
    from whet.gateway.connections import limited_connections
    from whet.gateway.guard import Hosts

    name = config.name or config.model
    gateway = Gateway({name: policy.client}, api_key=key, hosts=Hosts.of(config.host, config.allow_host))
    gateway.adapters = adapters = Adapters(gateway.models, name, policy, config.adapters_from)
    for adapter, path in config.adapters.items():
        await adapters.load(adapter, path)
    # What is loaded stays: a collection that visits all of torch stops every answer for a sixth of a second.
    gc.collect()
    gc.freeze()
    await answer(gateway.app, listening, limited_connections(), lambda: on_ready(address_of(listening), name), 5)
