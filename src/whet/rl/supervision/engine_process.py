"""`EngineProcess`: the embedded engine in a process of its own, so that it samples while rollouts and scoring compute.

The process loads the model, listens on a Unix socket in the run's private directory (on a cluster by TCP), and answers
`RemoteEngine` in the run's own process, which renders, parses and scores. It ends with its parent, however that ends,
and leaves Ctrl-C to it. Its warnings are passed on by `log`.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whet.errors import TrainingError, WhetError
from whet.inference.remote_engine import EngineServer, RemoteEngine
from whet.rl.supervision.child_log import ChildHandler, ChildLog, ChildProcess
from whet.system.children import follow_parent, how_it_ended
from whet.system.loading_time import rare_collections

READY_WITHIN_S = 1800.0
"""Seconds a model may take to load."""


class EngineProcess:
    """Started when made; `engine` waits until it is ready."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        *,
        host: str | None = None,
        ready_within_s: float = READY_WITHIN_S,
        **options: Any,
    ) -> None:
        """Begin to load `model`. `directory` is private and short of name, `options` are those of `load_policy`.

        `address` is where the engine will answer requests that have `key`: a Unix socket, or `host` and the port that
        is known once `engine` has returned.
        """
        self.address: Path | tuple[str, int] = directory / "engine.sock" if host is None else (host, 0)
        self.key = secrets.token_urlsafe(32)
        self._ready_within_s = ready_within_s
        self._asked_why = False
        self._answer: Any = None
        self._answered = threading.Event()
        self.log = ChildLog()
        arguments = (self.address, self.key, model, options)
        self._child = ChildProcess("engine", self.log, _run, arguments, self._take, self._answered.set)

    @property
    def pid(self) -> int:
        pid: int = self._child.process.pid
        return pid

    def engine(self, gone: Callable[[str], Exception] | None = None) -> RemoteEngine:
        """The engine, once it answers. Blocks until then.

        `gone` makes, of a reason in words, what requests raise when the process has ended; by default a `TrainingError`
        that ends the run. Raises what loading the model raises, and `TrainingError` for a process that ends or is not
        ready in time.
        """
        if not self._answered.wait(self._ready_within_s):
            raise TrainingError(f"the engine's process was not ready within {self._ready_within_s:g} s")
        if self._answer is None:  # it has ended, if only just now
            raise self._gone("")
        if isinstance(self._answer, Exception):
            raise self._answer
        self.address = self._answer
        return RemoteEngine(self.address, self.key, gone=gone or self._gone)

    def failure(self) -> str | None:
        """Why the process has ended, in words; None while it runs."""
        status = self._child.status()
        return None if status is None else f"it {how_it_ended(status)}"

    def close(self) -> None:
        """End the process, whatever it does."""
        self._child.end()
        self.log.close()
        if isinstance(self.address, Path):
            self.address.unlink(missing_ok=True)

    def _take(self, answer: Any) -> None:
        """Where it listens, or why it does not."""
        self._answer = answer
        self._answered.set()

    def _gone(self, reason: str) -> TrainingError:
        if not self._asked_why:  # it may be about to end; every request asks, and the event loop waits meanwhile
            self._asked_why = True
            self._child.process.join(timeout=1)
        status = self._child.process.exitcode
        if status is None:
            return TrainingError(f"the engine's process does not answer ({reason}). Continue with --resume.")
        return TrainingError(
            f"the engine's process ended without a word (exit status {status}): it was killed, most "
            "often for its memory. Continue with --resume; a smaller max_concurrent or sampling.max_tokens needs less."
        )


def _run(
    parent: ChildHandler,
    address: Path | tuple[str, int],
    key: str,
    model: Path,
    options: Mapping[str, Any],
) -> None:
    """The process."""
    follow_parent()
    try:
        with rare_collections():
            from whet.inference.loading import load_policy, read_model

            files = read_model(str(model), announce=False)  # the run has said what there is to say
            engine: Any = load_policy(files, **{"repeatable": False, **options}).engine
        parent.attach()
        if isinstance(address, Path):
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(address))
            address.chmod(0o600)
        else:
            listening = socket.create_server(address)
            address = listening.getsockname()[:2]
    except (WhetError, OSError) as error:
        parent.send(error if isinstance(error, WhetError) else TrainingError(f"the engine cannot listen: {error}"))
        return
    listening.listen()
    parent.send(address)
    from whet.gateway.serve import event_loop_factory

    gc.collect()
    gc.freeze()  # what is loaded stays: a collection that visits all of torch stops every answer
    with listening, asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(EngineServer(engine, key).serve(listening))
