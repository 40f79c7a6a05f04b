"""From a config to a client: of the kind it names, or one over all its replicas."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from whet.clients.client import Client
from whet.errors import ConfigError

if TYPE_CHECKING:
    from whet.clients.config import ClientConfig, ClientType

RETRIES_WITH_REPLICAS = 2  # of one request at one endpoint, where another can answer instead

_KINDS: dict[ClientType, str] = {
    "openai_chat_completions": "whet.clients.providers.openai_chat:OpenAIChatCompletionsClient",
    "openai_completions": "whet.clients.providers.openai_completions:OpenAICompletionsClient",
    "openai_responses": "whet.clients.providers.openai_responses:OpenAIResponsesClient",
    "anthropic_messages": "whet.clients.providers.anthropic_messages:AnthropicMessagesClient",
}
_KIND_OF_PACKAGE: dict[str, ClientType] = {
    "AsyncOpenAI": "openai_chat_completions",
    "AsyncAzureOpenAI": "openai_chat_completions",
    "AsyncAnthropic": "anthropic_messages",
    "AsyncAnthropicBedrock": "anthropic_messages",
    "AsyncAnthropicVertex": "anthropic_messages",
}


def resolve_client(client: Any) -> Client[Any, Any, Any, Any]:
    """A client for a `Client`, a config, or a client of the `openai` or `anthropic` package (an asynchronous one)."""
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
    raise ConfigError(f"the client is {type(client).__name__}; it should be a whet Client or a ClientConfig.")


def made_from_config(client: Any) -> bool:
    """Whether `resolve_client` makes new connections for this, which are the caller's to close."""
    if isinstance(client, Client):  # without pydantic, which takes 50 ms to load
        return False
    from whet.clients.config import EndpointConfig

    return isinstance(client, EndpointConfig)


def make_client(config: ClientConfig) -> Client[Any, Any, Any, Any]:
    """A client for the endpoint, or for all endpoints that the config spreads over."""
    from whet.clients.replicas import ReplicaClient

    configs = config.spread()
    if len(configs) == 1:
        return _one(configs[0])
    most = min(config.max_retries, RETRIES_WITH_REPLICAS)
    return ReplicaClient([_one(one.model_copy(update={"max_retries": most})) for one in configs])


def _one(config: ClientConfig) -> Client[Any, Any, Any, Any]:
    return _class_of(config.client_type)(config)


def _class_of(kind: ClientType) -> type[Client[Any, Any, Any, Any]]:
    module, _, name = _KINDS[kind].partition(":")
    found: type[Client[Any, Any, Any, Any]] = getattr(importlib.import_module(module), name)
    return found
