"""Encryption of secrets at rest: AES-256-GCM, bound to the row that a value belongs to.

There may be several keys: the newest encrypts, each decrypts. That is for the moment in which keys are changed, and for
processes that read the keys before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from whet.errors import ConfigError
from whet.system.files import sync, write_whole

KEY_VAR = "WHET_HUB_SECRETS_KEY"
KEY_BYTES, NONCE_BYTES = 32, 12


class Cipher:
    """Encrypts with the first of its keys, whose name is `key_id`."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = {key_id(key): AESGCM(key) for key in keys}
        self.key_id = key_id(keys[0])

    def encrypt(self, text: str, belongs_to: str) -> bytes:
        """Nonce and ciphertext of `text` with the first key, readable for the row `belongs_to` alone."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._keys[self.key_id].encrypt(nonce, text.encode(), belongs_to.encode())

    def decrypt(self, value: bytes, belongs_to: str) -> str | None:
        """The text; None where the value was encrypted with another key or for another row."""
        for key in self._keys.values():
            try:
                return key.decrypt(value[:NONCE_BYTES], value[NONCE_BYTES:], belongs_to.encode()).decode()
            except InvalidTag:
                continue
        return None


def key_id(key: bytes) -> str:
    """What a key is called where its values are: of its hash, 16 hex digits."""
    return hashlib.sha256(b"whet key " + key).hexdigest()[:16]


def read_keys(path: Path) -> list[bytes]:
    """The keys of `WHET_HUB_SECRETS_KEY` (base64, the newest first, separated by commas), or of the file, which is
    made at the first start. Raises `ConfigError`."""
    given = os.environ.get(KEY_VAR)
    if given:
        try:
            keys = [base64.b64decode(one, validate=True) for one in given.split(",")]
        except binascii.Error:
            keys = [b""]
        if not all(len(key) == KEY_BYTES for key in keys):
            raise ConfigError(f"{KEY_VAR} is not {KEY_BYTES} bytes in base64.")
        return keys
    if not path.exists():
        write_keys(path, [secrets.token_bytes(KEY_BYTES)])
    data = path.read_bytes()
    if not data or len(data) % KEY_BYTES:
        raise ConfigError(f"{path} is damaged: it should hold {KEY_BYTES} bytes a key. Restore it from a backup.")
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Put keys in the file, the newest first; it is whole at any moment."""
    write_whole(path, b"".join(keys), private=True)
    sync(path.parent)
