"""Where a run's engine is, and with it how engine and learner are built: one class for each, in one table.

    plan, model ─▶ opened_backend ─▶ learner(), engine()

What is slow to start (a process, servers) starts first and loads while this process loads the learner.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from whet.inference.loading import ModelFiles, load_policy
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.protocol import Engine
from whet.rl.config import RunConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.process import ProcessLearner
from whet.rl.learner.ranks.ranks_learner import RanksLearner, local_ranks
from whet.rl.placement import embedded_device
from whet.rl.plan import TrainingPlan
from whet.rl.storage.starting_point import starting_adapter
from whet.rl.storage.weight_directory import weights_directory
from whet.rl.supervision.child_log import ForwardedLog
from whet.rl.supervision.engine_process import EngineProcess
from whet.rollouts.workers.started import LocalProcess, Started

if TYPE_CHECKING:
    from whet.rl.learner.torch_learner import TorchLearner

    AnyLearner = TorchLearner | ProcessLearner | RanksLearner

BACKENDS: dict[Literal["here", "process", "vllm", "cluster"], str] = {
    "here": "whet.rl.supervision.backends:Backend",
    "process": "whet.rl.supervision.backends:ProcessBackend",
    "vllm": "whet.rl.supervision.vllm_engines:VllmBackend",
    "cluster": "whet.rl.cluster.run_cluster:ClusterBackend",
}
"""By where the engine is (`RunConfig.engine_location`)."""


class Backend:
    """The embedded engine in this process, and the learner. A subclass has engines elsewhere."""

    pool: EnginePool | None = None
    """Engines that the run has to wait for."""
    log: ForwardedLog | None = None
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
            "reference": config.algorithm.reference if config.algorithm.kl_coef else None,
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
        from whet.inference.decoding.settling import when_quiet

        engine: Any = load_policy(self.model, **self.sampling()).engine
        if self.plan.config.repeatable:  # so it is independent of timing
            engine.settle = when_quiet
        return cast(Engine, engine)

    def sampling(self) -> dict[str, Any]:
        """Options of the embedded engine."""
        config = self.plan.config
        return {
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

    def start_worker(self, number: int) -> Started:
        """Begin to start the worker for environments with this number; a `Starter`."""
        return LocalProcess(number)

    def when_lost(self, give_up: Callable[[str], None]) -> None:
        """Call `give_up` when the machines are gone that this depends on."""

    def move_logs(self) -> None:
        """The run has its directory now: what servers print goes there."""

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


@contextmanager
def opened_backend(plan: TrainingPlan[RunConfig], model: ModelFiles, logs: Path) -> Iterator[Backend]:
    """That of the config's engine, begun; what it has started ends with the block."""
    with ExitStack() as stack:
        scratch = stack.enter_context(weights_directory())
        backend: Backend = pkgutil.resolve_name(BACKENDS[plan.config.engine_location])(plan, model, scratch, logs)
        stack.callback(backend.close)
        backend.begin()
        yield backend


def learner_class(plan: TrainingPlan[Any], scratch: Path, *, apart: bool = False) -> Callable[..., AnyLearner]:
    """What makes the learner on this machine: in ranks, in a process `apart`, or in this process."""
    config = plan.config
    if config.ranks > 1:
        return local_ranks(plan.placement.rank_devices, scratch, timeout_s=config.learner.rank_timeout_seconds)
    return ProcessLearner if apart else make_learner


def build_learner(
    plan: TrainingPlan[Any],
    model: Path,
    scratch: Path,
    *,
    make: Callable[..., AnyLearner],
    threads: int,
    last_step: int,
    dtype: str,
    **options: Any,
) -> AnyLearner:
    """The learner of any run. It publishes to `scratch` in `dtype`; `options` are further ones of `make_learner`."""
    config = plan.config
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
