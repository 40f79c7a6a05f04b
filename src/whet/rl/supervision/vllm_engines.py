"""The vLLM servers of a run, as one engine: a pool of those that whet starts, or of those that run already."""

from __future__ import annotations

from pathlib import Path

from whet.inference.loading import ModelFiles
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.vllm.interpreter import find_vllm
from whet.inference.vllm.members import RunningMember, ServerOptions, VllmMember
from whet.rl.config import RunConfig
from whet.rl.placement import PlacedPart
from whet.rl.preflight import place


class VllmEngines:
    """Made before the run begins; `pool.start` starts the servers. `close` ends them, whatever they do."""

    def __init__(self, config: RunConfig, model: ModelFiles, scratch: Path, logs: Path) -> None:
        """`scratch` is private and short of name; what the servers print goes to `logs`."""
        inference = config.inference
        self.max_context = min(model.arch.max_context, inference.max_model_len or model.arch.max_context)
        self._members: list[VllmMember | RunningMember]
        if inference.base_url:
            self._members = [
                RunningMember(str(number), url, max_context=self.max_context, logprobs_mode=config.logprobs_mode)
                for number, url in enumerate(inference.base_url, 1)
            ]
        else:
            python = find_vllm(inference.python).path
            self._members = [
                VllmMember(
                    str(number),
                    model.path,
                    scratch,
                    self._options(config, python, part),
                    gpus=part.gpus,
                    log=logs / f"vllm-{number}.log",
                )
                for number, part in enumerate(place(config).servers, 1)
            ]
        restarts = RestartPolicy(max_restarts=inference.max_restarts)
        self.pool = EnginePool(self._members, min_healthy=inference.min_healthy, restarts=restarts)

    def close(self) -> None:
        for member in self._members:
            member.close()

    def describe(self) -> str:
        """What is waited for while they start."""
        number = len(self._members)
        return f"{number} vLLM server{'' if number == 1 else 's'}"

    def _options(self, config: RunConfig, python: Path, part: PlacedPart) -> ServerOptions:
        inference, on_cuda = config.inference, part.device == "cuda"
        return ServerOptions(
            python=python,
            on_cuda=on_cuda,
            dtype=inference.dtype,
            logprobs_mode=config.logprobs_mode,
            max_context=self.max_context,
            tensor_parallel_size=inference.tensor_parallel_size,
            pipeline_parallel_size=inference.pipeline_parallel_size,
            gpu_memory_utilization=part.memory_share if on_cuda else inference.gpu_memory_utilization,
            lora_rank=None if config.lora is None else config.lora.rank,
            record_experts=config.algorithm.router_replay,
            threads=config.threads()[0],
            seed=config.seed,
            flags=inference.server_args,
        )
