"""`whet service up`: API, runner and deployments as processes of their own, started again when they end.

Both addresses are listened on here and passed to the API and to deployments: requests wait while those start again, and
no other process takes a port of the service meanwhile. A part learns by
a pipe that this process is gone (`end_with_parent`). It holds no run: they outlive all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from whet.authoring.scaffold import examples_folder
from whet.config import Option
from whet.errors import ConfigError
from whet.gateway.serve import address_of, listen
from whet.hub.client.settings import HUB_VARIABLE, TOKEN_VARIABLE
from whet.records.lock import take
from whet.service.runner.serve import NETWORK_HELP
from whet.service.serve import LISTENING, ApiConfig
from whet.service.training_api import part_words
from whet.system.children import PARENT_PIPE, start
from whet.system.files import expanded

POLL_S = 0.2
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Before a part that ended is started again, more each time."""
STEADY_S = 60.0
"""A part that lived for so long begins with the first pause again."""
STOP_S = 3.0
"""How long parts have to end; then they are killed, as each of them may be at any moment. A package that is prepared,
or a page that is open, does not keep a user waiting."""
LOCK = "up.lock"
SAMPLE = ("--max_steps", "8", "--batch_size", "64")
DEPLOYMENTS = "deployments"


class UpConfig(ApiConfig):
    """`whet service up`. Each description is the option's `--help`."""

    runner: bool = Field(True, description="Start runs on this machine.")
    isolation: Literal["auto", "bubblewrap", "none"] = Field(
        "auto", description="How runs are kept apart: bubblewrap, which auto insists on, or none."
    )
    network: Annotated[tuple[str, ...], Option(metavar="HOST:PORT")] = Field((), description=NETWORK_HELP)
    core_hour_price: float = Field(0.0, ge=0, description="What an hour of a core costs, for caps and usage.")
    device_hour_price: float = Field(0.0, ge=0, description="What an hour of a device costs.")
    deployments_port: int = Field(8092, ge=0, le=65535, description="Port of deployments; 0 takes a free one.")
    tinker: Annotated[str | None, Option(metavar="MODEL")] = Field(
        None, min_length=1, description="Serve the training API for this base model, to the users of the service."
    )
    tinker_port: int = Field(8700, ge=0, le=65535, description="Port of the training API; 0 takes a free one.")
    tinker_setting: Annotated[tuple[str, ...], Option(metavar="KEY=VALUE")] = Field(
        (), description="An option of `whet service tinker`, such as adapter_gib=8; may be repeated."
    )
    sample: bool = Field(False, description="At the first start, queue a short run of whet/tiny.")


@dataclass
class ServicePart:
    """A process that is started again when it ends."""

    name: str
    words: Sequence[str]
    descriptors: Sequence[int] = ()
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    failures: int = 0
    next_at: float = 0.0
    wanted_for: socket.socket | None = None
    """Deployments: the socket that listens for them; the first deployment or the first connection starts them."""

    def start(self, pipe: int) -> subprocess.Popen[bytes]:
        """Start it, in a session of its own: Ctrl-C of the terminal is for the parent alone."""
        self.began = time.monotonic()
        self.process = start(
            [sys.executable, "-m", "whet.cli.main", "service", *self.words],
            stdout=subprocess.PIPE,
            pass_fds=(*self.descriptors, pipe),
            env={**os.environ, **self.variables, PARENT_PIPE: str(pipe)},
        )
        return self.process

    def ended(self) -> int | None:
        """Its exit code, if it has ended since it was started; then when it starts again is decided."""
        if self.process is None or self.process.poll() is None:
            return None
        code, process, self.process = self.process.returncode, self.process, None
        if process.stdout is not None:
            process.stdout.close()
        self.failures = 0 if time.monotonic() - self.began > STEADY_S else self.failures + 1
        self.next_at = time.monotonic() + PAUSES_S[min(max(1, self.failures), len(PAUSES_S)) - 1]
        return code


Ready = Callable[[str, str | None], None]
Say = Callable[[str], None]


def run_service(config: UpConfig, on_ready: Ready, say: Say) -> None:
    """Run all parts until SIGINT or SIGTERM. `on_ready` gets the address, and at the first start the token.

    `say` gets lines for the user. Raises `ConfigError` where the port or the folder is taken, and where the API cannot
    start.
    """
    data = expanded(config.data).absolute()
    stop = threading.Event()
    with (
        listen(config.host, config.port) as listening,
        _socket(config.host, config.deployments_port, "--deployments-port") as deployments,
        _socket(config.host, config.tinker_port, "--tinker-port") if config.tinker else nullcontext() as tinker,
        _alone(data),
        _pipe() as pipe,
    ):
        parts = _parts(config, data, listening, deployments)
        if config.tinker is not None and tinker is not None:
            parts.append(_tinker(config, config.tinker, data, tinker))
        before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            token = _first(parts[0], pipe, stop)
            if not stop.is_set():
                on_ready(address_of(listening), token)
                if config.sample and token is not None:
                    threading.Thread(target=_submit_sample, args=(address_of(listening), token, say)).start()
                _keep(parts, data, pipe, stop, say)
        finally:
            _stop(parts)
            for number, handler in before.items():
                signal.signal(number, handler)


def _socket(host: str, port: int, option: str) -> socket.socket:
    try:
        return listen(host, port)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--port", option)) from None


def _parts(config: UpConfig, data: Path, listening: socket.socket, deployments: socket.socket) -> list[ServicePart]:
    """The API first: it makes what the others need."""
    shared = _shared(config, data)
    storage = ["--storage", config.storage] if config.storage else []
    api = ["api", *shared, *storage, "--upstream", config.upstream, "--json"]
    api += ["--host", config.host] + ([] if config.actions else ["--no-actions"])
    api += [word for network in config.webhook_allow for word in ("--webhook-allow", network)]
    number = listening.fileno()
    parts = [ServicePart("api", api, (number,), {LISTENING: str(number)})]
    if config.runner:
        prices = [
            "--core-hour-price",
            str(config.core_hour_price),
            "--device-hour-price",
            str(config.device_hour_price),
        ]
        network = [word for one in config.network for word in ("--network", one)]
        upstream = ["--upstream", config.upstream] if "upstream" in config.model_fields_set else []
        words = ["runner", *shared, *storage, "--isolation", config.isolation, *upstream, *network, *prices]
        parts.append(ServicePart("runner", words))
    number = deployments.fileno()
    words = ["deployments", *shared, "--host", config.host]
    parts.append(ServicePart(DEPLOYMENTS, words, (number,), {LISTENING: str(number)}, wanted_for=deployments))
    return parts


def _shared(config: UpConfig, data: Path) -> list[str]:
    return ["--data", str(data), *(["--database", config.database] if config.database else [])]


def _tinker(config: UpConfig, model: str, data: Path, listening: socket.socket) -> ServicePart:
    """The training API. Raises `ConfigError`, `ModelLoadError` for what it would refuse each time it is started."""
    number = listening.fileno()
    words = [*part_words(model, config.tinker_setting), *_shared(config, data), "--host", config.host]
    return ServicePart("tinker", words, (number,), {LISTENING: str(number)})


def _first(api: ServicePart, pipe: int, stop: threading.Event) -> str | None:
    """Start the API and wait until it answers; the first token, if it made one. Raises `ConfigError`."""
    process = api.start(pipe)
    lines: list[bytes] = []
    reading = threading.Thread(target=lambda: lines.append(_line(process)), daemon=True)
    reading.start()
    while reading.is_alive() and not stop.is_set():
        reading.join(POLL_S)
    if stop.is_set():
        return None
    if not lines[0]:
        process.wait()
        raise ConfigError("the API did not start; the lines above say why.")
    token: str | None = json.loads(lines[0])["token"]
    return token


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _keep(parts: Sequence[ServicePart], data: Path, pipe: int, stop: threading.Event, say: Say) -> None:
    """Start what does not run, until `stop`."""
    while not stop.wait(POLL_S):
        for part in parts:
            code = part.ended()
            if code is not None:
                pause = part.next_at - time.monotonic()
                say(f"{part.name} ended (code {code}); it is started again in {pause:.1f} s")
            if part.process is None and time.monotonic() >= part.next_at and _is_wanted(part, data):
                part.start(pipe)


def _is_wanted(part: ServicePart, data: Path) -> bool:
    """Deployments are served from the first one, or from the first connection, on."""
    if part.wanted_for is None or select.select([part.wanted_for], [], [], 0.0)[0]:
        return True
    with contextlib.suppress(FileNotFoundError):
        return any(entry.is_dir() for entry in os.scandir(data / DEPLOYMENTS))
    return False


def _stop(parts: Sequence[ServicePart]) -> None:
    """End the parts; the last that was started first."""
    running = [part.process for part in reversed(parts) if part.process is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Raises `ConfigError` where another `whet service up` runs on this folder, or where it cannot be written."""
    from whet.hub.opening import keep_private

    try:
        keep_private(data)
        descriptor = take(data / LOCK)
    except OSError as error:
        raise ConfigError(f"the folder {data} cannot be written ({error.strerror}). Name another --data.") from error
    if descriptor is None:
        raise ConfigError(f"`whet service up` runs on {data} already. Stop it first, or name another --data.")
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _pipe() -> Iterator[int]:
    """The end of a pipe that parts read from; the other is open as long as this process lives."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _submit_sample(address: str, token: str, say: Say) -> None:
    """What a user would type after logging in."""
    config = examples_folder() / "configs" / "rl" / "quickstart.toml"
    command = [sys.executable, "-m", "whet.cli.main", "train", "submit", str(config), "--yes", "--name", "sample"]
    env = {**os.environ, HUB_VARIABLE: address, TOKEN_VARIABLE: token}
    done = subprocess.run([*command, *SAMPLE], env=env, capture_output=True, text=True, check=False)
    say("the sample run is in the queue" if done.returncode == 0 else f"no sample run: {done.stderr.strip()}")
