"""`ClusterBackend`: a run's connection to its Ray cluster, what it has reserved there, and its engines.

The run itself is the driver. Ray ends everything that it has started when the driver ends, however that happens.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from whet.errors import ConfigError
from whet.inference.loading import ModelFiles
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.rl.cluster.head_watch import HeadWatch, head_is_gone, head_watched
from whet.rl.cluster.node_engine import PLACED_WITHIN_S, ClusterMember, HostedEngine
from whet.rl.cluster.nodes import LOCAL, RANK, ClusterBundle, apart, bundles
from whet.rl.cluster.ray_ranks import RayRankGroup
from whet.rl.cluster.remote_worker import RemoteWorker
from whet.rl.cluster.shipped_modules import local_sources
from whet.rl.cluster.weight_store import NodeAgent, WeightStore
from whet.rl.config import RunConfig
from whet.rl.learner.ranks.ranks_learner import RanksLearner
from whet.rl.placement import PlacedPart
from whet.rl.plan import TrainingPlan
from whet.rl.stored.export import starting_model
from whet.rl.supervision.backends import Backend

if TYPE_CHECKING:
    from whet.rl.supervision.backends import AnyLearner

_log = logging.getLogger(__name__)
CONNECTED_WITHIN_S = 120.0
"""Seconds for Ray's client to connect; for `local`, to start a cluster."""
LOOPBACK = "127.0.0.2"
"""Where a cluster of this machine alone listens. Ray takes a network interface in the place of 127.0.0.1."""


class Reserved(NamedTuple):
    """What Ray has reserved for one part of a run."""

    group: Any
    number: int
    """Of its bundle in the group."""
    bundle: ClusterBundle


class ClusterBackend(Backend):
    """Engines, ranks of the learner and workers of environments in actors; the run's connection lasts as long."""

    pool: ClusterPool

    def __init__(self, plan: TrainingPlan[RunConfig], model: ModelFiles, scratch: Path, logs: Path) -> None:
        super().__init__(plan, model, scratch, logs)
        self._stack, self._members = ExitStack(), list[ClusterMember]()
        self.store = WeightStore(scratch, node_agent)

    def begin(self) -> None:
        """Reserve all that the run needs. Raises `ConfigError` where there is no room, or Ray refuses."""
        import ray

        config, placed = self.plan.config, self.plan.placement
        assert config.deployment.ray_address is not None
        self._head = self._stack.enter_context(begun_ray(config.deployment.ray_address))
        self._here = ray.util.get_node_ip_address()
        self._reserved = _reserved(bundles(config, placed, self._here))
        hosted: Callable[[str, PlacedPart], HostedEngine] = (
            partial(_vllm, config, self.max_context)
            if config.engine == "vllm"
            else partial(_embedded, config, self.sampling())
        )
        parts = [*(part for part in placed.parts if part.role == "engine"), *placed.servers]
        self._members += [
            ClusterMember(hosted(str(number), part), partial(self._actor_options, part.process), self.store)
            for number, part in enumerate(parts, 1)
        ]
        inference = config.inference
        restarts = RestartPolicy(max_restarts=inference.max_restarts)
        self.pool = ClusterPool(self._members, min_healthy=inference.min_healthy, restarts=restarts, store=self.store)

    def learner_class(self) -> Callable[..., AnyLearner]:
        config = self.plan.config
        if config.ranks == 1:
            return super().learner_class()
        devices = [part.device for part in self.plan.placement.parts if part.role == "learner"]
        shared = next(folder for folder in config.directory.absolute().parents if folder.is_dir())
        sources = local_sources(config.algorithm.loss)
        group = RayRankGroup(
            _model(config), devices, lambda rank: self._actor_options(f"{RANK}{rank}"), shared, sources
        )
        return partial(RanksLearner, group, timeout_s=config.learner.rank_timeout_seconds)

    def engine(self) -> EnginePool:
        return self.pool

    @property
    def max_context(self) -> int:
        return min(self.model.arch.max_context, self.plan.config.inference.max_model_len or self.model.arch.max_context)

    def start_worker(self, number: int) -> RemoteWorker:
        workers = [part.process for part in self.plan.placement.parts if part.role == "environment"]
        return RemoteWorker(number, self._here, self._actor_options(workers[number]))

    def when_lost(self, give_up: Callable[[str], object]) -> None:
        self._head.on_gone = give_up

    def describe(self) -> str:
        number = len(self._members)
        return f"{number} engine{'' if number == 1 else 's'} on the cluster to answer"

    def close(self) -> None:
        for member in self._members:
            member.close()
        self.store.close()
        self._stack.close()  # Ray releases what is reserved with this process's connection

    def _actor_options(self, part: str) -> dict[str, Any]:
        """Options of the actor that is this part of the run."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, number, bundle = self._reserved[part]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        return {"num_cpus": bundle.cpus, "num_gpus": bundle.gpus, "scheduling_strategy": strategy}


def _reserved(wanted: Sequence[ClusterBundle]) -> dict[str, Reserved]:
    """What Ray has reserved for each part that is in an actor, by name."""
    import ray

    reserved: dict[str, Reserved] = {}
    for together in apart(wanted):
        group = ray.util.placement_group([bundle.resources() for bundle in together], strategy="PACK")
        reserved |= {bundle.part: Reserved(group, number, bundle) for number, bundle in enumerate(together)}
    deadline = time.monotonic() + PLACED_WITHIN_S
    for group, _, _ in reserved.values():
        if not group.wait(timeout_seconds=max(0.0, deadline - time.monotonic())):
            raise ConfigError(
                f"the cluster has not reserved what the run needs within {PLACED_WITHIN_S:g} s ("
                f"{'; '.join(f'{bundle.part}: {bundle.describe()}' for bundle in wanted)}): others may have it. "
                "See `ray status`, and whet cluster check."
            )
    return reserved


@contextmanager
def begun_ray(address: str, *, within_s: float = CONNECTED_WITHIN_S) -> Iterator[HeadWatch]:
    """This process is connected within; for `local` to a cluster of this machine, which leaves nothing.

    Raises `ConfigError`, also where Ray has not connected in time.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    with ExitStack() as stack:
        if address == LOCAL:
            options["include_dashboard"] = False
            options["_temp_dir"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-ray-"))
            if sys.platform == "linux":
                options["_node_ip_address"] = LOOPBACK
        connection = _Connection(address, options)
        stack.callback(connection.close)
        connection.wait(within_s)
        yield stack.enter_context(head_watched())


class _Connection:
    """Ray's client, in a thread: it may wait in native code, without limit, for a cluster that has just gone.

    The thread lives as long as the connection does: what Ray starts for `local` ends with the thread that started it.
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._address, self._options = address, options
        self._ready, self._closing = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._keep, name="whet Ray connection", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        if not self._ready.wait(seconds):
            raise ConfigError(f"the Ray cluster {self._address} did not answer within {seconds:g} s. See `ray status`.")
        if isinstance(self._error, ConnectionError | RuntimeError | ValueError):
            said = " ".join(str(self._error).split())[:400]
            raise ConfigError(f"the Ray cluster {self._address} cannot be used: {said}")
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if head_is_gone():  # Ray would wait for it
            return
        self._closing.set()
        if self._ready.is_set():
            self._thread.join()

    def _keep(self) -> None:
        import ray

        logging.getLogger("ray").setLevel(logging.ERROR)  # it would say that this is not the main thread
        try:
            ray.init(address=self._address, **self._options)
        except Exception as error:
            self._error = error
        else:  # Ray prints what it says of lost nodes, with 20 lines of their logs, over whatever is on the terminal
            ray._private.worker.print_to_stdstream = _log_of_ray
        self._ready.set()
        if self._error is None:
            self._closing.wait()
            ray.shutdown()


def _log_of_ray(data: Mapping[str, Any], **_: Any) -> None:
    """In the place of what prints Ray's messages: the first line of each goes to the log of the run."""
    for text in data.get("lines", ()):
        _log.info("Ray: %s", str(text).partition("\n")[0][:300])


class ClusterPool(EnginePool):
    """A pool that says how weights have reached its engines, too."""

    def __init__(self, members: list[ClusterMember], *, store: WeightStore, **options: Any) -> None:
        super().__init__(members, **options)
        self._store = store

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), **self._store.metrics()}


def _embedded(config: RunConfig, sampling: dict[str, Any], name: str, part: PlacedPart) -> HostedEngine:
    device = "cuda" if part.gpus else config.inference.device  # Ray shows an actor its own GPUs alone
    options = {**sampling, "device": device, "repeatable": not config.asynchronous}
    return HostedEngine(name, _model(config), embedded=options)


def _vllm(config: RunConfig, max_context: int, name: str, part: PlacedPart) -> HostedEngine:
    from whet.rl.supervision.backends import server_options

    python = config.inference.python
    server = server_options(config, Path("python"), part, max_context)  # each node finds its own Python
    return HostedEngine(name, _model(config), server=server, python=None if python is None else str(python))


def _model(config: RunConfig) -> str:
    """As nodes find it: a name, or an absolute path."""
    name = starting_model(config.model)
    return str(Path(name).absolute()) if Path(name).exists() else name


def node_agent(node: str) -> Any:
    """An agent on a node of this id, which is about to start."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)(NodeAgent).remote()
