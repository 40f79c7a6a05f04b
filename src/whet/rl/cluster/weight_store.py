"""`WeightStore`: how weights that the learner has written reach the engines of every node.

    node sees the learner's directory   shared memory of the learner's host, or a shared file system: nothing is copied
    any other node                      put into Ray's object store once, brought to the node once, where all of its
                                        engines read it from the node's shared memory

Whether a node sees a directory is tried and not configured: the learner's side leaves a file there with random text,
and an agent on the node reads it, or does not.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import ModelLoadError
from whet.inference.protocol import WeightUpdate
from whet.rl.cluster.head_watch import end_with_head, head_is_gone
from whet.rl.storage.weight_directory import weights_directory

TOKEN = ".whet-seen"
PIECE = 64 << 20
"""Bytes of an object in Ray's store: it may then pass on weights that are larger than itself."""
AGENT_WITHIN_S = 120.0
"""Seconds for an agent to be started on a node, and to answer what takes no time."""
COPIED_WITHIN_S = 1800.0
"""Seconds for weights to reach a node."""
CLOSED_WITHIN_S = 10.0
KEPT = 2
"""Newest copies on a node: the one in use, and the one before it, which an engine may still be reading."""


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Files of an update in Ray's object store, each as its name and its pieces."""

    files: tuple[tuple[str, tuple[Any, ...]], ...]
    size: int
    """Bytes of all."""
    single: bool
    """Whether the update is a file, and not a directory."""


def store_weights(path: Path) -> StoredWeights:
    """Put a file, or all files of a directory, into the object store, while it is not written anew.

    Raises `ModelLoadError` where it is gone: a learner keeps only the newest.
    """
    import numpy as np
    import ray

    files, size = [], 0
    try:
        for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
            pieces = []
            with file.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as `packed_file` has it: it is being read
                if not os.path.samestat(file.stat(), os.fstat(opened.fileno())):  # taken before it was locked
                    raise FileNotFoundError
                while data := opened.read(PIECE):
                    pieces.append(ray.put(np.frombuffer(data, np.uint8)))
                    size += len(data)
            files.append((file.name if file == path else str(file.relative_to(path)), tuple(pieces)))
    except (FileNotFoundError, BlockingIOError):
        files = []
    if not files:
        raise ModelLoadError(f"{path} is missing: a learner keeps only the newest weights it handed over")
    return StoredWeights(tuple(files), size, path.is_file())


def sees(file: Path, token: str) -> bool:
    """Whether a file is here that holds this text."""
    try:
        return file.read_text(encoding="utf-8") == token
    except OSError:
        return False


class NodeAgent:
    """In an actor: what a node sees of the learner's files, and the copies that it has."""

    def __init__(self) -> None:
        self._context = weights_directory()  # swept up by the next run where this process is killed
        self._directory = self._context.__enter__()
        self._copies: list[Path] = []
        end_with_head(self.close)

    def sees(self, directory: Path, token: str) -> bool:
        return sees(directory / TOKEN, token)

    def fetch(self, stored: StoredWeights, name: str) -> tuple[Path, int]:
        """Bring weights to this node, where they are not there yet: the path of `name`, and bytes that were written."""
        import ray

        copy = self._directory / name
        if copy in self._copies:
            return copy, 0
        aside = self._directory / f".{name}"
        shutil.rmtree(aside, ignore_errors=True)
        for file, pieces in stored.files:
            target = aside if stored.single else aside / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as opened:
                for piece in pieces:
                    opened.write(ray.get(piece).data)
        aside.rename(copy)
        self._copies.append(copy)
        for older in self._copies[:-KEPT]:
            self._copies.remove(older)
            if older.is_dir():
                shutil.rmtree(older, ignore_errors=True)
            else:
                older.unlink(missing_ok=True)
        return copy, stored.size

    def close(self) -> None:
        """Remove the copies. An engine that has one mapped keeps it."""
        self._context.__exit__(None, None, None)


@dataclass(slots=True)
class TransferCounts:
    """Bytes so far."""

    stored: int = 0
    """Put into the object store."""
    copied: int = 0
    """Written on nodes, all together."""


@dataclass(slots=True)
class _Stored:
    """One update on its way."""

    name: str
    task: asyncio.Task[StoredWeights]


@dataclass(slots=True)
class WeightStore:
    """The run's side. `agent` starts an agent on a node of this id."""

    directory: Path
    """The learner's, in which it publishes."""
    agent: Callable[[str], Any]
    always_copy: bool = False
    """Nodes are taken to see nothing, as hosts without a common file system."""
    counts: TransferCounts = field(default_factory=TransferCounts)
    _agents: dict[str, Any] = field(default_factory=dict)
    _seen: dict[str, bool] = field(default_factory=dict)
    _token: str = field(default_factory=lambda: secrets.token_hex(16))
    _updates: dict[tuple[Path, int], _Stored] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        (self.directory / TOKEN).write_text(self._token, encoding="utf-8")

    async def on_node(self, update: WeightUpdate, node: str) -> WeightUpdate:
        """The update, as it is found on a node. Raises `ModelLoadError` where the learner has none of it any more."""
        agent = self._agents.get(node)
        if agent is None:
            agent = self._agents[node] = self.agent(node)
        try:
            if node not in self._seen:
                async with asyncio.timeout(AGENT_WITHIN_S):
                    self._seen[node] = not self.always_copy and await agent.sees.remote(self.directory, self._token)
            if self._seen[node]:
                return update
            stored = self._stored(update)
            weights = await asyncio.shield(stored.task)
            async with asyncio.timeout(COPIED_WITHIN_S):
                path, written = await agent.fetch.remote(weights, stored.name)
        except ModelLoadError:
            raise
        except Exception as error:  # of Ray: the node is gone, or about to be
            self._agents.pop(node, None)
            self._seen.pop(node, None)
            raise OSError(f"weights do not reach the node: {type(error).__name__}: {str(error)[:300]}") from error
        self.counts.copied += written
        return replace(update, path=path)

    def close(self) -> None:
        """Remove what is on nodes, from outside of an event loop. Ray ends the agents with the run."""
        import ray

        if head_is_gone():  # the agents end by themselves
            return
        ends = [agent.close.remote() for agent in self._agents.values()]
        self._agents.clear()
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=CLOSED_WITHIN_S)

    def metrics(self) -> dict[str, float]:
        """`weights/...`, see docs/scaling.md."""
        return {"weights/stored_bytes": float(self.counts.stored), "weights/copied_bytes": float(self.counts.copied)}

    def _stored(self, update: WeightUpdate) -> _Stored:
        """Put once, however many nodes ask."""
        key = (update.path, update.version)
        if key not in self._updates:
            self._number += 1
            task = asyncio.create_task(asyncio.to_thread(store_weights, update.path))
            task.add_done_callback(self._count)
            suffix = "".join(update.path.suffixes[-1:])
            self._updates[key] = _Stored(f"{self._number}{suffix}", task)
            for older in list(self._updates)[:-KEPT]:  # frees the objects, once no node fetches them
                del self._updates[older]
        return self._updates[key]

    def _count(self, task: asyncio.Task[StoredWeights]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.counts.stored += task.result().size
