"""The gateway inside evaluation and training: a server on loopback whose sessions are rollouts that are running.

Here a session records nothing itself. A request of a program is the next turn of its rollout, taken and recorded by the
rollout loop like that of any program, so tokens, limits, sampling and errors are the loop's.

There is one server for an event loop, whatever the number of environments. It begins with the first session, on a free
port, and ends with the last environment that used it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
import threading
import uuid
from collections.abc import Iterator

import uvicorn

from whet.clients.client import OnDelta, StreamedAnswer
from whet.errors import EnvError
from whet.gateway.app import Gateway
from whet.gateway.connections import limited_connections
from whet.gateway.serve import listen
from whet.gateway.sessions import with_reasoning
from whet.gateway.wire import RequestError, TurnRequest
from whet.tasksets.programs.session import Opening, Session
from whet.types import Response

HOST = "127.0.0.1"


class RolloutSession:
    """A running rollout, as the gateway sees it."""

    def __init__(self, rollout: Session) -> None:
        self.id = uuid.uuid4().hex
        self.secret = secrets.token_urlsafe(24)
        self.needs_key = rollout.needs_key
        self._rollout = rollout

    async def answer(self, request: TurnRequest, on_delta: OnDelta | None = None) -> Response:
        """The rollout's next turn, streamed as one delta. Raises `RequestError` where there is none any more."""
        try:
            prompt = with_reasoning(request.messages, self._rollout.state)
            response = await self._rollout.respond(prompt, request.tools or [], request.headers, request.model)
        except EnvError as error:
            raise RequestError(str(error), status=403, code="rollout_over") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestError("the rollout is over", status=403, code="rollout_over") from None
        if on_delta is not None:
            on_delta(StreamedAnswer().rest(response.message))
        return copy.copy(response)  # the answer gets an id of its own; what was recorded stays as it is


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Interrupts are handled by the program that this server runs in."""
        yield


class _Running:
    """The server of one event loop."""

    def __init__(self) -> None:
        self.gateway = Gateway(sessions_only=True)
        self.users: set[RolloutGateway] = set()
        self._listening = listen(HOST, 0)
        self.port: int = self._listening.getsockname()[1]
        settings = uvicorn.Config(
            self.gateway.app,
            http=limited_connections(),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(settings)
        self._serving = asyncio.get_running_loop().create_task(self._serve(), name="whet gateway of rollouts")

    async def _serve(self) -> None:
        with self._listening:
            await self._server.serve(sockets=[self._listening])

    def check(self) -> None:
        """Raises `EnvError` where the server has ended unexpectedly."""
        if self._serving.done():
            raise EnvError("the gateway of the rollouts has ended")

    async def close(self) -> None:
        self._server.should_exit = True
        await asyncio.wait({self._serving})


_running: dict[asyncio.AbstractEventLoop, _Running] = {}
_lock = threading.Lock()


class RolloutGateway:
    """One environment's use of the server: a `SessionGateway`."""

    def open(self, session: Session) -> Opening:
        """Add a session to the server of this event loop, which is started for the first one."""
        running = self._own()
        running.check()
        opened = RolloutSession(session)
        running.gateway.sessions.add(opened)
        return Opening(opened.id, running.port, f"/sessions/{opened.id}", opened.secret)

    async def shut(self, opening: Opening) -> None:
        """Refuse further requests of a session."""
        running = _running.get(asyncio.get_running_loop())
        if running is not None:
            running.gateway.sessions.close(opening.session_id)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        with _lock:
            running = _running.get(loop)
            if running is None:
                return
            running.users.discard(self)
            if running.users:
                return
            del _running[loop]
        await running.close()

    def _own(self) -> _Running:
        """The server of this event loop, which runs until this environment is closed."""
        loop = asyncio.get_running_loop()
        with _lock:
            for ended in [other for other in _running if other.is_closed()]:
                del _running[ended]
            if loop not in _running:
                _running[loop] = _Running()
            _running[loop].users.add(self)
            return _running[loop]
