"""Routes of runs that are about rows: submit, stop, restart, delete, and the files of a submission."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi import Path as InPath
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from whet.envs.identity.ids import parse_id
from whet.envs.identity.record import identify
from whet.errors import ModelLoadError, WhetError
from whet.hub import policy
from whet.hub.api.call import CallParameter, HubRequest, Identity, RequestBody, Words, action
from whet.hub.domain.access import Caller, owner_for, version_for
from whet.hub.errors import HubError, not_found
from whet.hub.storage.database import database_now
from whet.inference.model_names import PACKAGED, TINY, packaged_file
from whet.records.directory import RUN_CONFIG
from whet.service.deployments.folder import steps_of
from whet.service.domain import runs
from whet.service.domain.access import RUN, SEE, UPLOAD, run_for, viewer_of
from whet.service.domain.runs import action_states, split_reference
from whet.service.domain.secrets import MOST, check_names
from whet.service.domain.submission import (
    CheckedConfig,
    SubmissionRefusedError,
    check_config,
    check_file_names,
    check_secrets,
    environment_id,
)
from whet.service.service import FILE_BYTES, Service, add_blob, check_room, link_files, missing_blobs, service_of
from whet.service.storage.tables import RunRow

router = APIRouter()
Json = dict[str, Any]
Sha256 = Annotated[str, InPath(pattern=r"^[0-9a-f]{64}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
OwnerName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=39)]
TIB = 1 << 40


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("lone surrogates are not allowed") from None
    return text


SecretText = Annotated[str, Field(min_length=1, max_length=1 << 16, pattern=r"^[^\x00]+$"), AfterValidator(_encodable)]


class NeedsBody(RequestBody):
    """What the run takes of a machine."""

    cores: float = Field(1.0, gt=0, le=4096, allow_inf_nan=False)
    memory: float = Field(1 << 30, ge=0, le=64 * TIB, allow_inf_nan=False)
    devices: int = Field(0, ge=0, le=1024)
    device_memory: float = Field(0, ge=0, le=64 * TIB, allow_inf_nan=False)
    disk: float = Field(0, ge=0, le=1024 * TIB, allow_inf_nan=False, description="Bytes of its folder; 0: by memory.")


class CapsBody(RequestBody):
    """When the run is stopped."""

    seconds: float | None = Field(None, gt=0, le=10**10, allow_inf_nan=False)
    tokens: int | None = Field(None, gt=0, le=10**15)
    cost: float | None = Field(None, ge=0, le=10**12, allow_inf_nan=False)


class SubmissionBody(RequestBody):
    """A run to be queued."""

    key: str = Field(pattern=r"^[0-9a-f]{16,32}$")
    owner: OwnerName
    name: Words = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")
    kind: Literal["training", "sft", "evaluation", "search"]
    config: Words = Field(max_length=1 << 20)
    files: dict[str, Hash] = Field(default_factory=dict, max_length=2000)
    environments: list[Words] = Field(default_factory=list, max_length=100)
    needs: NeedsBody = Field(default_factory=NeedsBody)
    secrets: dict[str, SecretText] = Field(default_factory=dict, max_length=MOST)
    caps: CapsBody = Field(default_factory=CapsBody)
    priority: int = Field(0, ge=-100, le=100)
    skip_action_check: bool = False


class Restart(RequestBody):
    step: int | None = Field(None, ge=0, le=10**12)
    caps: CapsBody = Field(default_factory=CapsBody, description="In place of those that the run has.")


@router.post("/runs", status_code=201)
@action(RUN)
def submit(call: CallParameter, body: SubmissionBody, response: Response) -> Json:
    """Check a submission as its command would, and queue it. The same key again: 200 and the same run."""
    service = service_of(call.request)
    with call.read() as (session, caller):
        owner_for(session, caller, body.owner)
        known = session.scalar(select(RunRow.id).where(RunRow.user == caller.name, RunRow.key == body.key))
        if known is None:
            _check_references(service, session, caller, body)
    try:
        checked = _checked(service, body) if known is None else None
    except SubmissionRefusedError as error:
        raise error.answer() from None
    with call.write() as (session, caller):
        owner_for(session, caller, body.owner)
        now = database_now(session)
        row, is_new = runs.submit(session, service.hub.cipher, caller.name, _new_run(service, body, checked), now)
        session.flush()
        response.status_code = 201 if is_new else 200
        return service.library.view(session, row, viewer_of(session, Caller(SEE, caller.token)))


def _new_run(service: Service, body: SubmissionBody, checked: CheckedConfig | None) -> runs.NewRun:
    """For the key of a known run only what tells it from others counts."""
    submitted = checked or CheckedConfig("", (), (), None)
    return runs.NewRun(
        **body.model_dump(exclude={"skip_action_check"}),
        model=submitted.model,
        labels=list(submitted.labels),
        max_steps=submitted.max_steps,
        skip_action_check=body.skip_action_check or not service.tries,
    )


def _checked(service: Service, body: SubmissionBody) -> CheckedConfig:
    """Raises `SubmissionRefusedError`."""
    check_secrets(body.secrets, body.config)
    with tempfile.TemporaryDirectory(dir=service.hub.uploads, prefix="check-") as made:
        folder = Path(made)
        (folder / RUN_CONFIG).write_text(body.config, encoding="utf-8")
        link_files(service.blobs, folder, body.files)
        checked = check_config(body.kind, folder, body.config, body.files)
    listed, problems = set(body.environments), []
    for text in checked.environments:
        wanted = environment_id(text)
        if wanted.owner is not None and text not in listed:
            problems.append(("environments", f"'{text}' is in the config, and not among the submitted environments"))
        elif wanted.owner is None and wanted.name not in installed_environments():
            problems.append(
                ("environments", f"'{text}' is not installed on the service. Push it to the hub, and name its version")
            )
    if problems:
        raise SubmissionRefusedError(problems)
    return checked


def _check_references(service: Service, session: Session, caller: Caller, body: SubmissionBody) -> None:
    """Files that the user uploaded, and environments that it may read and whose action did not fail.

    Raises `HubError` (refused_config).
    """
    problems: list[tuple[str, str]] = []
    try:
        check_file_names(body.files)
    except SubmissionRefusedError as error:
        problems += error.problems
    if why := check_names(body.secrets):
        problems.append(("secrets", why))
    missing = missing_blobs(session, caller.name, body.files.values())
    for name, sha256 in body.files.items():
        if sha256 in missing:
            problems.append((f"files.{name[:80]}", f"was not uploaded: PUT /api/v1/blobs/{sha256}"))
    states = action_states(session, body.environments)
    reader = Caller(policy.READ, caller.token)
    for number, reference in enumerate(body.environments):
        field = f"environments.{number}"
        owner, name, version = split_reference(reference)
        if not (owner and name and version):
            problems.append((field, f"'{reference[:80]}' is not of the form owner/name@version"))
            continue
        try:
            version_for(session, reader, owner, name, version)
        except HubError as error:
            problems.append((field, str(error)))
            continue
        if states.get(reference) == "failed" and service.tries and not body.skip_action_check:
            problems.append(
                (field, f"the hub's action of {reference} failed; see its page, or submit with --skip-action-check")
            )
    if problems:
        raise SubmissionRefusedError(problems).answer()


@router.post("/runs/{run}/stop", status_code=202)
@action(RUN)
def stop(call: CallParameter, run: Identity) -> Json:
    with call.write() as (session, caller):
        row = run_for(session, caller, run)
        runs.request_stop(session, row, caller.name, database_now(session))
        return _changed(call, session, row, caller)


@router.post("/runs/{run}/restart", status_code=202)
@action(RUN)
def restart(call: CallParameter, run: Identity, body: Restart) -> Json:
    with call.write() as (session, caller):
        row = run_for(session, caller, run)
        there = steps_of(service_of(call.request).data, run)
        caps = body.caps.model_dump(exclude_none=True)
        runs.restart(session, row, caller.name, body.step, database_now(session), there=there, caps=caps)
        return _changed(call, session, row, caller)


@router.delete("/runs/{run}", status_code=204)
@action(RUN)
def delete_run(call: CallParameter, run: Identity) -> None:
    with call.write() as (session, caller):
        row = run_for(session, caller, run)
        runs.delete_run(session, row, caller.name, database_now(session))
    service_of(call.request).remove(run)


def _changed(call: HubRequest, session: Session, row: RunRow, caller: Caller) -> Json:
    session.flush()
    viewer = viewer_of(session, Caller(SEE, caller.token))
    return service_of(call.request).library.view(session, row, viewer)


@router.get("/runs/{run}/config")
@action(SEE)
def config_of(call: CallParameter, run: Identity) -> Response:
    with call.read() as (session, caller):
        text = run_for(session, caller, run).config
    return Response(text, media_type="text/plain; charset=utf-8")


@router.get("/runs/{run}/files/{sha256}")
@action(SEE)
def file_of(call: CallParameter, run: Identity, sha256: Sha256) -> Response:
    """A file of the submission."""
    with call.read() as (session, caller):
        if sha256 not in run_for(session, caller, run).files.values():
            raise not_found(f"file {sha256[:12]} of run {run}")
    stream = service_of(call.request).blobs.open(sha256)
    file = stream.__enter__()

    def pieces() -> Any:
        try:
            while block := file.read(1 << 16):
                yield block
        finally:
            stream.__exit__(None, None, None)

    headers = {"Content-Disposition": "attachment"}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


@router.put("/blobs/{sha256}", status_code=201)
@action(UPLOAD)
async def upload(call: CallParameter, sha256: Sha256, response: Response) -> Json:
    """A file that a submission of this user may name; the same again is 200."""
    service = service_of(call.request)
    await run_in_threadpool(_may_upload, call)
    digest, size = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(dir=service.hub.uploads, prefix="blob-") as made:
        path = Path(made) / "file"
        with path.open("wb") as file:
            async for piece in call.request.stream():
                size += len(piece)
                if size > FILE_BYTES:
                    raise HubError("too_large", f"a file of a submission has at most {FILE_BYTES >> 20} MiB.")
                digest.update(piece)
                await run_in_threadpool(file.write, piece)
        if digest.hexdigest() != sha256:
            raise HubError("hash_mismatch", f"the body has the SHA-256 {digest.hexdigest()}, not that of the path.")
        await run_in_threadpool(_keep, call, path, sha256, size)
    return {"sha256": sha256, "size": size}


def _may_upload(call: HubRequest) -> None:
    with call.read() as (session, caller):
        viewer_of(session, caller)
        check_room(session, caller.name, 0)


def _keep(call: HubRequest, path: Path, sha256: str, size: int) -> None:
    service = service_of(call.request)
    service.blobs.add(path, sha256)
    with call.write() as (session, caller):
        add_blob(session, caller.name, sha256, size, database_now(session))


# What this Python has for runs: environments that are installed, and models by name.


@cache
def installed_environments() -> dict[str, dict[str, Any]]:
    """By name: distributions that need whet and have a module of their own name."""
    installed: dict[str, dict[str, Any]] = {}
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.name or "")
        if not name or name == "whet" or not _needs_whet(distribution):
            continue
        try:
            if importlib.util.find_spec(parse_id(name).module) is None:
                continue
            identity = identify(name)
        except (WhetError, ImportError, ValueError, OSError):
            continue
        installed[name] = {"id": name, "version": identity.version or "", "content": identity.content}
    return installed


def _needs_whet(distribution: metadata.Distribution) -> bool:
    for line in distribution.requires or []:
        try:
            if canonicalize_name(Requirement(line).name) == "whet":
                return True
        except InvalidRequirement:
            continue
    return False


def known_models() -> list[str]:
    """Models that need no download."""
    models = [TINY]
    for name in PACKAGED:
        try:
            packaged_file(name)
        except ModelLoadError:
            continue
        models.append(name)
    return models
