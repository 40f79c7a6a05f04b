"""Environment variables: those of `env_file`, KEY=VALUE lines for environments and judges, and required ones.

Values are secrets: they are never logged, never saved, and never part of a message. The service gives a run its secrets
in a file that is read once, so that they are in no command line and in no environment that other processes can read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from whet.errors import ConfigError, MissingKeyError
from whet.system.redaction import KNOWN

SECRETS_FILE = "WHET_SECRETS_FILE"
"""Variable that names a file of secrets: a JSON object of name to value, which only its owner can read (0600)."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(["'])(.*?)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"\s+#.*")


def parse_env_file(path: Path) -> dict[str, str]:
    """The variables of one file. Blank lines are skipped, and comments: a `#` at the beginning, after a space, or after
    a quoted value. Quotes around a value are taken off.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"env_file {path}: {reason}") from None
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"env_file {path}, line {number}: expected KEY=VALUE")
        key, value = match.groups()
        quoted = _QUOTED.fullmatch(value)
        variables[key] = _COMMENT.sub("", value) if quoted is None else quoted[2]
    return variables


def load_env_files(paths: Sequence[Path]) -> None:
    """Set the variables of every file. The shell wins over every file, and an earlier file over a later one.

    From here on this process knows as secret (`KNOWN`): these values, those of a secrets file, and the variables whose
    name says so. Raises `ConfigError` for a file that cannot be read.
    """
    take_secrets_file()
    for path in paths:
        variables = parse_env_file(path)
        KNOWN.add(variables)
        for key, value in variables.items():
            os.environ.setdefault(key, value)
    KNOWN.add_environment(os.environ)


def take_secrets_file() -> None:
    """Set the variables of the file that `WHET_SECRETS_FILE` names, once: the file and that variable are removed.

    What this process prints is redacted from then on. Raises `ConfigError` for a file that others can read, or that is
    none; its content is in no message.
    """
    name = os.environ.pop(SECRETS_FILE, None)
    if name is None:
        return
    path = Path(name)
    try:
        content = _read_private(path)
    except OSError as error:
        raise ConfigError(f"{SECRETS_FILE} {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    try:
        secrets = json.loads(content)
    except ValueError:
        secrets = None
    if not isinstance(secrets, dict) or not all(_is_variable(key, value) for key, value in secrets.items()):
        raise ConfigError(f"{SECRETS_FILE} {path}: it is not a JSON object of variable names and texts")
    KNOWN.add(secrets)
    os.environ.update(secrets)
    sys.stdout, sys.stderr = RedactedStream(sys.stdout), RedactedStream(sys.stderr)


def _is_variable(key: str, value: object) -> bool:
    return _VARIABLE.fullmatch(key) is not None and isinstance(value, str) and "\0" not in value


def _read_private(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise ConfigError(f"{SECRETS_FILE} {path}: not a file of this user that only this user can read (0600)")
        return file.read()


class RedactedStream:
    """A text stream without known secrets; otherwise the one that it stands for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(KNOWN.text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def ensure_keys(keys: Iterable[str]) -> None:
    """Raise `MissingKeyError`, naming all that are not set or empty."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)


# Where the keys of endpoints come from: the environment (and with it, an `env_file`), else the system's keyring.
#
# A config names a key; it never holds one. The keyring is used where the `keyring` package is installed:
# `keyring set whet OPENAI_API_KEY` puts a key there.

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
        secret: str | None = keyring.get_password(SERVICE, variable)
        return secret
    return None
