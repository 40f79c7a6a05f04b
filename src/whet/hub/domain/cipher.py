"""Encryption of secrets at rest: AES-256-GCM, bound to the row that a value belongs to."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from whet.errors import ConfigError
from whet.system.files import sync

KEY_VAR = "WHET_HUB_SECRETS_KEY"
KEY_BYTES, NONCE_BYTES = 32, 12


class Cipher:
    """Encrypts with one key."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def encrypt(self, text: str, belongs_to: str) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, text.encode(), belongs_to.encode())

    def decrypt(self, value: bytes, belongs_to: str) -> str | None:
        """The text; None where the value was encrypted with another key or for another row."""
        try:
            return self._aead.decrypt(value[:NONCE_BYTES], value[NONCE_BYTES:], belongs_to.encode()).decode()
        except InvalidTag:
            return None


def read_key(path: Path) -> bytes:
    """The key of `WHET_HUB_SECRETS_KEY` (base64), or of the file, which is made at the first start."""
    given = os.environ.get(KEY_VAR)
    if given:
        try:
            key = base64.b64decode(given, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigError(f"{KEY_VAR} is not {KEY_BYTES} bytes in base64.")
        return key
    if not path.exists():
        aside = path.with_name(f".{path.name}.new")
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        os.replace(aside, path)
        sync(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is damaged: it should hold {KEY_BYTES} bytes. Restore it from a backup.")
    return key
