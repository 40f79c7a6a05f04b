"""From what a vLLM server should do to its flags, and to a member of an engine pool that runs on it.

`ServerOptions` is what a training run, an evaluation and `whet serve` have to say about servers that whet starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whet.errors import EndpointDownError, EngineError, ModelError, TrainingError
from whet.inference.devices import only_gpus
from whet.inference.protocol import WeightUpdate
from whet.inference.vllm.completions import LogprobsMode, Needs
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.server import Flag, VllmServer

EXTENSION = Path(__file__).parent / "extension"
"""What a server's workers import: `whet_vllm_worker`."""
RECEIVER = "whet_vllm_worker.WeightReceiver"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for the highest rank of adapters."""
ADAPTERS_AT_ONCE = 4
CPU_CACHE = "2G"
"""Memory for keys and values of a server on a CPU, where nothing else is said: vLLM takes a share of all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How whet starts vLLM servers of one model."""

    python: Path
    on_cuda: bool
    dtype: str = "float32"
    logprobs_mode: LogprobsMode = "processed_logprobs"
    max_context: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    lora_rank: int | None = None  # None: no adapters
    record_experts: bool = False
    sleeps: bool = False  # whether it can leave its GPU to a learner
    threads: int | None = None
    seed: int = 0
    flags: Mapping[str, Flag] = field(default_factory=dict)  # of the user, over whet's own

    def server_flags(self) -> dict[str, Flag]:
        """The flags of a server. Raises `EngineError` for a rank that vLLM has no size for."""
        flags: dict[str, Flag] = {
            "dtype": self.dtype,
            "logprobs-mode": self.logprobs_mode,
            "max-model-len": self.max_context,
            "generation-config": "vllm",  # not what the model's files suggest: every setting is sent
            "seed": self.seed,
            "worker-extension-cls": RECEIVER,
        }
        if self.tensor_parallel_size > 1:
            flags["tensor-parallel-size"] = self.tensor_parallel_size
        if self.pipeline_parallel_size > 1:
            flags["pipeline-parallel-size"] = self.pipeline_parallel_size
        if self.gpu_memory_utilization is not None:
            flags["gpu-memory-utilization"] = self.gpu_memory_utilization
        if self.lora_rank is not None:
            flags |= {"enable-lora": True, "max-lora-rank": _rank(self.lora_rank), "max-loras": ADAPTERS_AT_ONCE}
        if self.sleeps and self.on_cuda:
            flags["enable-sleep-mode"] = True
        if self.record_experts:
            flags["enable-return-routed-experts"] = True
        if not self.on_cuda:
            flags["enforce-eager"] = True  # compiling takes minutes there, and gains nothing for small models
            if self.gpu_memory_utilization is None:
                flags["kv-cache-memory-bytes"] = CPU_CACHE
        return flags | {name.replace("_", "-"): value for name, value in self.flags.items()}


class VllmMember:
    """A server that whet starts, and the engine on it. See `whet.inference.pool.member.PoolMember`."""

    def __init__(
        self,
        name: str,
        model: Path,
        directory: Path,
        options: ServerOptions,
        *,
        gpus: Sequence[int] = (),
        log: Path | None = None,
    ) -> None:
        """`directory` is private and short of name; each start has a folder of its own in it.

        `gpus` are those that the server may see, by their numbers among those that are visible here.
        """
        self.name = name
        self._model, self._directory, self._options, self._gpus, self._log = model, directory, options, gpus, log
        self._server: VllmServer | None = None
        self._begun: VllmServer | None = None  # by `begin`, and not waited for yet
        self._starts = 0

    def begin(self) -> None:
        """Start the server without waiting for it: the first `start` does."""
        self._begun = self._started()

    async def start(self) -> VllmEngine:
        options = self._options
        server, self._begun = self._begun or self._started(), None
        await server.ready()
        return VllmEngine(
            HttpPool(server.socket, headers(server.key)),
            max_context=options.max_context,
            logprobs_mode=options.logprobs_mode,
            gone=self._gone,
        )

    def _started(self) -> VllmServer:
        self._starts += 1
        self._server = start_server(
            f"engine {self.name}",
            self._model,
            self._directory / f"{self.name}-{self._starts}",
            self._options,
            environment=only_gpus(self._gpus),
            log=self._log,
        )
        return self._server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def close(self) -> None:
        """As `stop`, from outside of an event loop."""
        if self._server is not None:
            self._server.close()

    def failure(self) -> str | None:
        return None if self._server is None else self._server.failure()

    def _gone(self, reason: str) -> Exception:
        return EndpointDownError(f"engine {self.name}: {self.failure() or reason}")


def start_server(
    name: str,
    model: Path,
    directory: Path,
    options: ServerOptions,
    *,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> VllmServer:
    """A server that is being started; see `VllmServer` for the arguments."""
    server = VllmServer(
        model,
        directory,
        name=name,
        python=options.python,
        flags=options.server_flags(),
        environment=environment or {},
        threads=None if options.on_cuda else options.threads,
        extension=EXTENSION,
        log=log,
    )
    server.start()
    return server


class RunningMember:
    """A server that was started elsewhere, and the engine on it."""

    def __init__(self, name: str, base_url: str, *, max_context: int, needs: Needs) -> None:
        """`max_context` is that of the model; once started, the server's where that is smaller."""
        self.name, self.server = name, RunningServer(base_url, name=f"engine {name}")
        self.max_context, self._needs = max_context, needs

    async def start(self) -> VllmEngine:
        """Raises `EngineError` for a server that the run cannot use, with the flags to start it with."""
        await self.server.ready()
        parts = urlsplit(self.server.url)
        if parts.hostname is None:
            raise EngineError(f"{self.server.url} is not the address of a server. Write it as http://host:8000.")
        tls = parts.scheme == "https"
        engine = VllmEngine(
            HttpPool((parts.hostname, parts.port or (443 if tls else 80)), headers(self.server.key), tls=tls),
            max_context=self.max_context,
            model=self.server.model,
            logprobs_mode=self._needs.logprobs_mode,
        )
        try:
            context = await engine.check_fits(self._needs)
            if self._needs.base is not None:  # another run may have left other weights under the adapter
                await engine.load_weights(WeightUpdate(0, self._needs.base))
        except (EngineError, ModelError, TrainingError) as error:
            await engine.close()
            raise EngineError(f"{self.server.name}, the server at {self.server.url}: {error}") from None
        self.max_context = engine.max_context = min(self.max_context, context)
        return engine

    async def stop(self) -> None:
        """It belongs to others."""

    def close(self) -> None:
        """It belongs to others."""

    def failure(self) -> str | None:
        return None


def headers(key: str) -> dict[str, str]:
    """Those of every request to a server with this key; "" for one without."""
    return {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}


def _rank(rank: int) -> int:
    for size in LORA_RANKS:
        if size >= rank:
            return size
    raise EngineError(f"vLLM takes adapters of rank {LORA_RANKS[-1]} at most, and [lora] rank is {rank}. Lower it.")


KEY = "VLLM_API_KEY"
ANSWER_S = 30.0


class RunningServer:
    """A vLLM server that was started elsewhere. Its key is taken from the environment."""

    def __init__(self, base_url: str, *, name: str) -> None:
        """`base_url` is that of a server, `http://host:8000`, with or without `/v1`; `name` is for messages."""
        self.name, self.key = name, os.environ.get(KEY, "")
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.model = ""
        """The model's name in requests, once `ready` has learned it."""
        self.vllm_version = ""

    async def ready(self) -> None:
        """Learn what the server serves. Raises `EngineError` where no vLLM server answers at the address."""
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=ANSWER_S) as client:
                version = await client.get("/version")
                models = await client.get("/v1/models")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise EngineError(
                f"{self.name}: no server answers at {self.url} ({error or type(error).__name__}). Start it, or correct "
                "base_url."
            ) from None
        if models.status_code in (401, 403):
            given = f"the key in {KEY}" if self.key else f"requests without a key; set {KEY} to its key"
            raise EngineError(f"{self.name}: the server at {self.url} refuses {given}.")
        self.vllm_version = _object(version).get("version", "")
        served = [one["id"] for one in _object(models).get("data", []) if not one.get("parent")]
        if not self.vllm_version or not served:
            raise EngineError(
                f"{self.name}: what answers at {self.url} is not a vLLM server: /version has status "
                f"{version.status_code}, /v1/models {models.status_code}."
            )
        self.model = served[0]


def _object(response: Any) -> dict[str, Any]:
    """The object that a response has in it; {} where it has none."""
    try:
        content = response.json() if response.status_code == 200 else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
