"""The tables. Times are seconds since 1970 in UTC by the database's clock; owners and users are names of the hub's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    inspect,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from whet.errors import ConfigError
from whet.hub.storage.database import Database, Schema
from whet.hub.storage.tables import NAMES, TYPES


class ServiceBase(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = TYPES


def _name() -> Any:
    return mapped_column(String(80))


def _count() -> Any:
    return mapped_column(BigInteger)


def _run_id() -> Any:
    return mapped_column(ForeignKey("runs.id"), index=True)


class RunRow(ServiceBase):
    """A submitted run: training, fine-tuning, evaluation or search."""

    __tablename__ = "runs"
    __table_args__ = (Unique("user", "key"),)
    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # 16 hex digits
    key: Mapped[str] = mapped_column(String(40))  # of the submission, so that one that is repeated is one run
    owner: Mapped[str] = mapped_column(String(80), index=True)
    user: Mapped[str] = _name()
    name: Mapped[str]
    kind: Mapped[str] = _name()  # training, sft, evaluation, search
    model: Mapped[str]
    config: Mapped[str]  # TOML
    files: Mapped[dict[str, Any]]  # path below submission/ -> sha256, in the hub's store
    environments: Mapped[list[Any]]  # owner/name@version, to be installed
    labels: Mapped[list[Any]]  # names of the environments, as metrics have them
    needs: Mapped[dict[str, Any]]  # cores, memory (bytes), devices, device_memory (bytes)
    caps: Mapped[dict[str, Any]]  # seconds, tokens, cost; null where there is none
    priority: Mapped[int]
    state: Mapped[str] = mapped_column(String(20), index=True)
    reason: Mapped[str] = mapped_column(default="")
    attempt: Mapped[int] = mapped_column(default=0)  # number of the newest, from 1; 0 before the first
    fence: Mapped[int] = mapped_column(default=0)
    resume: Mapped[bool] = mapped_column(default=False)  # the next attempt continues the run directory
    resume_step: Mapped[int | None]
    stop_requested_at: Mapped[float | None]
    submitted_at: Mapped[float]
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    deleted_at: Mapped[float | None]
    step: Mapped[int] = mapped_column(default=0)
    max_steps: Mapped[int | None]
    skip_action_check: Mapped[bool]
    seconds: Mapped[float] = mapped_column(default=0.0)  # of all attempts
    tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cost: Mapped[float] = mapped_column(default=0.0)


class AttemptRow(ServiceBase):
    """One start of a run; its identity is that of the shim's process."""

    __tablename__ = "attempts"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    fence: Mapped[int]
    runner_id: Mapped[str] = mapped_column(String(40), index=True)
    host: Mapped[str]
    boot_id: Mapped[str]
    pid: Mapped[int | None]
    process_began: Mapped[str | None]
    state: Mapped[str] = mapped_column(String(20), index=True)  # starting, running, ended, lost
    lease_until: Mapped[float]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    exit_code: Mapped[int | None]
    outcome: Mapped[str]
    charged_until: Mapped[float]  # up to when its use is in the usage tables


class Blob(ServiceBase):
    """A file that a user uploaded for submissions: only that user may name its hash in one."""

    __tablename__ = "blobs"
    user: Mapped[str] = mapped_column(String(80), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    size: Mapped[int] = _count()
    uploaded_at: Mapped[float]


class RunnerRow(ServiceBase):
    """A process that starts runs; `held` sums the needs of its attempts."""

    __tablename__ = "runners"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    host: Mapped[str]
    boot_id: Mapped[str]
    pid: Mapped[int]
    process_began: Mapped[str | None]
    version: Mapped[str]
    capacity: Mapped[dict[str, Any]]  # cores, memory, devices, device_memory, device_kind
    started_at: Mapped[float]
    heartbeat_at: Mapped[float] = mapped_column(index=True)
    ended_at: Mapped[float | None]


class OwnerSecret(ServiceBase):
    """A secret of an owner, for all of its runs; encrypted by the key `key_id`."""

    __tablename__ = "owner_secrets"
    owner: Mapped[str] = mapped_column(String(80), primary_key=True)
    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[str] = mapped_column(String(16))
    updated_at: Mapped[float]


class RunSecret(ServiceBase):
    """A secret of one run (`--env-file`); it goes when the run is deleted."""

    __tablename__ = "run_secrets"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[str] = mapped_column(String(16))


class Quota(ServiceBase):
    """Limits of an owner, and its decayed usage as of `decayed_at`."""

    __tablename__ = "quotas"
    owner: Mapped[str] = mapped_column(String(80), primary_key=True)
    running: Mapped[int | None]
    queued: Mapped[int | None]
    seconds: Mapped[float | None]  # of runs in a calendar month, as the next two
    tokens: Mapped[int | None] = _count()
    cost: Mapped[float | None]
    decayed: Mapped[float]
    decayed_at: Mapped[float]


class UsageDay(ServiceBase):
    """What an owner used in a day (UTC, YYYY-MM-DD)."""

    __tablename__ = "usage_days"
    owner: Mapped[str] = mapped_column(String(80), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    core_seconds: Mapped[float]
    device_seconds: Mapped[float]
    run_seconds: Mapped[float]
    tokens: Mapped[int] = _count()
    cost: Mapped[float]
    requests: Mapped[int]  # of deployments
    input_tokens: Mapped[int] = _count()
    output_tokens: Mapped[int] = _count()


class DeploymentRow(ServiceBase):
    """A checkpoint that is served as `base:name`, to its owner."""

    __tablename__ = "deployments"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = mapped_column(String(80), index=True)
    user: Mapped[str] = _name()
    run_id: Mapped[str] = _run_id()
    step: Mapped[int]
    base: Mapped[str]  # model that an adapter belongs to; of whole weights the model that they began as
    name: Mapped[str] = _name()
    adapter: Mapped[bool]
    state: Mapped[str] = mapped_column(String(20), index=True)  # pending, ready, failed, deleted
    reason: Mapped[str] = mapped_column(default="")
    created_at: Mapped[float]
    deleted_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    requests: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)


class Webhook(ServiceBase):
    """An address that is sent an owner's events."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = mapped_column(String(80), index=True)
    user: Mapped[str] = _name()
    url: Mapped[str]
    events: Mapped[list[Any]]
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    deleted_at: Mapped[float | None]


class Delivery(ServiceBase):
    """One event for one webhook, until it was delivered or given up."""

    __tablename__ = "deliveries"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"), index=True)
    event: Mapped[str] = _name()
    body: Mapped[str]
    state: Mapped[str] = mapped_column(String(20), index=True)  # waiting, delivered, given_up
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float] = mapped_column(index=True)
    answer: Mapped[str] = mapped_column(default="")
    created_at: Mapped[float]


Index("ix_runs_queue", RunRow.state, RunRow.queued_at)


# The service's tables in the hub's database, and how a process that is not the API opens it.

VERSION_TABLE = "service_alembic_version"
SERVICE_SCHEMA = Schema(ServiceBase.metadata, Path(__file__).with_name("migrations"), VERSION_TABLE)


@contextlib.contextmanager
def joined_database(data: Path, url: str | None = None) -> Iterator[Database]:
    """The database of a service that exists, for a runner and other parts. The API alone makes and migrates it.

    Raises `ConfigError` where there is none.
    """
    if url is None and not (data / "hub.sqlite").exists():
        raise ConfigError(f"there is no service in {data}. Start one with `whet service up`, or name its --data.")
    database = Database(url or f"sqlite:///{data / 'hub.sqlite'}")
    try:
        if not inspect(database.engine).has_table(VERSION_TABLE):
            raise ConfigError(f"the database {database.shown} has no service. Start its API first: whet service api")
        yield database
    finally:
        database.close()
