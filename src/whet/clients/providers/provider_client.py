"""What the clients over a provider's own package (`openai`, `anthropic`) share: connecting, arguments, turns.

Both packages are generated from the same mould: their constructors, their errors and how they retry (with back-off, and
as long as a server's `Retry-After` asks) are the same, so each is described once, here and in `failures.py`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from whet.clients.client import Client
from whet.clients.keys import find_key
from whet.clients.providers.connections import transport
from whet.clients.providers.failures import failure
from whet.clients.providers.first_contact import GivenUp, giving_up
from whet.clients.providers.request_pacer import RequestPacer
from whet.errors import EndpointUnreachableError, MissingExtraError
from whet.system.redaction import redacted
from whet.types import SamplingArgs

if TYPE_CHECKING:
    from whet.clients.config import ClientConfig

ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")


class ProviderClient(Client[ClientT, MessagesT, ResponseT, ToolT]):
    """A client over a provider's package. A subclass says which, and translates messages, tools and responses."""

    package: ClassVar[str]
    constructor: ClassVar[str]
    ready: ClassVar[tuple[str, ...]] = ()  # lists among the arguments that are as they go over the wire
    _places: asyncio.Semaphore | None = None

    @functools.cached_property
    def _request_pacer(self) -> RequestPacer:
        return RequestPacer()

    def setup_client(self, config: ClientConfig) -> ClientT:
        package = import_package(self.package)
        client: ClientT = connect(package, getattr(package, self.constructor), config)
        return client

    @functools.cached_property
    def _package(self) -> ModuleType:
        return import_package(self.package)

    @property
    def base_url(self) -> str:
        """Where the endpoint is, as it may be shown."""
        return str(redacted(str(getattr(self.client, "base_url", ""))))

    @property
    def _advice(self) -> str:
        variable = self._config.api_key_var if self._config is not None else None
        return f"Set {variable} to a valid key." if variable else "Check the key."

    async def close(self) -> None:
        await getattr(self.client, "close")()  # noqa: B009  the type of the package's client is a variable here

    async def call(self, create: Callable[..., Any], sampling_args: SamplingArgs, **arguments: Any) -> Any:
        """What `create` of the package returns. `arguments` go over those of the sampling; None is left out."""
        # A client of the user's own may be anything, and wants its arguments where they belong.
        ready = self.ready if self._config is not None else ()
        return await self.send(create, **split_arguments(create, together(sampling_args, arguments), ready))

    async def send(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a method of the package returns that makes a request; its errors as ours."""
        async with self._place():
            await self._request_pacer.enter()
            try:
                with giving_up():
                    return await method(*arguments, **named)
            except GivenUp as error:
                raise EndpointUnreachableError(
                    f"{self.base_url} cannot be reached: {error}. Nobody there has answered yet: check the address, or "
                    "start the server and try again."
                ) from error
            except self._package.APIError as error:
                ours = failure(self._package, error, self.base_url, self._advice)
                if ours is None:
                    raise
                raise ours from error

    def _place(self) -> AbstractAsyncContextManager[Any]:
        """One of the endpoint's `max_concurrent` places."""
        most = self._config.max_concurrent if self._config is not None else None
        if most is None:
            return nullcontext()
        if self._places is None:
            self._places = asyncio.Semaphore(most)
        return self._places


def import_package(name: str) -> ModuleType:
    """The provider's package; where it is missing, the extra of the same name that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingExtraError(f"A client over the {name} package", name) from error


@functools.cache
def http_library(package: ModuleType) -> ModuleType:
    """That of the package: httpx in older releases of both, httpx2 since. What the package is given has to be its."""
    http_client = next(cls for cls in package.DefaultAsyncHttpxClient.__mro__ if cls.__name__ == "AsyncClient")
    return importlib.import_module(http_client.__module__.partition(".")[0])


def connect(package: ModuleType, make: Callable[..., Any], config: Any) -> Any:
    """The package's own client for a `ClientConfig`."""
    http = http_library(package)
    most, kept = config.max_connections, config.max_keepalive_connections
    limits = http.Limits(max_connections=most, max_keepalive_connections=kept)
    found = transport(http, most=most, kept=kept)
    return make(
        api_key=find_key(config.api_key_var) or "none",  # a local server needs none, but the packages insist
        base_url=config.api_base_url,
        timeout=package.Timeout(config.timeout, connect=config.connect_timeout),
        max_retries=config.max_retries,
        default_headers=config.extra_headers or None,
        http_client=package.DefaultAsyncHttpxClient(limits=limits, **({} if found is None else {"transport": found})),
    )


def together(sampling_args: SamplingArgs, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the latter over the former, without those that are None."""
    given = {name: value for name, value in sampling_args.items() if value is not None}
    given.update((name, value) for name, value in arguments.items() if value is not None)
    return given


def split_arguments(
    create: Callable[..., Any], given: Mapping[str, Any], ready: Collection[str] = ()
) -> dict[str, Any]:
    """What is `given` as arguments of the package's `create`.

    What the package has no parameter for goes into the body as it is: servers know more sampling arguments than the
    package does (`top_k`, `min_p`), and say so themselves where they do not. So do the lists named by `ready`, which
    the package would search for fields to rename: a quarter of a short request's processor time, and more the longer
    the conversation. In their place it is given empty ones, over which the body goes.
    """
    known = _parameters(getattr(create, "__func__", create))
    if known is None:
        return dict(given)
    native = {name: value for name, value in given.items() if name in known}
    further = {name: value for name, value in given.items() if name not in known or name in ready}
    native |= {name: [] for name in further if name in known}
    if further:
        native["extra_body"] = {**further, **(native.get("extra_body") or {})}
    return native


@functools.cache
def _parameters(create: Callable[..., Any]) -> frozenset[str] | None:
    """The names that `create` takes; None where it takes any."""
    parameters = inspect.signature(create).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)
