"""The tables. Times are seconds since 1970 in UTC; what a row means is in docs/design/hub.md."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    insert,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
TYPES = {str: Text, float: Float(53), bool: Boolean, dict[str, Any]: JSON, list[Any]: JSON, list[str]: JSON}
"""What a column is where its annotation alone says it; of the hub, and of the servers that stand on it."""


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = TYPES


def _name() -> Any:
    return mapped_column(String(80))


class Account(Base):
    """A user or an organisation: what an environment's id begins with."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    kind: Mapped[str] = _name()  # user, organisation
    is_admin: Mapped[bool]
    created_at: Mapped[float]
    disabled_at: Mapped[float | None]

    @property
    def disabled(self) -> bool:
        return self.disabled_at is not None


class Membership(Base):
    """A user's role in an organisation."""

    __tablename__ = "memberships"
    owner_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True, index=True)
    role: Mapped[int]


class TokenRow(Base):
    """A token or a session of the pages, by the SHA-256 of its text."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    name: Mapped[str]
    scope: Mapped[int]
    kind: Mapped[str] = _name()  # token, session
    parent_id: Mapped[str | None] = mapped_column(String(40), index=True)  # of a session: the token it was made with
    created_at: Mapped[float]
    expires_at: Mapped[float]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    user: Mapped[Account] = relationship(lazy="joined", innerjoin=True)


class DeviceCode(Base):
    """A login that waits for approval."""

    __tablename__ = "device_codes"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_code: Mapped[str] = mapped_column(String(16), unique=True)
    client: Mapped[str]
    scope: Mapped[int]
    state: Mapped[str] = _name()  # pending, approved, denied
    user_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))
    expires_at: Mapped[float]
    polled_at: Mapped[float | None]


class EnvironmentRow(Base):
    """An environment; deleted ones stay, so that their name is never given out again."""

    __tablename__ = "environments"
    __table_args__ = (Unique("owner_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[str] = mapped_column(String(80), index=True)
    visibility: Mapped[str] = _name()  # PUBLIC, PRIVATE
    summary: Mapped[str]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    deleted_at: Mapped[float | None]
    owner: Mapped[Account] = relationship(lazy="joined", innerjoin=True)

    @property
    def env_id(self) -> str:
        return f"{self.owner.name}/{self.name}"


class Version(Base):
    """A version of an environment; deleted ones stay, without files."""

    __tablename__ = "versions"
    __table_args__ = (Unique("environment_id", "version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version: Mapped[str] = _name()
    summary: Mapped[str]
    readme: Mapped[str]
    readme_type: Mapped[str] = _name()
    requires_python: Mapped[str]
    requires_dist: Mapped[list[Any]]
    core_metadata: Mapped[bytes] = mapped_column(LargeBinary)
    pushed_by: Mapped[str] = _name()
    created_at: Mapped[float]
    yanked_at: Mapped[float | None]
    yanked_reason: Mapped[str] = mapped_column(default="")
    deleted_at: Mapped[float | None]
    downloads: Mapped[int] = mapped_column(default=0)
    environment: Mapped[EnvironmentRow] = relationship(lazy="joined", innerjoin=True)
    files: Mapped[list[StoredFile]] = relationship(
        lazy="selectin", order_by="StoredFile.kind.desc()", cascade="all, delete-orphan", back_populates="version"
    )


class StoredFile(Base):
    """A file of a version; its bytes are in the store under their SHA-256."""

    __tablename__ = "files"
    __table_args__ = (Unique("version_id", "kind"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    kind: Mapped[str] = _name()  # wheel, sdist
    filename: Mapped[str]
    size: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    version: Mapped[Version] = relationship(back_populates="files")


class Push(Base):
    """A push from its begin to its end; `expected` is what the client announced."""

    __tablename__ = "pushes"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[str] = _name()
    version: Mapped[str] = _name()
    visibility: Mapped[str | None] = mapped_column(String(10))
    state: Mapped[str] = mapped_column(String(20), index=True)  # open, committed, refused, aborted, expired
    expected: Mapped[dict[str, Any]]
    findings: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float]


class ActionRow(Base):
    """The trial of a version in a sandbox."""

    __tablename__ = "actions"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), index=True)
    state: Mapped[str] = mapped_column(String(20), index=True)  # queued, running, passed, failed
    attempt: Mapped[int] = mapped_column(default=0)
    claimed_by: Mapped[str | None] = mapped_column(String(40))
    summary: Mapped[str] = mapped_column(default="")
    log: Mapped[str] = mapped_column(default="")
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    version: Mapped[Version] = relationship(lazy="joined", innerjoin=True)


class Secret(Base):
    """A secret of an environment, encrypted."""

    __tablename__ = "secrets"
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    updated_at: Mapped[float]


class Variable(Base):
    """A variable of an environment."""

    __tablename__ = "variables"
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    value: Mapped[str]
    updated_at: Mapped[float]


class AuditEntry(Base):
    """What was done by which user; each entry's hash covers the one before it."""

    __tablename__ = "audit"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[float]
    actor: Mapped[str] = _name()
    owner: Mapped[str] = mapped_column(String(80), index=True)
    action: Mapped[str] = _name()
    target: Mapped[str]
    detail: Mapped[str]
    previous: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


class HubState(Base):
    """One row, which every change takes first."""

    __tablename__ = "state"
    id: Mapped[int] = mapped_column(primary_key=True)
    audit_number: Mapped[int]
    audit_hash: Mapped[str] = mapped_column(String(64))
    key_proof: Mapped[bytes | None] = mapped_column(LargeBinary)


Index("ix_versions_alive", Version.environment_id, Version.deleted_at)


@event.listens_for(HubState.__table__, "after_create")
def _first_state(_: Table, connection: Connection, **__: Any) -> None:
    connection.execute(insert(HubState).values(id=1, audit_number=0, audit_hash="0" * 64))
