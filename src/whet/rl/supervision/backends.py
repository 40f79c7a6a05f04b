"""Where a run's engine is, and with it how engine and learner are built: one class for each, in one table.

    plan, model ─▶ opened_backend ─▶ learner(), engine()

What is slow to start (a process, servers) starts first and loads while this process loads the learner.

vLLM servers are one engine: a pool of those that whet starts, or of those that run already. A server on a GPU of the
learner's waits until the learner is there: it reserves memory by what is free then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from whet.inference.architecture import read_json
from whet.inference.loading import ModelFiles, load_policy
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.protocol import Engine
from whet.inference.vllm.completions import PROBE, Needs
from whet.inference.vllm.interpreter import find_vllm
from whet.inference.vllm.members import RunningMember, ServerOptions, VllmMember
from whet.rl.config import RunConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.ranks.ranks_learner import RanksLearner, local_ranks
from whet.rl.placement import PlacedPart, embedded_device
from whet.rl.plan import TrainingPlan
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.stored.export import starting_adapter
from whet.rl.supervision.child_log import ChildLog
from whet.rl.supervision.engine_process import EngineProcess
from whet.rollouts.workers.started import LocalProcess, StartedWorker

if TYPE_CHECKING:
    from whet.rl.learner.torch_learner import TorchLearner

    AnyLearner = TorchLearner | RanksLearner


class Backend:
    """The embedded engine in this process, and the learner. A subclass has engines elsewhere."""

    pool: EnginePool | None = None
    """Engines that the run has to wait for."""
    log: ChildLog | None = None
    """What the engine's own process logs."""

    def __init__(self, plan: TrainingPlan[RunConfig], model: ModelFiles, scratch: Path, logs: Path) -> None:
        """Weights are published to `scratch`, private and short of name; what servers print goes to `logs`."""
        self.plan, self.model, self.scratch, self.logs = plan, model, scratch, logs

    def begin(self) -> None:
        """Start what loads while this process loads the learner."""

    def learner(self) -> AnyLearner:
        """In ranks, in a process of its own, or in this one; it publishes weights packed, or as a checkpoint."""
        config, threads = self.plan.config, self.plan.config.threads()[1]
        options: dict[str, Any] = {
            "publish_format": "packed" if config.engine == "embedded" else "checkpoint",
            "reference": config.reference,
        }
        if config.ranks == 1:  # several threads are better used in each product
            options["reference_thread"] = config.asynchronous and threads == 1
        return build_learner(
            self.plan,
            self.model.path,
            self.scratch,
            make=self.learner_class(),
            threads=threads,
            last_step=config.max_steps,
            dtype=config.inference.dtype,
            **options,
        )

    def learner_class(self) -> Callable[..., AnyLearner]:
        """What makes the learner."""
        return learner_class(self.plan, self.scratch, apart=self.plan.config.asynchronous)

    def engine(self) -> Engine:
        """Loaded now, or begun before and waited for."""
        from whet.inference.decoding.scheduler import when_quiet

        engine: Any = load_policy(self.model, **self.sampling()).engine
        if self.plan.config.repeatable:  # so it is independent of timing
            engine.settle = when_quiet
        return cast(Engine, engine)

    def sampling(self) -> dict[str, Any]:
        """Options of the embedded engine."""
        config = self.plan.config
        return {
            "base_dtype": config.shared_base,
            "dtype": config.inference.dtype,
            "device": embedded_device(config),
            "threads": config.threads()[0],
            "record_experts": config.algorithm.router_replay,
            "record_kept": config.algorithm.renormalise_cuts,
        }

    @property
    def max_context(self) -> int:
        """Tokens of a sequence, as far as is known now."""
        return self.model.arch.max_context

    def start_worker(self, number: int) -> StartedWorker:
        """Begin to start the worker for environments with this number; a `Starter`."""
        return LocalProcess(number)

    def when_lost(self, give_up: Callable[[str], None]) -> None:
        """Call `give_up` when the machines are gone that this depends on."""

    def describe(self) -> str:
        """What is waited for while a pool starts."""
        return ""

    def close(self) -> None:
        """End all that was started, whatever it does."""


class ProcessBackend(Backend):
    """The embedded engine in a process of its own."""

    _process: EngineProcess | None = None

    def begin(self) -> None:
        self._process = EngineProcess(self.model.path, self.scratch, **self.sampling())
        self.log = self._process.log

    def engine(self) -> Engine:
        assert self._process is not None
        return self._process.engine()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def learner_class(plan: TrainingPlan[Any], scratch: Path, *, apart: bool = False) -> Callable[..., AnyLearner]:
    """What makes the learner on this machine: in ranks, in a process `apart`, or in this process."""
    config = plan.config
    if config.ranks > 1 or apart:
        return local_ranks(plan.placement.rank_devices, scratch, timeout_s=config.learner.rank_timeout_seconds)
    return make_learner


def build_learner(
    plan: TrainingPlan[Any],
    model: Path,
    scratch: Path,
    *,
    make: Callable[..., AnyLearner] | None = None,
    threads: int,
    last_step: int,
    dtype: str,
    **options: Any,
) -> AnyLearner:
    """The learner of any run, made by `make`; it publishes to `scratch` in `dtype`. `options` are of `make_learner`."""
    config, make = plan.config, make or learner_class(plan, scratch)
    return make(
        model,
        optimizer=config.optimizer,
        lora=starting_adapter(config.lora),
        max_steps=last_step,
        seed=config.seed,
        threads=max(1, threads // config.ranks),
        publish_directory=scratch,
        publish_dtype=dtype,
        computation=config.learner,
        **options,
    )


class VllmBackend(Backend):
    """`begin` starts servers, the pool's `start` waits until all answer. `close` ends them, whatever they do."""

    pool: EnginePool

    def __init__(self, plan: TrainingPlan[RunConfig], model: ModelFiles, scratch: Path, logs: Path) -> None:
        super().__init__(plan, model, scratch, logs)
        config, inference = plan.config, plan.config.inference
        self._early = list[VllmMember]()
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
                member
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
        for member in self._early:
            member.begin()

    def close(self) -> None:
        for member in self._members:
            member.close()

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


def _cluster(*parts: Any) -> Backend:
    from whet.rl.cluster.run_cluster import ClusterBackend

    return ClusterBackend(*parts)


BACKENDS: dict[str, Callable[[TrainingPlan[RunConfig], ModelFiles, Path, Path], Backend]] = {
    "here": Backend,
    "process": ProcessBackend,
    "vllm": VllmBackend,
    "cluster": _cluster,
}
"""By where the engine is (`RunConfig.engine_location`)."""


@contextmanager
def opened_backend(plan: TrainingPlan[RunConfig], model: ModelFiles, logs: Path) -> Iterator[Backend]:
    """That of the config's engine, begun; what it has started ends with the block."""
    with ExitStack() as stack:
        scratch = stack.enter_context(weights_directory())
        backend = BACKENDS[plan.config.engine_location](plan, model, scratch, logs)
        stack.callback(backend.close)
        backend.begin()
        yield backend
