"""Environment variables: those of `env_file`, KEY=VALUE lines for environments and judges, and required ones.

Values are secrets: they are never logged, never saved, and never part of a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from whet.errors import ConfigError, MissingKeyError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def parse_env_file(path: Path) -> dict[str, str]:
    """The variables of one file. Blank lines and `#` comments are skipped; quotes around a value are taken off."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"env_file {path}: {reason}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"env_file {path}, line {number}: expected KEY=VALUE")
        key, value = match.groups()
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
        found[key] = value[1:-1] if quoted else value
    return found


def load_env_files(paths: Sequence[Path]) -> None:
    """Set the variables of every file. The shell wins over every file, and an earlier file over a later one."""
    for path in paths:
        for key, value in parse_env_file(path).items():
            os.environ.setdefault(key, value)


def ensure_keys(keys: Iterable[str]) -> None:
    """Raise `MissingKeyError`, naming all that are not set or empty."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)
