"""Secrets in settings: replaced by a mark in everything that is stored or shown.

Secrets belong into environment variables, and still get into addresses (`https://user:password@host`, `?api_key=...`),
headers and arguments of environments. Whatever writes settings passes them through `redacted` first. What is read back
is searched for the mark with `redacted_keys`, so that nothing is run with it in place of the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

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
