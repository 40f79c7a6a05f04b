"""The vLLM servers of a run, as one engine: a pool of those that whet starts, or of those that run already.

Servers take long to start, so they start while this process loads the learner. One on a GPU of the learner's does not:
it reserves memory by what is free then, and waits until the learner is there.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from whet.inference.architecture import read_json
from whet.inference.loading import ModelFiles
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.vllm.handshake import PROBE, Needs
from whet.inference.vllm.interpreter import find_vllm
from whet.inference.vllm.members import RunningMember, ServerOptions, VllmMember
from whet.records.process import began
from whet.rl.config import RunConfig
from whet.rl.placement import PlacedPart
from whet.rl.plan import TrainingPlan
from whet.rl.supervision.backends import Backend


class VllmBackend(Backend):
    """`begin` starts servers, the pool's `start` waits until all answer. `close` ends them, whatever they do."""

    pool: EnginePool

    def __init__(self, plan: TrainingPlan[RunConfig], model: ModelFiles, scratch: Path, logs: Path) -> None:
        super().__init__(plan, model, scratch, logs)
        config, inference = plan.config, plan.config.inference
        self._early = list[tuple[VllmMember, Path]]()  # with where they print before there is a directory for it
        self._max_context = min(model.arch.max_context, inference.max_model_len or model.arch.max_context)
        self._members: Sequence[VllmMember | RunningMember]
        if inference.base_url:
            self._members = [
                RunningMember(str(number), url, max_context=self._max_context, needs=server_needs(config, model))
                for number, url in enumerate(inference.base_url, 1)
            ]
        else:
            python = find_vllm(inference.python).path
            placed = plan.placement
            self._members = own = [
                VllmMember(
                    str(number),
                    model.path,
                    scratch,
                    server_options(config, python, part, self._max_context),
                    gpus=part.gpus,
                    log=logs / f"vllm-{number}.log",
                )
                for number, part in enumerate(placed.servers, 1)
            ]
            self._early = [
                (member, _early_log(logs.parent, str(os.getpid()), member.name))
                for member, part in zip(own, placed.servers, strict=True)
                if not set(placed.learning).intersection(part.gpus)
            ]
        restarts = RestartPolicy(max_restarts=inference.max_restarts)
        self.pool = EnginePool(self._members, min_healthy=inference.min_healthy, restarts=restarts)

    @property
    def max_context(self) -> int:
        """Tokens of a sequence; once servers that run already have answered, of the one that takes fewest."""
        running = [member.max_context for member in self._members if isinstance(member, RunningMember)]
        return min([self._max_context, *running])

    def engine(self) -> EnginePool:
        return self.pool

    def begin(self) -> None:
        """Start the servers that do not have to wait for the learner. Raises `EngineError`."""
        _remove_early_logs(self.logs.parent)
        for member, log in self._early:
            member.begin(log)

    def move_logs(self) -> None:
        for member, _ in self._early:
            member.move_log()

    def close(self) -> None:
        for member in self._members:
            member.close()
        for _, log in self._early:
            log.unlink(missing_ok=True)

    def describe(self) -> str:
        number = len(self._members)
        where = f"; what is printed goes to {self.logs}" if self._early else ""
        return f"{number} vLLM server{'' if number == 1 else 's'} to answer{where}"


def server_needs(config: RunConfig, model: ModelFiles) -> Needs:
    """What a run needs of servers that run already."""
    return Needs(
        model=config.model,
        config=read_json(model.path / "config.json", "a model"),
        probe_ids=model.tokenizer.encode(PROBE, add_special_tokens=False),
        dtype=config.inference.dtype,
        logprobs_mode=config.logprobs_mode,
        lora_rank=None if config.lora is None else config.lora.rank,
        record_experts=config.algorithm.router_replay,
        base=None if config.lora is None else (model.base or model.path).absolute(),
    )


def server_options(config: RunConfig, python: Path, part: PlacedPart, max_context: int) -> ServerOptions:
    """How a run starts the vLLM server that `part` is."""
    inference, on_cuda = config.inference, part.device == "cuda"
    return ServerOptions(
        python=python,
        on_cuda=on_cuda,
        dtype=inference.dtype,
        logprobs_mode=config.logprobs_mode,
        max_context=max_context,
        tensor_parallel_size=inference.tensor_parallel_size,
        pipeline_parallel_size=inference.pipeline_parallel_size,
        gpu_memory_utilization=part.memory_share if on_cuda else inference.gpu_memory_utilization,
        lora_rank=None if config.lora is None else config.lora.rank,
        record_experts=config.algorithm.router_replay,
        sleeps=config.deployment.colocate,
        threads=config.threads()[0],
        seed=config.seed,
        flags=inference.server_args,
    )


def _early_log(run: Path, process: str, member: str) -> Path:
    """Where a server prints before there is the run's directory, which is made when nothing is wrong with the run."""
    return run.with_name(f".{run.name}-{process}-vllm-{member}.log")


def _remove_early_logs(run: Path) -> None:
    """Those of processes that were killed."""
    for log in run.parent.glob(f".{glob.escape(run.name)}-*-vllm-*.log"):
        process = log.name.removeprefix(f".{run.name}-").partition("-")[0]
        if process.isdecimal() and began(int(process)) is None:
            log.unlink(missing_ok=True)
