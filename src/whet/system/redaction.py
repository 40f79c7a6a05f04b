"""Secrets in what is stored or shown: replaced by a mark.

Secrets belong into environment variables, and still get into addresses (`https://user:password@host`, `?api_key=...`),
headers and arguments of environments. Whatever writes settings passes them through `redacted` first. What is read back
is searched for the mark with `redacted_keys`, so that nothing is run with it in place of the secret.

A secret whose value is known (`KNOWN`) is taken out of every text: `system/files.py` passes each line of JSON through
it, so rollouts, errors and status files do not have it either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

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
    text = KNOWN.text(text, MARK)
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
    """Puts `[NAME]` in the place of every secret that it knows, in text that is written down or sent.

    A secret is also found as JSON or Python writes it, as a part of an address, and by each of its lines.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        """`secrets` is name to value."""
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._in_json: tuple[str, ...] = ()
        self.add(secrets or {})

    def add(self, secrets: Mapping[str, str]) -> None:
        """Know these too."""
        names = dict(self._names)
        for name, value in secrets.items():
            for form in _forms(value):
                names.setdefault(form, name)
        if len(names) == len(self._names):
            return
        # The longest first: one secret may be the beginning of another.
        self._pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
        self._in_json = tuple(dict.fromkeys(text for form in names for text in (_json(form), _json(form, ascii=False))))
        self._names = names

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Know the variables whose name says that they are secret: `..._KEY`, `..._TOKEN`, `..._PASSWORD`, ..."""
        self.add({name: value for name, value in environment.items() if _VARIABLE.search(name)})

    def forget(self) -> None:
        """Know nothing."""
        self._names, self._pattern, self._in_json = {}, None, ()

    def text(self, text: str, mark: str | None = None) -> str:
        """`text` with `mark`, or the name in brackets, for each secret."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: mark or f"[{self._names[match[0]]}]", text)

    def data(self, value: Any) -> Any:
        """The same for every text inside plain data."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key) if isinstance(key, str) else key: self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value

    def in_json(self, line: str) -> bool:
        """Whether a text of JSON may have a secret. Cheap: it is called for every line that is written."""
        return any(secret in line for secret in self._in_json)


def _forms(secret: str) -> Iterator[str]:
    """The texts by which a secret is recognised."""
    lines = secret.splitlines() if "\n" in secret else []
    shown = repr(f'"{secret}')[2:-1]  # as a part of an exception's `repr`
    for text in (secret, _json(secret), shown, repr(secret)[1:-1], quote(secret, safe=""), *map(str.strip, lines)):
        if len(text) >= SHORTEST:
            yield text


def _json(text: str, *, ascii: bool = True) -> str:
    return json.dumps(text, ensure_ascii=ascii)[1:-1]


KNOWN = Redactor()
"""What this process knows as secret. It grows: with env files, with a secrets file, with the process's variables."""
