"""`Session`: how a program calls its model, and how its requests become the turns of an ordinary rollout.

The program runs concurrently with the rollout loop. Each of its requests is the prompt of the loop's next turn, and the
recorded answer goes back to the program:

    program  ── ask(messages) ──▶  next_request ──▶ loop: model, record the step, check the stops
             ◀──── answer ───────  give

So the loop records tokens, timing, errors and stops. Turns are taken one after another, even if the program sends
several requests at once, so that a seeded run repeats. When the loop ends first, the program is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from whet.calls import CallSpec, describe, is_awaitable, name_of
from whet.envs.config.arguments import normalize_tool_defs
from whet.envs.multiturn_env import completion_messages
from whet.errors import ConfigError, EnvError, Error, MissingExtraError, WhetError
from whet.messages import normalize_messages
from whet.tasksets.programs.openai_shape import openai_client
from whet.types import AssistantMessage, Messages, Response, State, Tool

T = TypeVar("T")
GATEWAY = ("whet.gateway.rollouts", "RolloutGateway")
GRACE_S = 5.0
"""Time for a cancelled program to clean up before the rollout continues without it."""
logger = logging.getLogger(__name__)
API_NAMES: dict[str, tuple[str, ...]] = {
    "openai_chat_completions": ("chat", "chat_completions", "openai_chat_completions"),
    "openai_completions": ("completions", "openai_completions"),
    "openai_responses": ("responses", "openai_responses"),
    "anthropic_messages": ("messages", "anthropic_messages"),
}


@dataclass(frozen=True, slots=True)
class Opening:
    """The address of one rollout's model: `http://127.0.0.1:PORT` and `path`, for requests with `key`."""

    session_id: str
    port: int
    path: str
    key: str = field(repr=False)


@dataclass(slots=True)
class Request:
    """One turn that a program requests; `tools` is None for the tools of the rollout.

    `headers`, and `model` as the program calls it, are those over HTTP.
    """

    prompt: Messages
    tools: list[Tool] | None
    answer: asyncio.Future[Response]
    headers: Mapping[str, str]
    model: str = ""


class Session:
    """The interface of a program to its model."""

    def __init__(
        self,
        program: Callable[..., Any],
        state: State,
        ask_user: Callable[[Messages], Awaitable[Messages]],
        gateway: Callable[[], SessionGateway],
        *,
        needs_key: bool = True,
    ) -> None:
        """Without `needs_key` its address, which is random, is enough to send requests."""
        self.state = state
        self.needs_key = needs_key
        self._gateway = gateway
        self._opening: Opening | None = None
        self._ask_user = ask_user
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._running: asyncio.Task[Any] | None = None
        self._current: Request | None = None
        self._open: set[asyncio.Future[Response]] = set()
        self._closed = False
        self._last_prompt: Messages = []

    async def ask(self, messages: Any, tools: Any = None) -> AssistantMessage:
        """The model's next message after `messages`: one turn of the rollout.

        Args:
            messages: the whole conversation. One that extends an earlier turn continues that turn's tokens.
            tools: those the model may call; without it the tools of the rollout, `[]` for none.
        """
        return cast(AssistantMessage, completion_messages(await self.respond(messages, tools))[0])

    async def respond(
        self, messages: Any, tools: Any = None, headers: Mapping[str, str] | None = None, model: str = ""
    ) -> Response:
        """Like `ask`; the whole response, with usage and tokens."""
        if self._closed:
            raise EnvError("the rollout is over: there is no model to ask any more")
        answer: asyncio.Future[Response] = self._loop.create_future()
        prompt = shared(normalize_messages(messages, field_name="messages"), self._last_prompt)
        self._last_prompt = prompt
        self._requests.put_nowait(Request(prompt, normalize_tool_defs(tools), answer, headers or {}, model))
        self._open.add(answer)
        try:
            return await answer
        finally:
            self._open.discard(answer)

    async def ask_user(self, messages: Any) -> Messages:
        """The reply of the simulated user to `messages`; an empty list if there is no user."""
        return await self._ask_user(normalize_messages(messages, field_name="messages"))

    def wait(self, work: Awaitable[T]) -> T:
        """For plain functions, which run in their own thread: the result of an awaitable of this rollout.

        `answer = session.wait(session.ask(messages))`
        """
        if _on_a_loop():
            if inspect.iscoroutine(work):
                work.close()
            raise EnvError("session.wait is for plain functions; in an async one write `await session.ask(...)`")

        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def openai(self, *, sync: bool = False) -> Any:
        """An `openai.AsyncOpenAI` (or `OpenAI`) whose chat completions are turns of this rollout."""
        return openai_client(self.respond, self.wait, sync=sync)

    def opening(self) -> Opening:
        """An address on loopback whose requests are turns of this rollout, until it is over."""
        if self._opening is None:
            if self._closed:
                raise EnvError("only a program has an address of its model, while it runs")
            gateway = self._gateway()
            if _on_a_loop():
                self._opening = gateway.open(self)
            else:

                async def opened() -> Opening:
                    return gateway.open(self)

                self._opening = self.wait(opened())
        return self._opening

    # Called by the rollout loop

    @property
    def current(self) -> Request | None:
        """The request whose turn is being taken."""
        return self._current

    @property
    def waiting(self) -> int:
        """How many requests wait for an answer."""
        return len(self._open)

    def give(self, response: Response) -> bool:
        """Return the answer of the recorded turn to the program; whether it still waited for it."""
        waited = self._current is not None and not self._current.answer.done()
        if self._current is not None and waited:
            self._current.answer.set_result(response)
        self._current = None
        return waited

    async def next_request(self) -> Request | None:
        """The next request of the program; None once it has returned. Raises `EnvError` if it raised."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"program {name_of(self._program)}")
        while True:
            waiting = asyncio.ensure_future(self._requests.get())
            try:
                await asyncio.wait({waiting, self._running}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    break
                self._current = waiting.result()
            finally:
                waiting.cancel()
            if not self._current.answer.done():  # otherwise its caller was cancelled meanwhile
                return self._current
        self._current = None
        self._take_result(self._running)
        return None

    async def close(self) -> None:
        """Cancel the program if it still runs, and wait for its clean-up."""
        self._closed = True
        for answer in self._open:
            answer.cancel()
        if self._opening is not None:
            await self._gateway().shut(self._opening)
        if self._running is None:
            return
        self._running.cancel()
        _, late = await asyncio.wait({self._running}, timeout=GRACE_S)
        if late:
            logger.warning(
                "%s still runs after its rollout has ended: it ignores its cancellation", self._running.get_name()
            )
        elif not self._running.cancelled():
            self._running.exception()  # retrieved: what ended the rollout is its error already

    async def _run(self) -> Any:
        offered = {"task": self.state.get("task"), "state": self.state, "session": self}
        arguments = CallSpec.of(self._program).select(offered)
        if inspect.iscoroutinefunction(self._program):
            return await self._program(**arguments)
        result = await _in_thread(lambda: self._program(**arguments), name_of(self._program))
        return await result if is_awaitable(result) else result

    def _take_result(self, running: asyncio.Task[Any]) -> None:
        name = name_of(self._program)
        if running.cancelled():
            raise EnvError(f"program '{name}' was left by a CancelledError of its own")
        error = running.exception()
        if isinstance(error, Error | WhetError):
            raise error
        if error is not None:
            if not isinstance(error, Exception):
                raise error
            raise EnvError(f"program '{name}' raised {describe(error)}") from error
        result = running.result()
        if result is None or result is self.state:
            return
        if isinstance(result, type(self.state)) or not isinstance(result, Mapping):
            raise EnvError(
                f"program '{name}' returned {type(result).__name__}; it should return nothing, the state it was given, "
                "or fields for it"
            )
        self.state.update(result)


def shared(messages: Messages, earlier: Messages) -> Messages:
    """`messages`, those that are equal to the earlier ones in the same place by the same objects.

    A program sends the whole conversation each time: 200 turns would else hold its texts 200 times.
    """
    count = min(len(messages), len(earlier))
    return [old if old == new else new for old, new in zip(earlier, messages, strict=False)] + messages[count:]


def endpoint_config(opening: Opening, model: str, api: str) -> dict[str, str]:
    """Address, key and model for client libraries, for one of the interfaces of the gateway."""
    kind = next((kind for kind, names in API_NAMES.items() if api in names), None)
    if kind is None:
        known = ", ".join(name for names in API_NAMES.values() for name in names[:-1])
        raise ConfigError(f"state.get_endpoint_config: there is no api '{api}'; there are: {known}.")
    root = f"http://127.0.0.1:{opening.port}{opening.path}"
    config = {"model": model, "api_key": opening.key, "api_client_type": kind}
    if kind == "anthropic_messages":  # its clients add /v1 themselves
        return {**config, "base_url": root}
    return {**config, "base_url": f"{root}/v1", "api_base": f"{root}/v1"}


class SessionGateway(Protocol):
    """Gives the programs of one environment addresses of their models.

    The server is in the gateway, a layer above this one, which is imported when it is first needed.
    """

    def open(self, session: Session) -> Opening:
        """Accept requests for this rollout. To be called on its event loop."""

    async def shut(self, opening: Opening) -> None:
        """Refuse further requests there."""

    async def close(self) -> None:
        """Release the server."""


def make_gateway(whose: str = "Harness(program={command = [...]})") -> SessionGateway:
    """A gateway. Raises `MissingExtraError` if the server's packages are not installed."""
    module, name = GATEWAY
    try:
        made: SessionGateway = getattr(importlib.import_module(module), name)()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "whet":
            raise
        raise MissingExtraError(whose, "serve") from error
    return made


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _in_thread(work: Callable[[], T], name: str) -> T:
    """The result of `work`, run in its own thread: thousands may wait for their models at the same time."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            # A future cannot hold a StopIteration.
            error = RuntimeError("StopIteration") if isinstance(raised, StopIteration) else raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=f"whet program {name}", daemon=True).start()
    return await done
