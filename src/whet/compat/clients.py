"""`verifiers.utils.client_utils` and `eval_utils`: clients of the `openai` and `anthropic` packages, and endpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from whet.clients.config import ClientConfig
from whet.clients.endpoints import DEFAULT_FILE, read_endpoints
from whet.clients.providers.provider_client import connect, import_package
from whet.errors import ConfigError
from whet.evals.planning.toml_file import eval_defaults

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


def load_endpoints(endpoints_path: str | Path = DEFAULT_FILE) -> dict[str, list[dict[str, Any]]]:
    """For each short name of an `endpoints.toml`, or of the one in a folder, its replicas.

    A replica has `model`, `url`, `key` (the variable's name), `api_client_type`, and `extra_headers` where it has any.
    A file that is missing or wrong comes to `{}` and a warning. Raises `ConfigError` for endpoints in Python.
    """
    path = Path(endpoints_path)
    path = path / DEFAULT_FILE.name if path.is_dir() else path
    python = path.with_suffix(".py")
    if python.exists() and not (path.exists() and path != python):
        raise ConfigError(f"{python}: Python endpoint registries are not run; write {python.with_suffix('.toml')}.")
    try:
        endpoints = read_endpoints(path)
    except ConfigError as error:
        _log.warning("no endpoints are known by short names: %s", error)
        return {}
    return {
        name: [
            {
                "model": endpoint.model,
                "url": one.api_base_url,
                "key": one.api_key_var,
                "api_client_type": endpoint.client.client_type,
                **({"extra_headers": dict(one.extra_headers)} if one.extra_headers else {}),
            }
            for one in endpoint.client.endpoint_configs or [endpoint.client]
        ]
        for name, endpoint in endpoints.items()
    }


def get_env_eval_defaults(env_id: str) -> dict[str, Any]:
    """What an environment's author thinks a fair evaluation: `[tool.verifiers.eval]` of its package."""
    return eval_defaults(env_id)


def _connected(package: str, constructor: str, config: ClientConfig) -> Any:
    module = import_package(package)
    return connect(module, getattr(module, constructor), resolve_client_config(config))
