"""`whet service rotate-key`: a new key for the secrets, in the place of the present one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from whet.errors import ConfigError
from whet.hub.domain.audit import record
from whet.hub.domain.cipher import KEY_BYTES, KEY_VAR, Cipher, read_keys, write_keys
from whet.hub.opening import ADMINISTRATOR
from whet.hub.storage.database import database_now
from whet.service.domain.secrets import change_keys
from whet.service.service import open_service

FILE = "secrets.key"


def rotate_key(data: Path, database: str | None = None) -> tuple[int, str]:
    """Encrypt all secrets with a new key, and forget the old one; how many, and the new key's id.

    A kill in between leaves both keys in the file, and the same again completes it. The API must not be running, and
    runners have to be started again. Raises `ConfigError`, also where there is no service.
    """
    if database is None and not (data / "hub.sqlite").exists():
        raise ConfigError(f"there is no service in {data}. Name its folder with --data.")
    given = os.environ.get(KEY_VAR)
    if given and "," not in given:
        raise ConfigError(f"{KEY_VAR} holds the key. Set it to NEW,OLD (both in base64), then give this command again.")
    with open_service(data, database, None, "https://pypi.org/simple/") as (service, _):
        keys = read_keys(data / FILE)
        if not given:
            keys = [secrets.token_bytes(KEY_BYTES), *keys]
            write_keys(data / FILE, keys)  # before any row needs it
        cipher = Cipher(*keys)
        with service.hub.database.write() as session:
            changed = change_keys(session, cipher, cipher)
            detail = {"key": cipher.key_id, "secrets": changed}
            now = database_now(session)
            record(session, ADMINISTRATOR, "key.rotate", ADMINISTRATOR, cipher.key_id, now, detail)
        if not given:
            write_keys(data / FILE, keys[:1])
    return changed, cipher.key_id
