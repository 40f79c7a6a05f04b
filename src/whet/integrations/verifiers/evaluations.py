"""`verifiers.utils.eval_utils` and `install_utils`: endpoints, config files of evaluations, ids of a hub."""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from typing import Any

from whet.clients.endpoints import DEFAULT_FILE, read_endpoints
from whet.envs.config.sections import loader_arguments
from whet.errors import ConfigError
from whet.evals.planning.defaults import eval_defaults
from whet.evals.planning.toml_file import read_eval_file

_log = logging.getLogger(__name__)
# The keys of 0.1.14 for options of `EvalConfig`; others are called the same.
_KEYS = {
    "environment": "env_id",
    "base_url": "api_base_url",
    "endpoints": "endpoints_path",
    "save": "save_results",
    "output_directory": "output_dir",
    "workers": "num_workers",
    "args": "env_args",
    "sampling": "sampling_args",
}


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
        found = read_endpoints(path)
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
        for name, endpoint in found.items()
    }


def load_toml_config(path: str | Path) -> list[dict[str, Any]]:
    """The evaluations of a config file, sweeps spread out, each as a dict of what the file says, by the keys of 0.1.14.

    Raises `ConfigError` in one line that names file, table and key.
    """
    found = []
    for entry in read_eval_file(Path(path)):
        layer = dict(entry.layer)
        args = loader_arguments(
            layer.pop("args", {}), layer.pop("taskset", None), layer.pop("harness", None), where="eval"
        )
        layer |= {"args": args} if args else {}
        if "endpoints" in layer:
            layer["endpoints"] = str(Path(layer["endpoints"]).resolve())
        found.append({_KEYS.get(name, name): value for name, value in layer.items()})
    return found


def get_env_eval_defaults(env_id: str) -> dict[str, Any]:
    """What an environment's author thinks a fair evaluation: `[tool.verifiers.eval]` of its package."""
    return eval_defaults(env_id)


def normalize_package_name(name: str) -> str:
    return name.replace("-", "_").lower()


def parse_env_id(env_id: str) -> tuple[str, str, str | None]:
    """Owner, name and version of OWNER/NAME@VERSION. Raises `ConfigError` for what has another form."""
    whole, _, version = env_id.partition("@")
    owner, _, name = whole.partition("/")
    if not owner or not name or "/" in name:
        raise ConfigError(f"Invalid environment ID '{env_id}': give OWNER/NAME or OWNER/NAME@VERSION.")
    return owner, name, version or None


def is_hub_env(env_id: str) -> bool:
    """Whether an id has an owner, and is no path."""
    return "/" in env_id and not env_id.startswith(("./", "/"))


def is_installed(env_name: str, version: str | None = None) -> bool:
    """Whether a package is installed here, in this version; "latest" is any."""
    try:
        found = importlib.metadata.version(normalize_package_name(env_name))
    except importlib.metadata.PackageNotFoundError:
        return False
    return version in (None, "latest", found)


def check_hub_env_installed(env_id: str) -> bool:
    """Whether the package of an id with an owner is installed; an id without one is taken to be here."""
    return not is_hub_env(env_id) or is_installed(*parse_env_id(env_id)[1:])
