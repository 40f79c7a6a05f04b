"""`verifiers.utils.client_utils`: clients of the `openai` and `anthropic` packages, made from a `ClientConfig`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from whet.clients.config import ClientConfig
from whet.clients.providers.provider_client import connect, import_package

_log = logging.getLogger(__name__)


def resolve_client_configs(config: ClientConfig) -> list[ClientConfig]:
    """One config for each endpoint; what an endpoint does not set is the config's own."""
    return config.spread()


def resolve_client_config(config: ClientConfig) -> ClientConfig:
    """The config of the endpoint that `client_idx` selects."""
    configs = config.spread()
    return configs[config.client_idx % len(configs)]


def setup_openai_client(config: ClientConfig) -> Any:
    """An `openai.AsyncOpenAI`. Raises `MissingExtraError` where the package is not installed."""
    return _connected("openai", "AsyncOpenAI", config)


def setup_anthropic_client(config: ClientConfig) -> Any:
    """An `anthropic.AsyncAnthropic`. Raises `MissingExtraError` where the package is not installed."""
    return _connected("anthropic", "AsyncAnthropic", config)


def setup_http_client(config: ClientConfig) -> Any:
    """An `httpx.AsyncClient` with the time-outs, limits and headers of the config, and no key."""
    httpx = import_package("httpx")
    resolved = resolve_client_config(config)
    return httpx.AsyncClient(
        headers=resolved.extra_headers,
        timeout=httpx.Timeout(resolved.timeout, connect=resolved.connect_timeout),
        limits=httpx.Limits(
            max_connections=resolved.max_connections, max_keepalive_connections=resolved.max_keepalive_connections
        ),
    )


def load_prime_config() -> dict[str, Any]:
    """What the `prime` command has stored in `~/.prime/config.json`; empty where there is nothing to read."""
    path = Path.home() / ".prime" / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read (%s)", path, error)
        return {}
    return settings if isinstance(settings, dict) else {}


def _connected(package: str, constructor: str, config: ClientConfig) -> Any:
    module = import_package(package)
    return connect(module, getattr(module, constructor), resolve_client_config(config))
