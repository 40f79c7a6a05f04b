"""A model on a vLLM server of its own, as a policy: for evaluations and `whet serve` with `--engine vllm`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from whet.errors import ConfigError
from whet.inference.architecture import read_json
from whet.inference.devices import BLOCK_FORMS
from whet.inference.loading import Policy, read_model
from whet.inference.model_names import ADAPTER_CONFIG
from whet.inference.policy_client import PolicyClient
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.protocol import SamplingOptions, WeightUpdate
from whet.inference.vllm.completions import LogprobsMode
from whet.inference.vllm.interpreter import VllmPython, find_vllm
from whet.inference.vllm.members import ServerOptions, VllmMember
from whet.system.files import user_cache

SERVED_RANK = 64
"""Highest rank of adapters that are loaded while a model is served."""


@asynccontextmanager
async def open_vllm_policy(
    model: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    threads: int | None = None,
    max_rows: int = 256,
    logprobs_mode: LogprobsMode = "processed_logprobs",
    adapters: bool = False,
    highest_rank: int = SERVED_RANK,
    gpu_memory: float | None = None,
) -> AsyncIterator[Policy]:
    """Start a server of `model` with the Python that `find_vllm` finds, and end it after the block.

    `max_rows` are answered together; with `adapters` more can be loaded, of `highest_rank` at most. `gpu_memory` is the
    server's share of its GPU's memory. Raises `ModelLoadError` for files that cannot be read, and `EngineError` where
    there is no vLLM, or it does not start.
    """
    if dtype in BLOCK_FORMS:
        raise ConfigError(
            f'dtype = "{dtype}" is for engine = "embedded": vLLM is given weights in float32 or bfloat16.'
        )
    files = read_model(model)
    python = find_vllm(None)
    gpus = gpus_of(device, python)
    rank = None if files.base is None else int(read_json(files.path / ADAPTER_CONFIG, "an adapter").get("r", 0))
    options = ServerOptions(
        python=python.path,
        on_cuda=bool(gpus),
        dtype=dtype,
        logprobs_mode=logprobs_mode,
        max_context=files.arch.max_context,
        lora_rank=max(rank or 0, highest_rank) if adapters else rank,
        threads=threads,
        gpu_memory_utilization=gpu_memory,
        flags={"max-num-seqs": max_rows},
    )
    directory = Path(tempfile.mkdtemp(prefix="whet-vllm-"))
    log = user_cache("vllm") / "server.log"
    pool = EnginePool([VllmMember("1", files.base or files.path, directory, options, gpus=gpus, log=log)])
    try:
        await pool.start()
        if files.base is not None:
            await pool.load_weights(WeightUpdate(0, files.path, kind="adapter"))
        client = PolicyClient(pool, files.renderer, max_context=options.max_context, in_threads=True)
        yield Policy(files.path, pool, files.tokenizer, files.renderer, client, seeded=False)
    finally:
        await pool.close()
        shutil.rmtree(directory, ignore_errors=True)


def gpus_of(device: str, python: VllmPython) -> tuple[int, ...]:
    """The GPU of a server; none for one on the CPU. Raises `ConfigError` where this vLLM computes elsewhere."""
    if device == "auto":
        return () if python.for_cpus else (0,)
    if device == "mps" or (device == "cpu") != python.for_cpus:
        where = "CPUs" if python.for_cpus else "NVIDIA GPUs"
        raise ConfigError(
            f"device = {device}: {python.distribution} {python.version} in {python.path} computes on {where} alone."
        )
    return () if python.for_cpus else (int(device.partition(":")[2] or 0),)


def mode_for(settings: SamplingOptions | None) -> LogprobsMode:
    """How a server has to return logprobs that are log softmax(logits / temperature) of requests sampled so.

    Raises `ConfigError` for a temperature together with cuts, which neither mode fits.
    """
    if settings is None or settings.greedy or not settings.cuts:
        return "processed_logprobs"
    if settings.temperature == 1:
        return "raw_logprobs"
    cuts = ", ".join(name for name in settings.shape() if name != "temperature")
    raise ConfigError(
        f"temperature = {settings.temperature:g} together with {cuts}: vLLM would return logprobs of what these leave. "
        "Sample with one of the two, use --engine embedded, or start vLLM yourself and name its address with -b."
    )
