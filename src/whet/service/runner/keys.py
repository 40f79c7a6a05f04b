"""Secrets at rest: what a ciphertext is bound to, and all values that one run is given."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.domain.cipher import Cipher
from whet.service.domain.runs import run_secret_of
from whet.service.storage.tables import OwnerSecret, RunRow, RunSecret


def owner_secret_of(owner: str, name: str) -> str:
    """What the ciphertext of an owner's secret is bound to."""
    return f"owner/{owner}/{name}"


def secrets_of_run(session: Session, cipher: Cipher, run: RunRow) -> dict[str, str]:
    """The owner's secrets and over them the run's own. Raises `ConfigError` where one cannot be decrypted."""
    found: dict[str, str] = {}
    for secret in session.scalars(select(OwnerSecret).where(OwnerSecret.owner == run.owner)):
        found[secret.name] = _decrypted(cipher, secret.value, owner_secret_of(run.owner, secret.name), secret.name)
    for own in session.scalars(select(RunSecret).where(RunSecret.run_id == run.id)):
        found[own.name] = _decrypted(cipher, own.value, run_secret_of(run.id, own.name), own.name)
    return found


def _decrypted(cipher: Cipher, value: bytes, bound_to: str, name: str) -> str:
    text = cipher.decrypt(value, bound_to)
    if text is None:
        raise ConfigError(f"the secret {name} was encrypted with a key that this runner does not have (secrets.key).")
    return text
