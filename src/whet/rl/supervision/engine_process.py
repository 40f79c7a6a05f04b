"""`EngineProcess`: the embedded engine in a process of its own, so that it samples while rollouts and scoring compute.

The process loads the model, listens on a Unix socket in the run's private directory, and answers `RemoteEngine` in the
run's own process, which renders, parses and scores. It ends with its parent, however that ends, and leaves Ctrl-C to
it. Its warnings are passed on by `log`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any

from whet.errors import MissingExtraError, TrainingError, WhetError
from whet.inference.remote.remote_engine import RemoteEngine
from whet.rl.supervision.child_log import ChildLog, tell_parent
from whet.system.children import follow_parent, how_it_ended, process_context
from whet.system.loading_time import rare_collections

READY_WITHIN_S = 1800.0
"""Seconds a model may take to load."""


class EngineProcess:
    """Started when made; `engine` waits until it is ready."""

    def __init__(self, model: Path, directory: Path, *, ready_within_s: float = READY_WITHIN_S, **options: Any) -> None:
        """Begin to load `model`. `directory` is private and short of name, `options` are those of `load_policy`.

        `socket` is where the engine will answer requests that have `key`.
        """
        try:
            import httptools  # noqa: F401  # here, where it can be said before anything is started
            import uvicorn  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtraError("an engine in a process of its own", "train") from error
        self.socket, self.key = directory / "engine.sock", secrets.token_urlsafe(32)
        self._ready_within_s = ready_within_s
        self._asked_why = False
        context = process_context()
        self._word, theirs = context.Pipe(duplex=False)
        self.log = ChildLog("engine")
        self._process = context.Process(  # type: ignore[attr-defined]  # every context has it
            target=_run,
            args=(theirs, self.log.theirs, self.socket, self.key, model, options),
            name="whet engine",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self.log.handed_over()

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def engine(self, gone: Callable[[str], Exception] | None = None) -> RemoteEngine:
        """The engine, once it answers. Blocks until then.

        `gone` makes, of a reason in words, what requests raise when the process has ended; by default a `TrainingError`
        that ends the run. Raises what loading the model raises, and `TrainingError` for a process that ends or is not
        ready in time.
        """
        if not connection.wait([self._word, self._process.sentinel], timeout=self._ready_within_s):
            raise TrainingError(f"the engine's process was not ready within {self._ready_within_s:g} s")
        if not self._word.poll():  # so it has ended, if only just now
            raise self._gone("")
        try:
            failure = self._word.recv()
        except EOFError:
            raise self._gone("") from None
        if failure is not None:
            raise failure
        return RemoteEngine(self.socket, self.key, gone=gone or self._gone)

    def failure(self) -> str | None:
        """Why the process has ended, in words; None while it runs."""
        status = self._process.exitcode
        return None if status is None else f"it {how_it_ended(status)}"

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._word.close()
        self.log.close()
        self.socket.unlink(missing_ok=True)

    def _gone(self, reason: str) -> TrainingError:
        if not self._asked_why:  # it may be about to end; every request asks, and the event loop waits meanwhile
            self._asked_why = True
            self._process.join(timeout=1)
        if self._process.exitcode is None:
            return TrainingError(f"the engine's process does not answer ({reason}). Continue with --resume.")
        return TrainingError(
            f"the engine's process ended without a word (exit status {self._process.exitcode}): it was killed, most "
            "often for its memory. Continue with --resume; a smaller max_concurrent or sampling.max_tokens needs less."
        )


def _run(
    word: connection.Connection,
    log: connection.Connection,
    path: Path,
    key: str,
    model: Path,
    options: Mapping[str, Any],
) -> None:
    """The process."""
    follow_parent()
    hears = tell_parent(log)
    try:
        with rare_collections():
            from whet.inference.loading import load_policy, read_model

            files = read_model(str(model), announce=False)  # the run has said what there is to say
            engine = load_policy(files, **{"repeatable": False, **options}).engine
        hears.attach()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(2048)
    except (WhetError, OSError) as error:
        word.send(error if isinstance(error, WhetError) else TrainingError(f"the engine cannot listen: {error}"))
        return
    word.send(None)
    from whet.gateway.serve import event_loop_factory

    with listening, asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(engine, key, listening))


async def _serve(engine: Any, key: str, listening: socket.socket) -> None:
    import uvicorn

    from whet.gateway.connections import raise_open_files
    from whet.gateway.engine_server import EngineServer

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals are the parent's business."""
            yield

    raise_open_files()  # a connection for each request that is being answered
    gc.collect()
    gc.freeze()  # what is loaded stays: a collection that visits all of torch stops every answer
    settings = uvicorn.Config(
        EngineServer(engine, key),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=86_400,  # connections end with the run
        backlog=2048,
    )
    await Server(settings).serve(sockets=[listening])
