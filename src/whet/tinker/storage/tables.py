"""The tables. Times are seconds since 1970 in UTC; owners are names of the hub's users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from whet.hub.storage.database import Schema
from whet.hub.storage.tables import NAMES, TYPES


class TinkerBase(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = TYPES


def _owner() -> Any:
    return mapped_column(String(80), index=True)


class TinkerSession(TinkerBase):
    """A client from its start to its end; its models leave memory with it."""

    __tablename__ = "tinker_sessions"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = _owner()
    details: Mapped[dict[str, Any]]  # tags, user_metadata, sdk_version, project_id, display_name
    created_at: Mapped[float]
    seen_at: Mapped[float]
    ended_at: Mapped[float | None]
    ended: Mapped[dict[str, Any] | None]  # what the client said, or that it was not heard of for long


class TinkerModel(TinkerBase):
    """An adapter in training. What it is now follows from `state` and the requests after `state_seq`."""

    __tablename__ = "tinker_models"
    id: Mapped[str] = mapped_column(String(80), primary_key=True)  # SESSION:train:NUMBER
    session_id: Mapped[str] = mapped_column(ForeignKey("tinker_sessions.id"), index=True)
    owner: Mapped[str] = _owner()
    base_model: Mapped[str]
    spec: Mapped[dict[str, Any]]  # rank, seed, train_unembed, train_mlp, train_attn
    user_metadata: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    used_at: Mapped[float]
    applied_seq: Mapped[int]  # of the last request that was carried out; -1 before the first
    state_seq: Mapped[int]  # of the request after which `state` was written
    state: Mapped[str | None]  # name of its folder; None: as the adapter was made
    unloaded_at: Mapped[float | None]


class TinkerRequest(TinkerBase):
    """A request whose answer is fetched later: it is here before its id is sent."""

    __tablename__ = "tinker_requests"
    __table_args__ = (Unique("model_id", "seq"), Index("ix_tinker_requests_waiting", "state", "model_id", "seq"))
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("tinker_models.id"))
    owner: Mapped[str] = mapped_column(String(80))
    seq: Mapped[int]
    kind: Mapped[str] = mapped_column(String(40))
    digest: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes | None] = mapped_column(LargeBinary)  # None once a state after it is written
    state: Mapped[str] = mapped_column(String(10))  # waiting, done, failed
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[float]
    done_at: Mapped[float | None]


class TinkerState(TinkerBase):
    """Weights that a client saved, under the path that it loads them by."""

    __tablename__ = "tinker_states"
    path: Mapped[str] = mapped_column(String(300), primary_key=True)  # tinker://MODEL/weights/NAME
    model_id: Mapped[str] = mapped_column(ForeignKey("tinker_models.id"), index=True)
    owner: Mapped[str] = _owner()
    kind: Mapped[str] = mapped_column(String(20))  # training, sampler, external
    folder: Mapped[str]  # its name below states/
    size: Mapped[int] = mapped_column(BigInteger)
    public: Mapped[bool]
    user_metadata: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]


class TinkerSampler(TinkerBase):
    """Weights that a client samples from: those of a state, or the base model's."""

    __tablename__ = "tinker_samplers"
    id: Mapped[str] = mapped_column(String(80), primary_key=True)  # SESSION:sample:NUMBER
    session_id: Mapped[str] = mapped_column(ForeignKey("tinker_sessions.id"), index=True)
    owner: Mapped[str] = _owner()
    base_model: Mapped[str]
    model_path: Mapped[str | None]
    created_at: Mapped[float]


TINKER_SCHEMA = Schema(TinkerBase.metadata, Path(__file__).with_name("migrations"), "tinker_alembic_version")
