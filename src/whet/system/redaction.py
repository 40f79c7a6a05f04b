"""Secrets in settings: replaced by a mark in everything that is stored or shown.

Secrets belong into environment variables, and still get into addresses (`https://user:password@host`, `?api_key=...`),
headers and arguments of environments. Whatever writes settings passes them through `redacted` first. What is read back
is searched for the mark with `redacted_keys`, so that nothing is run with it in place of the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.system.env_files import parse_env_file

MARK = "[redacted-by-whet]"
_NAME = (
    r"api[-_]?key|key|(?:access|auth|bearer|id|refresh)[-_]?token|token|secret|client[-_]?secret|password|passwd|pwd"
    r"|sig|signature"
)
_USER = re.compile(r"(?<=://)[^/?#\s@\"'<>]+(?=@)")
_QUERY = re.compile(rf"(?i)(?<=[?&;])((?:[a-z0-9]+[-_])*(?:{_NAME})=)[^&;#\s\"'<>]+")
_SECRET = re.compile(
    r"(?i)(?:.*[-_])?(?:api[-_]?key|(?:access|auth|bearer|refresh|hf)[-_]?token|client[-_]?secret|secret|password|passwd)"
    r"|(?:proxy-)?authorization|cookie"
)
_HEADERS = re.compile(r"(?i)(?:extra_|default_|http_)?headers")


def redacted(value: Any, name: str = "") -> Any:
    """`value`, which is called `name`, with the secrets in its texts, tables and lists replaced by `MARK`."""
    if isinstance(value, str):
        return MARK if value and _SECRET.fullmatch(name) else _redacted_text(value)
    if isinstance(value, Mapping):
        if _HEADERS.fullmatch(name):
            return {key: MARK if isinstance(item, str) and item else item for key, item in value.items()}
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, name) for item in value]
    return value


def _redacted_text(text: str) -> str:
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\g<1>{MARK}", _USER.sub(MARK, text))


def redacted_keys(value: Any, name: str = "") -> Iterator[str]:
    """Where in settings that were read back a secret is missing, as dotted names."""
    if isinstance(value, str) and MARK in value:
        yield name
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from redacted_keys(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from redacted_keys(item, f"{name}.{index}")


SHORTEST = 6
"""Characters of a secret that is taken out of texts; shorter ones are left, or every `1` might go with it."""
_VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


class Redactor:
    """Puts `[NAME]` in the place of every secret that a process knows, in text that is written down or sent.

    A secret is a value of a file named by `env_file`, or of an environment variable whose name says so (`..._KEY`,
    `..._TOKEN`, `..._SECRET`, `..._PASSWORD`).
    """

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
        named = {name: value for name, value in environment.items() if _VARIABLE.search(name)}
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
