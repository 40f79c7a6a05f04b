"""From a config to a client: of the kind it names, or one over all its replicas."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from whet.clients.client import Client
from whet.errors import ConfigError, EndpointDownError, EndpointUnreachableError
from whet.types import Response, State

if TYPE_CHECKING:
    from whet.clients.config import ClientConfig, ClientType


RETRIES_WITH_REPLICAS = 2  # of one request at one endpoint, where another can answer instead

_KIND_OF_PACKAGE: dict[str, ClientType] = {
    "AsyncOpenAI": "openai_chat_completions",
    "AsyncAzureOpenAI": "openai_chat_completions",
    "AsyncAnthropic": "anthropic_messages",
    "AsyncAnthropicBedrock": "anthropic_messages",
    "AsyncAnthropicVertex": "anthropic_messages",
}


def resolve_client(client: Any) -> Client[Any, Any, Any, Any]:
    """A client for a `Client`, a config, or an asynchronous client of the `openai` or `anthropic` package.

    Trainers imitate the latter: what has an asynchronous `chat.completions.create` is called as `AsyncOpenAI` would be.
    """
    if isinstance(client, Client):
        return client
    from whet.clients.config import ClientConfig, EndpointConfig

    if isinstance(client, EndpointConfig) and not isinstance(client, ClientConfig):
        client = ClientConfig(**dict(client))
    if isinstance(client, ClientConfig):
        return make_client(client)
    for base in type(client).__mro__:  # of a package that need not be installed, so by name
        kind = _KIND_OF_PACKAGE.get(base.__name__)
        if kind is not None and base.__module__.partition(".")[0] in ("openai", "anthropic"):
            return _class_of(kind)(client)
    create = getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)
    if inspect.iscoroutinefunction(create):
        return _class_of("openai_chat_completions")(client)
    raise ConfigError(f"the client is {type(client).__name__}; it should be a whet Client or a ClientConfig.")


def made_from_config(client: Any) -> bool:
    """Whether `resolve_client` makes new connections for this, which are the caller's to close."""
    if isinstance(client, Client):  # without pydantic, which takes 50 ms to load
        return False
    from whet.clients.config import EndpointConfig

    return isinstance(client, EndpointConfig)


def make_client(config: ClientConfig) -> Client[Any, Any, Any, Any]:
    """A client for the endpoint, or for all endpoints that the config spreads over."""

    configs = config.spread()
    if len(configs) == 1:
        return _one(configs[0])
    most = min(config.max_retries, RETRIES_WITH_REPLICAS)
    return ReplicaClient([_one(one.model_copy(update={"max_retries": most})) for one in configs])


def _one(config: ClientConfig) -> Client[Any, Any, Any, Any]:
    return _class_of(config.client_type)(config)


def _class_of(kind: ClientType) -> type[Client[Any, Any, Any, Any]]:
    from whet.clients.config import CLASSES

    module, _, name = CLASSES[kind].partition(":")
    client_class: type[Client[Any, Any, Any, Any]] = getattr(importlib.import_module(module), name)
    return client_class


# `ReplicaClient`: several endpoints that serve the same model, as one client.
#
# Rollouts of one task go to one replica, because they share a prompt, and tasks go to the replicas in turn. A replica
# that cannot be reached, is overloaded or fails by itself is paused, longer each time, while the others answer for it.
# When no other answers, the one whose pause ends first is tried anyway. Only where none of them was ever reached,
# the error ends the run.

REST_S = 5.0  # after the first failure; twice as long after each further one
LONGEST_REST_S = 120.0

AnyClient = Client[Any, Any, Any, Any]


class ReplicaClient(Client[None, Any, Any, Any]):
    """Several endpoints of one model as one client."""

    def __init__(self, clients: Sequence[AnyClient], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(None)
        if not clients:
            raise ConfigError("there is no endpoint to spread requests over.")
        self.clients = list(clients)
        self._clock = clock
        self._next = 0
        self._failures = [0] * len(clients)
        self._rests_until = [0.0] * len(clients)
        self._absent: set[int] = set()  # those that were never reached
        self._homes: dict[Hashable, int] = {}  # the replica of each task
        self._guests: dict[Hashable, set[str]] = {}  # running rollouts by task

    @property
    def base_url(self) -> str:
        """The addresses of all replicas, separated by commas."""
        return ",".join(str(getattr(client, "base_url", "")) for client in self.clients)

    async def get_response(self, *request: Any, state: State | None = None, **kwargs: Any) -> Response:
        """A response of the task's replica, or of another where that one is down. Raises `EndpointDownError` where none
        answers, `EndpointUnreachableError` where none ever did."""
        last: EndpointDownError | EndpointUnreachableError | None = None
        for number in self._order(state):
            try:
                response = await self.clients[number].get_response(*request, state=state, **kwargs)
            except (EndpointDownError, EndpointUnreachableError) as error:
                absent = isinstance(error, EndpointUnreachableError)
                (self._absent.add if absent else self._absent.discard)(number)
                self._rest(number)
                last = error
                continue
            self._failures[number], self._rests_until[number] = 0, 0.0
            self._absent.discard(number)
            return response
        if len(self._absent) == len(self.clients):
            raise EndpointUnreachableError(f"none of {len(self.clients)} replicas answers. The last: {last}") from last
        raise EndpointDownError(f"none of {len(self.clients)} replicas answers. The last: {last}") from last

    async def release(self, state: State) -> None:
        """The rollout is over: forget its task's replica with the last rollout of that task."""
        task = state.get("example_id")
        guests = self._guests.get(task)
        if guests is not None:
            guests.discard(state["trajectory_id"])
            if not guests:
                del self._guests[task], self._homes[task]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    def _order(self, state: State | None) -> list[int]:
        """The replicas to try, the task's own first; when none of them answers, the one that has rested longest."""
        start = self._home(state)
        order = [(start + offset) % len(self.clients) for offset in range(len(self.clients))]
        now = self._clock()
        awake = [number for number in order if self._rests_until[number] <= now]
        asleep = sorted((number for number in order if number not in awake), key=lambda n: self._rests_until[n])
        return awake + asleep[:1]

    def _home(self, state: State | None) -> int:
        task = None if state is None else state.get("example_id")
        if task is None or state is None:
            return self._take_turn()
        if task not in self._homes:
            self._homes[task], self._guests[task] = self._take_turn(), set()
        self._guests[task].add(state["trajectory_id"])
        return self._homes[task]

    def _take_turn(self) -> int:
        turn, self._next = self._next, (self._next + 1) % len(self.clients)
        return turn

    def _rest(self, number: int) -> None:
        pause = min(LONGEST_REST_S, REST_S * 2 ** self._failures[number])
        self._failures[number] += 1
        self._rests_until[number] = self._clock() + pause
        self.logger.warning("%s rests for %.0f s", getattr(self.clients[number], "base_url", number), pause)
