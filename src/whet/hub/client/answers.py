"""What a hub answers, as docs/design/hub.md has it. Fields that a newer hub adds are left out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class MembershipAnswer(BaseModel):
    owner: str
    role: str


class Identity(BaseModel):
    user: str
    is_admin: bool
    scope: str
    owners: list[MembershipAnswer]


class ActionState(BaseModel):
    id: str
    state: Literal["queued", "running", "passed", "failed"]


class ActionAnswer(ActionState):
    environment: str
    version: str
    attempt: int
    summary: str | None
    queued_at: str
    started_at: str | None
    finished_at: str | None


class FileAnswer(BaseModel):
    kind: Literal["wheel", "sdist"]
    filename: str
    size: int
    sha256: str
    url: str


class Yanked(BaseModel):
    reason: str | None
    at: str


class VersionAnswer(BaseModel):
    """One version of an environment."""

    id: str
    owner: str
    name: str
    version: str
    visibility: Literal["PUBLIC", "PRIVATE"]
    module: str
    summary: str
    requires_python: str
    requires_dist: list[str]
    sha256: str
    url: str
    requirement: str
    files: list[FileAnswer]
    created_at: str
    pushed_by: str
    yanked: Yanked | None
    downloads: int
    action: ActionState | None


class EnvironmentAnswer(BaseModel):
    """An environment and its newest version."""

    id: str
    owner: str
    name: str
    visibility: Literal["PUBLIC", "PRIVATE"]
    summary: str
    created_at: str
    updated_at: str
    downloads: int
    latest: str | None


class PushFile(BaseModel):
    kind: Literal["wheel", "sdist"]
    size: int
    offset: int


class PushAnswer(BaseModel):
    """A push: what the hub has of it, and the version once it is committed."""

    id: str
    state: Literal["open", "committed", "refused", "aborted", "expired"]
    files: list[PushFile]
    chunk_bytes: int
    version: VersionAnswer | None


class DeviceCodeAnswer(BaseModel):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: float
    interval: float


class LoginAnswer(BaseModel):
    token: str
    scope: str
    expires_at: str
    user: str


class ContentEntry(BaseModel):
    path: str
    size: int


class KeyAnswer(BaseModel):
    """A secret, whose value is never returned, or a variable."""

    name: str
    value: str | None = None
    updated_at: str


class UserAnswer(BaseModel):
    name: str
    is_admin: bool
    disabled: bool = False


class NewUserAnswer(UserAnswer):
    """A user who was just made; the token is shown only here."""

    token: str


class OrganisationAnswer(BaseModel):
    name: str
    kind: Literal["organisation"]


class MemberAnswer(BaseModel):
    user: str
    role: str


class TokenAnswer(BaseModel):
    id: str
    name: str
    scope: str
    created_at: str
    expires_at: str
    last_used_at: str | None


class NewTokenAnswer(TokenAnswer):
    """A token that was just made; its text is shown only here."""

    token: str


class AuditAnswer(BaseModel):
    """One entry of the audit log."""

    number: int
    at: str
    actor: str
    action: str
    owner: str
    target: str
    detail: dict[str, Any]


class AuditVerification(BaseModel):
    intact: bool
    entries: int
    first_broken: int | None
