"""Where the keys of endpoints come from: the environment (and with it, an `env_file`), else the system's keyring.

A config names a key; it never holds one. The keyring is used where the `keyring` package is installed:
`keyring set whet OPENAI_API_KEY` puts a key there.
"""

from __future__ import annotations

import contextlib
import importlib
import os

SERVICE = "whet"  # under which the keyring holds our keys


def find_key(variable: str) -> str | None:
    """The key of that name; None where there is none."""
    return os.environ.get(variable) or _from_keyring(variable)


def _from_keyring(variable: str) -> str | None:
    try:
        keyring = importlib.import_module("keyring")
    except ModuleNotFoundError:
        return None
    with contextlib.suppress(keyring.errors.KeyringError):  # a machine without a desktop has a keyring with no backend
        found: str | None = keyring.get_password(SERVICE, variable)
        return found
    return None
