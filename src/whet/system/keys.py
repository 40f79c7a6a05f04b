"""`ensure_keys`: an environment declares the environment variables that it needs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from whet.errors import MissingKeyError


def ensure_keys(keys: Iterable[str]) -> None:
    """Raise `MissingKeyError`, naming all that are not set or empty."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)
