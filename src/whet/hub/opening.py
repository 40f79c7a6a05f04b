"""Open a hub's data: lock, migrations, key, clean-up after a kill, and the first administrator."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from whet.errors import ConfigError
from whet.hub.domain import actions, pushes
from whet.hub.domain.accounts import DAY_S, add_account, issue, revoke_all
from whet.hub.domain.audit import record
from whet.hub.domain.cipher import Cipher, read_keys
from whet.hub.domain.hub import Hub
from whet.hub.policy import Scope
from whet.hub.storage.database import Database, database_url, migrate
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, HubState
from whet.records.lock import take

PROOF, PROOF_OF = "whet hub", "the key of this hub"
ADMINISTRATOR = "hub-admin"
UPSTREAM = "https://pypi.org/simple/"
OTHERS = 0o077
"""The rights of a folder or a file that are not its owner's."""


@contextlib.contextmanager
def open_hub(
    data: Path, database: str | None = None, storage: str | None = None, upstream: str = UPSTREAM
) -> Iterator[tuple[Hub, str | None]]:
    """The hub of a folder, and the administrator's token if this is the first start.

    Raises `ConfigError` where another server has it, or where it cannot be used.
    """
    with _locked(data):
        file = database_file(data, database)
        if file is not None:
            _keep_database_private(file)
        opened = Database(database or f"sqlite:///{data / 'hub.sqlite'}")
        try:
            migrate(opened)
            opened.take()
            (data / "uploads").mkdir(mode=0o700, exist_ok=True)
            cipher = Cipher(*read_keys(data / "secrets.key"))
            store = FileStore(storage or str(data / "files"))
            hub = Hub(opened, store, cipher, data / "uploads", upstream)
            _prove_key(hub)
            pushes.clean(hub)
            actions.requeue(hub)
            yield hub, _first_token(hub)
        finally:
            opened.close()


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    try:
        keep_private(data)
        descriptor = take(data / "lock")
    except OSError as error:
        raise ConfigError(
            f"the hub's folder {data} cannot be written ({error.strerror}). Name another --data."
        ) from error
    if descriptor is None:
        raise ConfigError(f"another hub runs on {data}. Stop it first, or name another --data.")
    try:
        yield
    finally:
        os.close(descriptor)


def keep_private(data: Path) -> None:
    """Make a hub's folder, or take away what other users of the machine may do in one that is there.

    Raises `ConfigError` for a folder that is not the hub's alone, and `OSError`.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = data.stat().st_mode
    if not mode & OTHERS:
        return
    own = not any(data.iterdir()) or any((data / name).exists() for name in ("hub.sqlite", "secrets.key", "lock"))
    if mode & stat.S_ISVTX or not own:
        raise ConfigError(
            f"other users may read the folder {data}, and it has files that are not the hub's. Name a folder of its "
            f"own with --data, or close this one: chmod 700 {data}"
        )
    _close(data, 0o700)


def database_file(data: Path, url: str | None) -> Path | None:
    """Where SQLite keeps the database; None for another kind and for one in memory."""
    if url is None:
        return data / "hub.sqlite"
    parsed = database_url(url)
    named = parsed.database if parsed.get_backend_name() == "sqlite" else None
    return Path(named).absolute() if named and named != ":memory:" else None


def _keep_database_private(file: Path) -> None:
    """Of this user alone, with its journals, which get the rights of the file. Raises `ConfigError`."""
    with contextlib.suppress(FileExistsError, FileNotFoundError, PermissionError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
    for path in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-journal"))):
        if path.exists() and path.stat().st_mode & OTHERS:
            _close(path, 0o600)


def _close(path: Path, mode: int) -> None:
    try:
        path.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"other users may read {path}, and this user cannot change that ({error.strerror}). As its owner: "
            f"chmod {mode:o} {path}"
        ) from None


def _prove_key(hub: Hub) -> None:
    """Raises `ConfigError` where the key is not the one that the secrets were encrypted with."""
    with hub.database.write() as session:
        state = session.get_one(HubState, 1)
        if state.key_proof is None:
            state.key_proof = hub.cipher.encrypt(PROOF, PROOF_OF)
        elif hub.cipher.decrypt(state.key_proof, PROOF_OF) != PROOF:
            raise ConfigError(
                "the key of the secrets is not the one that this database was made with. Restore secrets.key, or set "
                "WHET_HUB_SECRETS_KEY to the right key."
            )


def _first_token(hub: Hub) -> str | None:
    """At the first start an administrator is made, and the token returned; it is not kept."""
    with hub.database.write() as session:
        if session.scalar(select(Account.id).limit(1)) is not None:
            return None
        now = hub.clock()
        user = add_account(session, ADMINISTRATOR, "user", "", now, is_admin=True)
        return issue(session, user, "first token", Scope.ADMIN, 366 * DAY_S, now)[1]


def new_admin_token(data: Path, database: str | None = None) -> str:
    """A token of the first administrator in place of all earlier ones, which end. The hub must not be running.

    For a hub whose administrators' tokens are lost or have expired. Raises `ConfigError`, also where there is no hub.
    """
    if database is None and not (data / "hub.sqlite").exists():
        raise ConfigError(f"there is no hub in {data}. Name its folder with --data.")
    with open_hub(data, database) as (hub, first):
        if first is not None:
            return first
        now = hub.clock()
        with hub.database.write() as session:
            user = session.scalars(select(Account).where(Account.name == ADMINISTRATOR)).one()
            user.disabled_at, user.is_admin = None, True
            revoke_all(session, user, now)
            record(session, ADMINISTRATOR, "user.recover", ADMINISTRATOR, ADMINISTRATOR, now)
            return issue(session, user, "recovered", Scope.ADMIN, 90 * DAY_S, now)[1]
