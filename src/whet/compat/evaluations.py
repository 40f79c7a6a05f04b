"""`verifiers.utils.eval_utils`: endpoints, and the defaults of an environment's evaluation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from whet.clients.endpoints import DEFAULT_FILE, read_endpoints
from whet.errors import ConfigError
from whet.evals.planning.toml_file import eval_defaults

_log = logging.getLogger(__name__)


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
