"""Routes of environments, their versions, contents, actions, secrets and variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.hub import policy
from whet.hub.answers import (
    ActionAnswer,
    ContentEntry,
    EnvironmentAnswer,
    Page,
    SecretAnswer,
    VariableAnswer,
    VersionAnswer,
)
from whet.hub.api.call import (
    CallParameter,
    Cursor,
    HubRequest,
    Identity,
    Key,
    Limit,
    ListRange,
    Name,
    Owner,
    PartOfList,
    RequestBody,
    VersionName,
    Words,
    action,
)
from whet.hub.archive.sdists import list_contents, read_content
from whet.hub.domain import actions, environments
from whet.hub.domain.access import Caller, environment_for, version_for
from whet.hub.domain.hub import Hub
from whet.hub.domain.views import action_view, environment_views, version_view
from whet.hub.errors import not_found
from whet.hub.storage.tables import ActionRow, Secret, StoredFile, Variable

router = APIRouter(prefix="/api/v1")
ONE = "/environments/{owner}/{name}"
VERSION = ONE + "/versions/{version}"
Archive = Annotated[Literal["wheel", "sdist"], Query()]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Text = Annotated[Words | None, Query(max_length=200)]


class Visibility(RequestBody):
    visibility: Literal["PUBLIC", "PRIVATE"]


class Reason(RequestBody):
    reason: Words = Field("", max_length=500)


class Value(RequestBody):
    value: Words = Field(max_length=1 << 16)


@router.get("/environments")
@action(policy.READ)
def list_environments(
    call: CallParameter, part: PartOfList, owner: Text = None, search: Text = None
) -> Page[EnvironmentAnswer]:
    with call.read() as (session, caller):
        return environments.find(session, caller, owner, search, part.cursor, part.limit)


@router.get(ONE)
@action(policy.READ)
def get_environment(call: CallParameter, owner: Owner, name: Name) -> EnvironmentAnswer:
    with call.read() as (session, caller):
        return environment_views(session, [environment_for(session, caller, owner, name)])[0]


@router.patch(ONE)
@action(policy.CURATE)
def change_environment(call: CallParameter, owner: Owner, name: Name, body: Visibility) -> EnvironmentAnswer:
    with call.write() as (session, caller):
        row = environments.set_visibility(session, caller, owner, name, body.visibility, call.hub.clock())
        return environment_views(session, [row])[0]


@router.delete(ONE, status_code=204)
@action(policy.DELETE)
def delete_environment(call: CallParameter, owner: Owner, name: Name) -> None:
    _delete(call, partial(environments.delete_environment, owner=owner, name=name))


@router.get(ONE + "/versions")
@action(policy.READ)
def list_versions(call: CallParameter, part: PartOfList, owner: Owner, name: Name) -> Page[VersionAnswer]:
    with call.read() as (session, caller):
        rows = environments.versions_of(session, environment_for(session, caller, owner, name))
        page = part.of(rows)
        return Page(items=[version_view(session, row, call.base) for row in page.items], next=page.next)


@router.get(VERSION)
@action(policy.READ)
def get_version(call: CallParameter, owner: Owner, name: Name, version: VersionName) -> VersionAnswer:
    with call.read() as (session, caller):
        return version_view(session, version_for(session, caller, owner, name, version), call.base)


@router.delete(VERSION, status_code=204)
@action(policy.CURATE)
def delete_version(call: CallParameter, owner: Owner, name: Name, version: VersionName) -> None:
    _delete(call, partial(environments.delete_version, owner=owner, name=name, version=version))


def _delete(call: HubRequest, delete: Callable[[Hub, Session, Caller], set[str]]) -> None:
    """Delete rows, and then those of their files that no other row names."""
    with call.hub.store_lock:
        with call.write() as (session, caller):
            hashes = delete(call.hub, session, caller)
            session.flush()
            gone = environments.unused(session, hashes)
        for sha256 in gone:
            call.hub.store.remove(sha256)


@router.post(VERSION + "/yank")
@action(policy.MAINTAIN)
def yank(call: CallParameter, owner: Owner, name: Name, version: VersionName, body: Reason) -> VersionAnswer:
    with call.write() as (session, caller):
        row = environments.yank(session, caller, owner, name, version, body.reason, call.hub.clock())
        return version_view(session, row, call.base)


@router.delete(VERSION + "/yank")
@action(policy.MAINTAIN)
def take_back_yank(call: CallParameter, owner: Owner, name: Name, version: VersionName) -> VersionAnswer:
    with call.write() as (session, caller):
        row = environments.yank(session, caller, owner, name, version, None, call.hub.clock())
        return version_view(session, row, call.base)


@contextlib.contextmanager
def _open_archive(
    call: HubRequest, owner: str, name: str, version: str, kind: str
) -> Iterator[tuple[BinaryIO, StoredFile]]:
    """An archive of a version that the caller may read."""
    with call.read() as (session, caller):
        files = version_for(session, caller, owner, name, version).files
        file = next((file for file in files if file.kind == kind), None)
        if file is None:
            raise not_found(f"{kind} of this version")
        with call.hub.store.open(file.sha256) as stream:
            yield stream, file


@router.get(VERSION + "/contents")
@action(policy.READ)
def contents(
    call: CallParameter,
    owner: Owner,
    name: Name,
    version: VersionName,
    archive: Archive = "wheel",
    limit: Limit = 200,
    cursor: Cursor = 0,
) -> Page[ContentEntry]:
    with _open_archive(call, owner, name, version, archive) as (stream, file):
        items = [ContentEntry(path=path, size=size) for path, size in list_contents(stream, file.filename)]
    return ListRange(limit, cursor).of(items)


@router.get(VERSION + "/contents/{path:path}")
@action(policy.READ)
def content(
    call: CallParameter, owner: Owner, name: Name, version: VersionName, path: str, archive: Archive = "wheel"
) -> Response:
    with _open_archive(call, owner, name, version, archive) as (stream, file):
        data = read_content(stream, file.filename, path)
    if data is None:
        raise not_found("file in this archive")
    return _text_response(data)


def _text_response(data: bytes) -> Response:
    try:
        data.decode("utf-8")
        kind = "text/plain; charset=utf-8"
    except UnicodeDecodeError:
        kind = "application/octet-stream"
    return Response(data, headers={"Content-Type": kind, "Content-Disposition": "attachment"})


@router.get(VERSION + "/readme")
@action(policy.READ)
def readme(call: CallParameter, owner: Owner, name: Name, version: VersionName) -> Response:
    with call.read() as (session, caller):
        return _text_response(version_for(session, caller, owner, name, version).readme.encode())


# Actions


@router.get(VERSION + "/actions")
@action(policy.READ)
def list_actions(
    call: CallParameter, part: PartOfList, owner: Owner, name: Name, version: VersionName
) -> Page[ActionAnswer]:
    with call.read() as (session, caller):
        row = version_for(session, caller, owner, name, version)
        rows = session.scalars(select(ActionRow).where(ActionRow.version_id == row.id).order_by(ActionRow.queued_at))
        return part.of([action_view(one) for one in rows])


@router.get("/actions/{identity}")
@action(policy.READ)
def get_action(call: CallParameter, identity: Identity) -> ActionAnswer:
    with call.read() as (session, caller):
        return action_view(actions.action_for(session, caller, identity))


@router.get("/actions/{identity}/log")
@action(policy.READ)
def action_log(call: CallParameter, identity: Identity, offset: Offset = 0) -> Response:
    with call.read() as (session, caller):
        data = actions.action_for(session, caller, identity).log.encode()
    return Response(data[offset:], media_type="text/plain; charset=utf-8", headers={"X-Log-Size": str(len(data))})


@router.post("/actions/{identity}/retry", status_code=202)
@action(policy.MAINTAIN)
def retry_action(call: CallParameter, identity: Identity) -> ActionAnswer:
    with call.write() as (session, caller):
        view = action_view(actions.retry(session, caller, identity, call.hub.clock()))
    call.hub.new_action.set()
    return view


# Secrets and variables


def _add_routes_of_keys(
    kind: str, table: type[Secret] | type[Variable], answer: type[SecretAnswer], page: type[Page[Any]]
) -> None:
    @router.get(f"{ONE}/{kind}", response_model=page)
    @action(policy.MAINTAIN)
    def list_keys(call: CallParameter, part: PartOfList, owner: Owner, name: Name) -> Any:
        with call.read() as (session, caller):
            rows = environments.keys_of(session, caller, owner, name, table)
            return part.of([answer.model_validate(row) for row in rows])

    @router.put(f"{ONE}/{kind}/{{key}}", response_model=answer)
    @action(policy.MAINTAIN)
    def set_key(call: CallParameter, owner: Owner, name: Name, key: Key, body: Value) -> Any:
        with call.write() as (session, caller):
            row = environments.set_key(call.hub, session, caller, (owner, name, key), body.value, table)
            return answer.model_validate(row)

    @router.delete(f"{ONE}/{kind}/{{key}}", status_code=204)
    @action(policy.MAINTAIN)
    def delete_key(call: CallParameter, owner: Owner, name: Name, key: Key) -> None:
        with call.write() as (session, caller):
            environments.delete_key(call.hub, session, caller, (owner, name, key), table)


_add_routes_of_keys("secrets", Secret, SecretAnswer, Page[SecretAnswer])
_add_routes_of_keys("variables", Variable, VariableAnswer, Page[VariableAnswer])
