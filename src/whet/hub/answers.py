"""What a hub answers: the models of its routes, of its pages and of its clients (docs/design/hub.md).

Rows of the hub's tables may be given as they are: times, scopes and roles are written as text. A client leaves out the
fields that a newer hub adds.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from whet.hub.policy import Role, Scope

T = TypeVar("T")


def moment(at: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def maybe(at: float | None) -> str | None:
    """`moment`, or None for what has not happened."""
    return None if at is None else moment(at)


Moment = Annotated[str, BeforeValidator(lambda at: moment(at) if isinstance(at, int | float) else at)]
ScopeName = Annotated[
    str, BeforeValidator(lambda scope: Scope(scope).name.lower() if isinstance(scope, int) else scope)
]
RoleName = Annotated[str, BeforeValidator(lambda role: Role(role).name.lower() if isinstance(role, int) else role)]


class ResponseModel(BaseModel):
    """What a route answers, also made from a row of the database."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, row: object, **more: Any) -> Self:
        """From the attributes of a row, with `more` in place of those that it does not have."""
        columns = {name: getattr(row, name) for name in cls.model_fields if name not in more}
        return cls.model_validate({**columns, **more})


class Page(ResponseModel, Generic[T]):
    """A part of a list; `next` is the cursor of the part after it."""

    items: list[T]
    next: str | None


class Health(ResponseModel):
    """The hub answers; its version."""

    status: Literal["ok"]
    version: str


class MembershipAnswer(ResponseModel):
    """A namespace and the role in it."""

    owner: str
    role: RoleName


class OwnToken(ResponseModel):
    """The token of the request itself."""

    id: str
    name: str
    expires_at: Moment


class Identity(ResponseModel):
    """Who the token of a request is of."""

    user: str
    is_admin: bool
    scope: ScopeName
    token: OwnToken
    owners: list[MembershipAnswer]


class ActionState(ResponseModel):
    """How far the check of a version is."""

    id: str
    state: Literal["queued", "running", "passed", "failed"]


class ActionAnswer(ActionState):
    """The check of a version; `attempt` is how often it was begun."""

    environment: str
    version: str
    attempt: int
    summary: str | None
    queued_at: Moment
    started_at: Moment | None
    finished_at: Moment | None


class FileAnswer(ResponseModel):
    """A file of a version: `size` in bytes, `sha256` in hex digits, `url` to download it."""

    kind: Literal["wheel", "sdist"]
    filename: str
    size: int
    sha256: str
    url: str


class Yanked(ResponseModel):
    """Why and since when a version is hidden from new installs."""

    reason: str | None
    at: Moment


class VersionAnswer(ResponseModel):
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
    created_at: Moment
    pushed_by: str
    yanked: Yanked | None
    downloads: int
    action: ActionState | None


class EnvironmentAnswer(ResponseModel):
    """An environment and its newest version."""

    id: str
    owner: str
    name: str
    visibility: Literal["PUBLIC", "PRIVATE"]
    summary: str
    created_at: Moment
    updated_at: Moment
    downloads: int
    latest: str | None


class PushFile(ResponseModel):
    """A file of a push: `size` bytes were announced, `offset` have arrived, `url` takes the rest."""

    kind: Literal["wheel", "sdist"]
    filename: str
    size: int
    sha256: str
    offset: int
    url: str


class PushAnswer(ResponseModel):
    """A push: what the hub has of it, and the version once it is committed."""

    id: str
    state: Literal["open", "committed", "refused", "aborted", "expired"]
    version_id: str
    files: list[PushFile]
    chunk_bytes: int
    expires_at: Moment
    version: VersionAnswer | None
    findings: list[Any]


class UploadAnswer(ResponseModel):
    """The number of bytes that have arrived: where to continue."""

    offset: int


class DeviceCodeAnswer(ResponseModel):
    """A login that waits for approval; `expires_in` and `interval`, the pause between two questions, in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: float
    interval: float


class DecisionAnswer(ResponseModel):
    """What became of a login that waited for approval."""

    client: str
    scope: ScopeName
    state: Literal["approved", "denied"]


class LoginAnswer(ResponseModel):
    """The token of an approved login; its text is shown only here."""

    token: str
    scope: ScopeName
    expires_at: Moment
    user: str


class ContentEntry(ResponseModel):
    """A file of an archive, with its size in bytes."""

    path: str
    size: int


class SecretAnswer(ResponseModel):
    """A secret, whose value is never returned."""

    name: str
    updated_at: Moment


class VariableAnswer(SecretAnswer):
    """A variable with its value."""

    value: str


class KeyAnswer(SecretAnswer):
    """A secret or a variable."""

    value: str | None = None


class UserAnswer(ResponseModel):
    """A user."""

    name: str
    is_admin: bool
    disabled: bool = False


class NewUserAnswer(UserAnswer):
    """A user who was just made; the token is shown only here."""

    token: str


class OrganisationAnswer(ResponseModel):
    """An organisation."""

    name: str
    kind: Literal["organisation"]


class MemberAnswer(ResponseModel):
    """A member of an organisation."""

    user: str
    role: RoleName


class TokenAnswer(ResponseModel):
    """A token, without its text."""

    id: str
    name: str
    scope: ScopeName
    created_at: Moment
    expires_at: Moment
    last_used_at: Moment | None


class NewTokenAnswer(TokenAnswer):
    """A token that was just made; its text is shown only here."""

    token: str


class AuditAnswer(ResponseModel):
    """One entry of the audit log."""

    number: int
    at: Moment
    actor: str
    action: str
    owner: str
    target: str
    detail: Annotated[dict[str, Any], BeforeValidator(lambda kept: json.loads(kept) if isinstance(kept, str) else kept)]
    hash: str


class AuditVerification(ResponseModel):
    """Whether the audit log is unchanged; `first_broken` is the number of the first entry that is not."""

    intact: bool
    entries: int
    first_broken: int | None
