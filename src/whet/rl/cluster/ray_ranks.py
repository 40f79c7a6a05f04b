"""`RayRankGroup`: the ranks of a learner, each in an actor of the cluster.

Rank 0 is on the node of the run, which has the memory that new weights are published to; the others are where Ray puts
them. All write and read checkpoints, so all have to see the run's directory; whether they do is tried at the start.
They meet at rank 0's node by TCP.

`RankHost`: in an actor, one rank of the learner.

The rank computes in a thread of its own, the same for all calls, since what torch has chosen, such as a device, belongs
to a thread. Other calls of the actor are answered meanwhile: what it does, which is its heartbeat too.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import ConfigError, LearnerLostError
from whet.rl.cluster.head_watch import end_with_head, head_is_gone, wait_for_lost_nodes
from whet.rl.cluster.node_engine import PLACED_WITHIN_S, actor_line
from whet.rl.cluster.shipped_modules import ModuleSource, import_from
from whet.rl.cluster.weight_store import sees
from whet.rl.learner.ranks.rank_group import RankBody, RankGroup, RankResponse, Standing, as_raised

LOOK_S = 0.5
ENDS_WITHIN_S = 30.0
"""Seconds for an actor that is killed to be gone, and for its node to be known to be."""
SEEN_WITHIN_S = 60.0


@dataclass(slots=True)
class _ActorRank:
    """The run's side of one rank."""

    actor: Any
    node: str
    pid: int
    look: RankLook
    looked: float
    """When it was answered."""
    ended: str | None = None


class RayRankGroup(RankGroup):
    """See `RankGroup`. What ranks log is in Ray's logs of their nodes."""

    def __init__(
        self,
        model: str,
        devices: Sequence[str],
        actor_options: Callable[[int], dict[str, Any]],
        shared: Path,
        sources: Mapping[str, ModuleSource],
    ) -> None:
        """Nothing is started.

        Args:
            model: its name, or a directory that all nodes have.
            devices: `cuda` or `cpu` for each rank; a rank's GPU is the one that Ray shows it.
            actor_options: options of the actor of a rank.
            shared: an existing directory that all ranks have to see.
            sources: modules of this machine that ranks import, as `local_sources` has them.
        """
        super().__init__(devices)
        self._model, self._actor_options, self._shared = model, actor_options, shared
        self._sources = sources
        self._ranks: list[_ActorRank] = []
        self._starts = 0

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def start(self, model: Path, options: Mapping[str, Any]) -> None:
        """Raises `ConfigError` for a node that does not see the run's directory, and `LearnerLostError`."""
        assert not self._ranks, "the ranks run already"
        import ray

        self._answers = queue.SimpleQueue()
        if self._starts:
            wait_for_lost_nodes()
        self._starts += 1
        actors = []
        for number in range(self.size):
            options_of = {"max_concurrency": CALLS_AT_ONCE, "max_restarts": 0, **self._actor_options(number)}
            actors.append(ray.remote(**options_of)(RankHost).remote(number, self._sources))
        try:
            abouts = ray.get([actor.about.remote() for actor in actors], timeout=PLACED_WITHIN_S)
            self._check_shared(actors, [node for node, _, _ in abouts])
        except ray.exceptions.GetTimeoutError:
            self._kill_actors(actors)
            raise LearnerLostError(
                f"the cluster has not started the {self.size} ranks of the learner within {PLACED_WITHIN_S:g} s: there "
                "is no room for all of them"
            ) from None
        except ray.exceptions.RayError as error:
            self._kill_actors(actors)
            raise LearnerLostError(f"the ranks of the learner do not start: {actor_line(error)}") from None
        except ConfigError:
            self._kill_actors(actors)
            raise
        now = time.monotonic()
        starting = RankLook("starting its process", 0, 0.0)
        self._ranks = [
            _ActorRank(actor, node, pid, starting, now) for actor, (node, pid, _) in zip(actors, abouts, strict=True)
        ]
        shared = {"world_size": self.size, "init_method": f"tcp://{abouts[0][0]}:{abouts[0][2]}"}
        for number, rank in enumerate(self._ranks):
            device = "cuda:0" if self._devices[number].startswith("cuda") else self._devices[number]
            computation = options["computation"].model_copy(update={"device": device})
            made = {**options, **shared, "computation": computation}
            self._expect(rank, number, rank.actor.make.remote(self._model, _absolute(made)))
            threading.Thread(target=self._look, args=(rank,), name=f"whet look at rank {number}", daemon=True).start()

    def send(self, rank: int, verb: str, arguments: tuple[Any, ...]) -> None:
        if not (ranks := self._ranks):
            return  # they were ended meanwhile
        there = ranks[rank]
        sent = tuple(one.absolute() if isinstance(one, Path) else one for one in arguments)
        self._expect(there, rank, there.actor.call.remote(verb, sent))

    def standing(self) -> list[Standing]:
        now = time.monotonic()
        return [
            Standing(
                number,
                f"process {rank.pid} on {rank.node}",
                self._devices[number],
                rank.look.phase,
                rank.look.phases,
                phase_s=rank.look.phase_s + now - rank.looked,
                silent_s=now - rank.looked,
                ended=rank.ended or ("is lost with the head of the cluster" if head_is_gone() else None),
            )
            for number, rank in enumerate(self._ranks)
        ]

    def kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.ended = rank.ended or "was ended by the run"
        self._kill_actors([rank.actor for rank in ranks])

    def _check_shared(self, actors: Sequence[Any], nodes: Sequence[str]) -> None:
        import ray

        name, token = f".whet-seen-{secrets.token_hex(8)}", secrets.token_hex(16)
        left = self._shared.absolute() / name
        left.write_text(token, encoding="utf-8")
        try:
            calls = [actor.sees.remote(left.parent, name, token) for actor in actors]
            seen = ray.get(calls, timeout=SEEN_WITHIN_S)
        finally:
            left.unlink()
        if without := sorted({node for node, sees in zip(nodes, seen, strict=True) if not sees}):
            raise ConfigError(
                f"{', '.join(without)} does not see {left.parent}, and all ranks of the learner write checkpoints "
                "there. Set runs_directory to one on a file system that all nodes share."
            )

    def _expect(self, rank: _ActorRank, number: int, answer: Any) -> None:
        """Wait for an answer in a thread: of Ray, which says what became of the actor in its place."""
        import ray

        into = self._answers

        def wait() -> None:
            try:
                into.put(ray.get(answer))
            except ray.exceptions.RayError as error:
                rank.ended = rank.ended or f"has ended: {actor_line(error)}"

        threading.Thread(target=wait, name=f"whet answer of rank {number}", daemon=True).start()

    def _look(self, rank: _ActorRank) -> None:
        """The thread of a rank: what it does, as often as it answers."""
        import ray

        while rank.ended is None:
            try:
                rank.look = ray.get(rank.actor.look.remote())
                rank.looked = time.monotonic()
            except ray.exceptions.RayError as error:
                rank.ended = rank.ended or f"has ended: {actor_line(error)}"
                return
            time.sleep(LOOK_S)

    def _kill_actors(self, actors: Sequence[Any]) -> None:
        """End them, and wait until each is known to have ended."""
        import ray

        if head_is_gone():
            return
        with suppress(ray.exceptions.RayError):
            for actor in actors:
                ray.kill(actor)
        deadline = time.monotonic() + ENDS_WITHIN_S
        for actor in actors:
            with suppress(ray.exceptions.RayError):
                ray.get(actor.look.remote(), timeout=max(0.0, deadline - time.monotonic()))


def _absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """Paths as another directory than the run's finds them."""
    return {name: value.absolute() if isinstance(value, Path) else value for name, value in options.items()}


CALLS_AT_ONCE = 3
"""Threads of the actor: one waits for the rank, one says what it does, one is for what comes before it is made."""
GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


@dataclass(frozen=True, slots=True)
class RankLook:
    """What a rank does."""

    phase: str
    phases: int
    phase_s: float
    """Seconds since it named the phase."""


class RankHost:
    """See `RankBody`."""

    def __init__(self, rank: int, sources: Mapping[str, ModuleSource]) -> None:
        import_from(sources)
        self._lock = threading.Lock()
        self._phase, self._phases, self._since = "starting its process", 0, time.monotonic()
        self._body = RankBody(rank, self._begin)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"whet rank {rank}")
        end_with_head(lambda: None)

    def about(self) -> tuple[str, int, int]:
        """Address of the node, number of the process, a port that is free there."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket() as listening:
            listening.bind((address, 0))
            return address, os.getpid(), listening.getsockname()[1]

    def sees(self, directory: Path, name: str, token: str) -> bool:
        """Whether a file that the run has left is here, too."""
        return sees(directory / name, token)

    def make(self, model: str, options: Mapping[str, Any]) -> RankResponse:
        """As `RankBody`; `model` is a name or a directory of this node."""
        import ray

        interface = interface_of(ray.util.get_node_ip_address())
        for library in ("GLOO", "NCCL"):  # which would else choose by the host's name
            if interface is not None:
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        return self._thread.submit(self._make, model, options).result()

    def call(self, verb: str, arguments: tuple[Any, ...]) -> RankResponse:
        return self._thread.submit(self._body.call, verb, arguments).result()

    def look(self) -> RankLook:
        with self._lock:
            return RankLook(self._phase, self._phases, time.monotonic() - self._since)

    def _make(self, model: str, options: Mapping[str, Any]) -> RankResponse:
        from whet.errors import WhetError
        from whet.inference.model_names import resolve_model

        try:
            path = resolve_model(model)
        except WhetError as error:
            return RankResponse(self._body.rank, raised=as_raised(error))
        return self._body.make(path, options)

    def _begin(self, phase: str) -> None:
        with self._lock:
            self._phase, self._phases, self._since = phase, self._phases + 1, time.monotonic()


def interface_of(address: str) -> str | None:
    """The network interface with an IPv4 address; None where it is not known, as on other systems than Linux."""
    if address.startswith("127."):
        return "lo" if sys.platform == "linux" else "lo0"
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
