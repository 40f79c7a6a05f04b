"""What a run prints, kept in files of bounded size and without the secrets that the run was given."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

FILE_BYTES = 8 << 20
"""Of `output.log`, and of `output.log.1` with what came before it."""
SHORTEST = 6  # as system/redaction.py has it


class BoundedLog:
    """`output.log`, which begins anew when it is full; the file before it is kept. It never raises for a full disk."""

    def __init__(self, path: Path, secrets: Mapping[str, str], limit: int = FILE_BYTES) -> None:
        self._path, self._limit = path, limit
        self._filter = SecretFilter(secrets)
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()
        self.dropped = 0  # bytes that could not be written

    def write(self, data: bytes) -> None:
        self._write(self._filter.feed(data))

    def close(self) -> None:
        self._write(self._filter.rest())
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            if self._size >= self._limit:
                self._begin_anew()
            piece = data[: self._limit - self._size]
            try:
                written = self._file.write(piece)
            except OSError:
                self.dropped += len(data)
                return
            self._size += written
            data = data[written:]

    def _begin_anew(self) -> None:
        self._size = 0
        with contextlib.suppress(OSError):
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            file = self._path.open("wb", buffering=0)
            self._file.close()
            self._file = file


class SecretFilter:
    """Puts `[NAME]` in the place of secrets in a stream of bytes, also of one that arrives in pieces."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        names: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            for text in (value, *(value.splitlines() if "\n" in value else ())):
                if len(text.strip()) >= SHORTEST:
                    names.setdefault(text.strip().encode(), f"[{name}]".encode())
        longest = sorted(names, key=len, reverse=True)
        self._names = names
        self._pattern = re.compile(b"|".join(map(re.escape, longest))) if longest else None
        self._most = len(longest[0]) - 1 if longest else 0
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What is certain of the stream so far: what may be the beginning of a longer secret is held back."""
        if self._pattern is None:
            return data
        text, done, certain = self._held + data, 0, []
        while True:
            open_at = self._unfinished(text, done)
            match = self._pattern.search(text, done)
            if match is None or match.start() >= open_at:
                break
            certain += [text[done : match.start()], self._names[match[0]]]
            done = match.end()
        self._held = text[open_at:]
        return b"".join([*certain, text[done:open_at]])

    def rest(self) -> bytes:
        """What was held back, once the stream has ended."""
        held, self._held = self._held, b""
        return held if self._pattern is None else self._pattern.sub(lambda match: self._names[match[0]], held)

    def _unfinished(self, text: bytes, begin: int) -> int:
        """Where the first secret begins of which the text has a part up to its end; the text's end without one."""
        for at in range(max(begin, len(text) - self._most), len(text)):
            if any(len(secret) > len(text) - at and secret.startswith(text[at:]) for secret in self._names):
                return at
        return len(text)
