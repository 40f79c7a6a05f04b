"""What the clients over a provider's own package (`openai`, `anthropic`) share: connecting, arguments, failures.

Both packages are generated from the same mould: their constructors, their errors and how they retry (with back-off, and
as long as a server's `Retry-After` asks) are the same, so each is described once, here. A server that turns us away for
good (key, permission, quota) is an `EndpointError`, which ends the run; everything else fails one turn.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from whet.clients.client import Client
from whet.clients.connections import transport
from whet.clients.door import Door
from whet.clients.keys import find_key
from whet.errors import (
    ContentFilterError,
    EndpointDownError,
    EndpointError,
    MissingExtraError,
    ModelError,
    OverlongPromptError,
)
from whet.types import SamplingArgs

if TYPE_CHECKING:
    from whet.clients.config import ClientConfig

ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")

OVERLONG_PHRASES = (  # how servers say that the prompt does not fit, lower case
    "context length",
    "context_length_exceeded",
    "context limit",
    "context window",
    "maximum model length",
    "exceed the configured limit",
    "exceeds the configured limit",
    "exceeded model",
    "input is too long",
    "prompt_too_long",
    "prompt is too long",
    "too many total text bytes",
)
FILTER_PHRASES = ("content_filter", "content management policy")  # of servers that filter what they are asked
QUOTA_PHRASES = ("quota", "billing", "credit balance", "insufficient_funds", "spend limit")


class ProviderClient(Client[ClientT, MessagesT, ResponseT, ToolT]):
    """A client over a provider's package. A subclass says which, and translates messages, tools and responses."""

    package: ClassVar[str]
    constructor: ClassVar[str]
    ready: ClassVar[tuple[str, ...]] = ()  # lists among the arguments that are as they go over the wire
    _places: asyncio.Semaphore | None = None

    @functools.cached_property
    def _door(self) -> Door:
        return Door()

    def setup_client(self, config: ClientConfig) -> ClientT:
        package = import_package(self.package)
        client: ClientT = connect(package, getattr(package, self.constructor), config)
        return client

    @property
    def base_url(self) -> str:
        return str(getattr(self.client, "base_url", ""))

    async def close(self) -> None:
        await getattr(self.client, "close")()  # noqa: B009  the type of the package's client is a variable here

    async def call(self, create: Callable[..., Any], sampling_args: SamplingArgs, **arguments: Any) -> Any:
        """What `create` of the package returns. `arguments` go over those of the sampling; None is left out."""
        # A client of the user's own may be anything, and wants its arguments where they belong.
        ready = self.ready if self._config is not None else ()
        variable = self._config.api_key_var if self._config is not None else None
        advice = f"Set {variable} to a valid key." if variable else "Check the key."
        async with self._place():
            await self._door.enter()
            with failures(import_package(self.package), self.base_url, advice):
                return await create(**split_arguments(create, {**sampling_args, **arguments}, ready))

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


def connect(package: ModuleType, make: Callable[..., Any], config: Any) -> Any:
    """The package's own client for a `ClientConfig`."""
    # The HTTP library is httpx in older releases of both packages and httpx2 since; limits have to be of the same one.
    http_client = next(cls for cls in package.DefaultAsyncHttpxClient.__mro__ if cls.__name__ == "AsyncClient")
    http = importlib.import_module(http_client.__module__.partition(".")[0])
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


def split_arguments(
    create: Callable[..., Any], arguments: Mapping[str, Any], ready: Collection[str] = ()
) -> dict[str, Any]:
    """`arguments` for the package's `create`, without those that are None.

    What the package has no parameter for goes into the body as it is: servers know more sampling arguments than the
    package does (`top_k`, `min_p`), and say so themselves where they do not. So do the lists named by `ready`, which
    the package would search for fields to rename: a quarter of a short request's processor time, and more the longer
    the conversation. In their place it is given empty ones, over which the body goes.
    """
    known = _parameters(getattr(create, "__func__", create))
    given = {name: value for name, value in arguments.items() if value is not None}
    if known is None:
        return given
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


@contextmanager
def failures(package: Any, base_url: str, advice: str) -> Iterator[None]:
    """The package's errors as ours. `advice` is what to do about a key that is refused."""
    try:
        yield
    except (package.AuthenticationError, package.PermissionDeniedError) as error:
        raise EndpointError(f"{base_url} refuses us: {said(error)} {advice}") from error
    except package.APITimeoutError as error:
        raise EndpointDownError(f"{base_url} did not answer in time: {error}") from error
    except package.APIConnectionError as error:
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise EndpointDownError(f"{base_url} cannot be reached: {error}{cause}") from error
    except package.APIStatusError as error:
        raise _of_status(error, base_url) from error


def _of_status(error: Any, base_url: str) -> Exception:
    message, status = said(error), error.status_code
    whole = f"{error.response.text} {message}".lower()
    if status in (402, 429) and (status == 402 or any(phrase in whole for phrase in QUOTA_PHRASES)):
        return EndpointError(f"{base_url} has no quota left for us: {message}")
    if status == 429:
        return EndpointDownError(f"{base_url} is busy: {message}")
    if status in (400, 413, 422):
        if any(phrase in whole for phrase in OVERLONG_PHRASES):
            return OverlongPromptError(message)
        if any(phrase in whole for phrase in QUOTA_PHRASES):
            return EndpointError(f"{base_url} has no quota left for us: {message}")
        if any(phrase in whole for phrase in FILTER_PHRASES):
            return ContentFilterError(f"{base_url}: the content filter stopped the request: {message}")
        return ModelError(f"{base_url} rejects the request: {message}")
    if status == 404:
        return EndpointError(f"{base_url} does not have what was asked for: {message} Check the model and the address.")
    if status >= 500 or status in (408, 409):
        return EndpointDownError(f"{base_url} fails with status {status}: {message}")
    return ModelError(f"{base_url} answers with status {status}: {message}")


def said(error: Any) -> str:
    """What the server said, without the package's decoration."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    text = body.get("message") if isinstance(body, Mapping) else None
    return str(text or error)
