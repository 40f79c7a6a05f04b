"""Which hub this machine uses, and with what token.

`~/.config/whet/hub.toml` (below XDG_CONFIG_HOME) has the hub's address and the default owner. Tokens are in the
system's keyring where the package `keyring` is installed and has one, else in `hub-tokens.json` next to it, which
others cannot read. WHET_HUB and WHET_HUB_TOKEN stand before both, for machines without a login.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import tomli_w

from whet.config import StrictModel, read_toml, validate
from whet.errors import ConfigError
from whet.system.env_files import SERVICE
from whet.system.files import write_whole
from whet.system.offline import is_loopback

HUB_VARIABLE, TOKEN_VARIABLE = "WHET_HUB", "WHET_HUB_TOKEN"
NO_HUB = "no hub is set. Log in to one: whet login --hub URL. To host one: whet hub serve"


class HubSettings(StrictModel):
    """The keys of `hub.toml`."""

    hub: str | None = None
    owner: str | None = None


def config_folder() -> Path:
    """The user's folder of settings: `$XDG_CONFIG_HOME/whet`, or `~/.config/whet`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "whet"


def settings_file() -> Path:
    """The file of the hub and the owner that commands take without an option."""
    return config_folder() / "hub.toml"


def tokens_file() -> Path:
    """The file of the tokens of `whet login`, by hub."""
    return config_folder() / "hub-tokens.json"


def read_settings() -> HubSettings:
    """Raises `ConfigError` for a file that cannot be read."""
    file = settings_file()
    return validate(HubSettings, read_toml(file), str(file)) if file.exists() else HubSettings()


def write_settings(settings: HubSettings) -> None:
    """Replace `hub.toml`; a reader sees the old file or the new one."""
    values = settings.model_dump(exclude_none=True)
    write_whole(settings_file(), tomli_w.dumps(values))


def hub_is_set() -> bool:
    """Whether this machine uses a hub. Raises `ConfigError` for settings that cannot be read."""
    return bool(os.environ.get(HUB_VARIABLE) or read_settings().hub)


def hub_url(given: str | None = None) -> str:
    """The hub to speak to: `given`, else WHET_HUB, else the settings. Raises `ConfigError` where there is none."""
    url = given or os.environ.get(HUB_VARIABLE) or read_settings().hub
    if not url:
        raise ConfigError(NO_HUB)
    return normal_url(url)


def normal_url(url: str) -> str:
    """`https://host[:port][/path]` without a slash at the end. Raises `ConfigError` for anything else."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"'{url}' is no address of a hub. Write it like https://hub.example.com") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"'{url}' is no address of a hub. Write it like https://hub.example.com")
    if parts.username or parts.password:
        raise ConfigError("the address of a hub has no user or password in it. Log in with: whet login --hub URL")
    name = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, name if port is None else f"{name}:{port}", parts.path.rstrip("/"), "", ""))


def sends_in_clear(url: str) -> bool:
    """Whether a token for this hub could be read on the way."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def token_for(url: str) -> str | None:
    """The token for a hub, if there is one. WHET_HUB_TOKEN is for the hub that WHET_HUB or the settings name."""
    from_environment = os.environ.get(TOKEN_VARIABLE)
    if from_environment:
        default = os.environ.get(HUB_VARIABLE) or read_settings().hub
        if default is not None and normal_url(default) == url:
            return from_environment
    stored = _read_tokens().get(url)
    if stored is None:
        return None
    ring = _keyring() if stored.get("in_keyring") else None
    token = ring.get_password(SERVICE, url) if ring is not None else stored.get("token")
    return str(token) if token else None


def save_token(url: str, token: str) -> str:
    """Keep a token; returns where it is, in words."""
    tokens = _read_tokens()
    ring = _keyring()
    if ring is not None:
        ring.set_password(SERVICE, url, token)
        tokens[url] = {"in_keyring": True}
    else:
        tokens[url] = {"token": token}
    _write_tokens(tokens)
    return "the system's keyring" if ring is not None else str(tokens_file())


def forget_token(url: str) -> bool:
    """Whether there was one."""
    tokens = _read_tokens()
    stored = tokens.pop(url, None)
    if stored is None:
        return False
    ring = _keyring() if stored.get("in_keyring") else None
    if ring is not None:
        ring.delete_password(SERVICE, url)
    _write_tokens(tokens)
    return True


def _keyring() -> Any:
    """The package `keyring` where it is installed and has a store that keeps secrets, else None."""
    try:
        keyring = importlib.import_module("keyring")
    except ModuleNotFoundError:
        return None
    try:
        return keyring if keyring.get_keyring().priority >= 1 else None
    except (keyring.errors.KeyringError, RuntimeError):
        return None


def _read_tokens() -> dict[str, dict[str, Any]]:
    file = tokens_file()
    if not file.exists():
        return {}
    try:
        tokens = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError):
        tokens = None
    if not isinstance(tokens, dict) or not all(isinstance(item, dict) for item in tokens.values()):
        raise ConfigError(f"{file} is damaged. Remove it, and log in again with: whet login")
    return tokens


def _write_tokens(tokens: Mapping[str, Any]) -> None:
    config_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(tokens_file(), json.dumps(tokens), private=True)
