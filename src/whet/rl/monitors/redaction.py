"""Secrets that a process knows, taken out of text that is written down or sent.

A secret is a value of a file named by `env_file`, or of an environment variable whose name says so (`..._KEY`,
`..._TOKEN`, `..._SECRET`, `..._PASSWORD`). What is shorter than six characters is left, or every `1` might go with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.system.env_files import parse_env_file

SHORTEST = 6
_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


class Redactor:
    """Puts `[NAME]` in the place of every secret in a text."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets` is name to value."""
        names = {value: name for name, value in secrets.items() if len(value) >= SHORTEST}
        self._names = names
        # The longest first: one secret may be the beginning of another.
        longest = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else None

    @classmethod
    def of(cls, env_files: Sequence[Path], environment: Mapping[str, str]) -> Redactor:
        """Everything secret that a run knows. Raises `ConfigError` for an env file that cannot be read."""
        named = {name: value for name, value in environment.items() if _SECRET_NAME.search(name)}
        return cls({**named, **{name: value for path in env_files for name, value in parse_env_file(path).items()}})

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: f"[{self._names[found[0]]}]", text)

    def data(self, value: Any) -> Any:
        """The same for every text inside plain data."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value
