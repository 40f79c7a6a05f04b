"""Secrets of owners and of runs: encrypted rows, what one attempt is given, and the change of keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.domain.access import find_account
from whet.hub.domain.audit import record
from whet.hub.domain.cipher import Cipher
from whet.hub.errors import HubError, not_found
from whet.hub.opening import PROOF_OF
from whet.hub.policy import Role
from whet.hub.storage.tables import HubState, Membership, Secret
from whet.service.storage.tables import OwnerSecret, RunRow, RunSecret, Webhook

MOST = 100
"""Secrets of one owner, and of one run."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RESERVED = re.compile(r"(LD_|PYTHON|WHET_|BASH_|DYLD_).*|PATH|HOME|SHELL|IFS|ENV|TMPDIR")
"""Variables that say how a process is started; a run's own are the runner's business."""


def check_names(names: Any) -> str:
    """What is wrong with names of secrets, in words; empty if nothing is."""
    for name in names:
        if not NAME.fullmatch(name):
            return f"'{name[:80]}' cannot be the name of a variable: letters, digits and _ are allowed, at most 64"
        if RESERVED.fullmatch(name):
            return f"{name} says how processes are started, and cannot be a secret"
    return ""


def owner_secret_of(owner: str, name: str) -> str:
    """What the ciphertext of an owner's secret is bound to."""
    return f"owner/{owner}/{name}"


def run_secret_of(run: str, name: str) -> str:
    """What the ciphertext of a run's secret is bound to."""
    return f"run/{run}/{name}"


def set_owner_secret(
    session: Session, cipher: Cipher, user: str, owner: str, name: str, value: str, now: float
) -> OwnerSecret:
    """Set a secret for all runs of an owner. Raises `HubError` (invalid, too_many)."""
    if why := check_names([name]):
        raise HubError("invalid", f"{why}.")
    row = session.get(OwnerSecret, (owner, name))
    if row is None:
        count = select(func.count()).select_from(OwnerSecret).where(OwnerSecret.owner == owner)
        if int(session.scalar(count) or 0) >= MOST:
            raise HubError("too_many", f"{owner} has {MOST} secrets. Delete some first.")
        row = OwnerSecret(owner=owner, name=name)
        session.add(row)
    row.value, row.key_id = cipher.encrypt(value, owner_secret_of(owner, name)), cipher.key_id
    row.updated_at = now
    record(session, user, "owner-secret.set", owner, name, now)
    return row


def owner_secrets(session: Session, owner: str) -> list[OwnerSecret]:
    return list(session.scalars(select(OwnerSecret).where(OwnerSecret.owner == owner).order_by(OwnerSecret.name)))


def delete_owner_secret(session: Session, user: str, owner: str, name: str, now: float) -> None:
    gone = delete(OwnerSecret).where(OwnerSecret.owner == owner, OwnerSecret.name == name)
    if not session.execute(gone).rowcount:  # type: ignore[attr-defined]
        raise not_found(f"secret {name} of {owner}")
    record(session, user, "owner-secret.delete", owner, name, now)


def add_run_secrets(session: Session, cipher: Cipher, run: str, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        encrypted = cipher.encrypt(value, run_secret_of(run, name))
        session.add(RunSecret(run_id=run, name=name, value=encrypted, key_id=cipher.key_id))


def secrets_of_run(session: Session, cipher: Cipher, run: RunRow) -> dict[str, str]:
    """What an attempt of a run is given: the secrets of its owner, under those of the run itself.

    A user who is no member of the owner any more is given none of the owner's. Raises `ConfigError` where one cannot be
    decrypted with the keys that this process has.
    """
    secrets: dict[str, str | None] = {
        row.name: cipher.decrypt(row.value, owner_secret_of(row.owner, row.name))
        for row in (owner_secrets(session, run.owner) if _is_member(session, run) else ())
    }
    for row in session.scalars(select(RunSecret).where(RunSecret.run_id == run.id)):
        secrets[row.name] = cipher.decrypt(row.value, run_secret_of(run.id, row.name))
    for name, value in secrets.items():
        if value is None:
            raise ConfigError(
                f"the secret {name} was encrypted with a key that this process does not have (secrets.key). Start the "
                "runner again, or set the secret again."
            )
    return {name: value for name, value in secrets.items() if value is not None}


def _is_member(session: Session, run: RunRow) -> bool:
    """Whether the user may submit runs for the owner now."""
    user, owner = find_account(session, run.user), find_account(session, run.owner)
    if user is None or owner is None or user.disabled_at is not None:
        return False
    membership = session.get(Membership, (owner.id, user.id))
    return user.id == owner.id or (membership is not None and membership.role >= Role.MEMBER)


# The change of keys


def change_keys(session: Session, old: Cipher, new: Cipher) -> int:
    """Encrypt everything that `old` can decrypt with the newest key of `new`, in this transaction; returns how much.

    Raises `HubError` (conflict) for a value that `old` cannot decrypt.
    """
    changed = 0
    for row, column, belongs_to in _encrypted(session):
        value = old.decrypt(getattr(row, column), belongs_to)
        if value is None:
            raise HubError("conflict", f"a row of {row.__tablename__} is not encrypted with the present key.")
        setattr(row, column, new.encrypt(value, belongs_to))
        if hasattr(row, "key_id"):
            row.key_id = new.key_id
        changed += 1
    return changed


def _encrypted(session: Session) -> Iterator[tuple[Any, str, str]]:
    """Each encrypted value of the database: its row, its column, and what it is bound to."""
    state = session.get_one(HubState, 1)
    if state.key_proof is not None:
        yield state, "key_proof", PROOF_OF
    for secret in session.scalars(select(Secret)):
        yield secret, "value", f"{secret.environment_id}/{secret.name}"
    for owned in session.scalars(select(OwnerSecret)):
        yield owned, "value", owner_secret_of(owned.owner, owned.name)
    for own in session.scalars(select(RunSecret)):
        yield own, "value", run_secret_of(own.run_id, own.name)
    for hook in session.scalars(select(Webhook)):
        yield hook, "secret", f"webhook/{hook.id}"
