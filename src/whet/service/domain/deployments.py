"""Deployments as rows: who may make, see and end them, and what a client is shown of them."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.hub.domain.access import Caller, find_account, owner_for, permit, role_in
from whet.hub.domain.audit import record
from whet.hub.errors import HubError, not_found
from whet.hub.policy import Action, Role, Scope
from whet.hub.storage.tables import Account, Membership
from whet.service.answers import DeploymentAnswer, DeploymentHealth
from whet.service.deployments.folder import DeploymentSource, source_of
from whet.service.storage.tables import DeploymentRow, RunRow
from whet.system.children import began
from whet.system.files import write_whole

SEE = Action("see deployments", Scope.READ, Role.VIEWER)
DEPLOY = Action("deploy a checkpoint or end an own deployment", Scope.PUSH, Role.MEMBER)
END_OTHERS = Action("end a deployment of another user", Scope.PUSH, Role.MAINTAINER)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MOST = 100
"""Deployments of one owner at once."""
WITH_WEIGHTS = ("training", "sft")
"""Kinds of runs that have checkpoints."""


def model_of(base: str) -> str:
    """The base model as model ids have it: of a directory its last part."""
    return Path(base).name if base.startswith(("/", "~", ".")) else base


def model_id(row: DeploymentRow) -> str:
    return f"{model_of(row.base)}:{row.name}"


def owners_of(session: Session, caller: Caller) -> frozenset[str]:
    """The owners whose deployments a user may see and use: itself, and where it is at least a viewer."""
    query = select(Account.name).join(Membership, Membership.owner_id == Account.id)
    query = query.where(Membership.user_id == caller.known.id, Membership.role >= int(Role.VIEWER))
    return frozenset({caller.name, *session.scalars(query)})


@dataclass(frozen=True, slots=True)
class NewDeployment:
    """What is going to be deployed, once its files are there."""

    id: str
    owner: str
    name: str
    source: DeploymentSource


def plan(session: Session, caller: Caller, data: Path, run: str, step: int | None, name: str | None) -> NewDeployment:
    """What `run` at `step` (None: its newest checkpoint) would be deployed as. Raises `HubError`."""
    row = session.get(RunRow, run)
    _permit(session, caller, row, f"run {run}")
    assert row is not None
    if row.kind not in WITH_WEIGHTS:
        raise HubError("invalid", f"run {run} is of the kind '{row.kind}', which trains no weights. Name another run.")
    source = source_of(data, run, row.model, row.config, step)
    if isinstance(source, list):
        if not source:
            raise HubError("conflict", f"run {run} has no checkpoint yet. Wait for its first one.")
        known = ", ".join(map(str, source))
        raise HubError("not_found", f"run {run} has no checkpoint of step {step}; there are: {known}.")
    name = name or f"{re.sub(r'[^A-Za-z0-9._-]+', '-', row.name).strip('-._')[:50] or run}-{source.step}"
    _check_name(session, row.owner, model_of(source.base), name)
    return NewDeployment(secrets.token_hex(8), row.owner, name, source)


def add(session: Session, caller: Caller, new: NewDeployment, now: float) -> DeploymentRow:
    """A pending deployment, whose folder has been made. Raises `HubError`."""
    _permit(session, caller, session.get(RunRow, new.source.run), f"run {new.source.run}")
    base = model_of(new.source.base)
    _check_name(session, new.owner, base, new.name)
    row = DeploymentRow(
        id=new.id,
        owner=new.owner,
        user=caller.name,
        run_id=new.source.run,
        step=new.source.step,
        base=new.source.base,
        name=new.name,
        adapter=new.source.adapter,
        state="pending",
        created_at=now,
    )
    session.add(row)
    session.flush()
    detail = {"model": f"{base}:{new.name}", "run": new.source.run, "step": new.source.step}
    record(session, caller.name, "deployment.create", new.owner, row.id, now, detail)
    return row


def end(session: Session, caller: Caller, deployment: str, now: float) -> None:
    """Serve it no more. Its files go once its pending requests are answered. Raises `HubError`."""
    row = find(session, caller, deployment)
    if row.user != caller.name:
        owner_for(session, Caller(END_OTHERS, caller.token), row.owner, what=f"deployment {deployment}")
    row.state, row.reason, row.deleted_at = "deleted", "", now
    record(session, caller.name, "deployment.delete", row.owner, row.id, now, {"model": model_id(row)})


def find(session: Session, caller: Caller, deployment: str) -> DeploymentRow:
    """A deployment that is not deleted, and that the caller may do its action with. Raises `HubError`."""
    row = session.get(DeploymentRow, deployment)
    _permit(session, caller, row, f"deployment {deployment}")
    assert row is not None
    return row


def visible(session: Session, caller: Caller, owner: str | None = None) -> Sequence[DeploymentRow]:
    """The deployments that the caller may see, newest first; with `owner`, those of this one."""
    permit(caller, Role.OWNER)  # of its own namespace at least
    owners = owners_of(session, caller)
    if owner is not None:
        if owner not in owners:
            raise not_found(f"owner {owner}")
        owners = frozenset({owner})
    query = select(DeploymentRow).where(DeploymentRow.deleted_at.is_(None), DeploymentRow.owner.in_(owners))
    return session.scalars(query.order_by(DeploymentRow.created_at.desc(), DeploymentRow.id)).all()


def view(row: DeploymentRow, server: ServerStatus | None) -> DeploymentAnswer:
    """A deployment as the interface shows it; `server` is what the serving process says, None where none runs."""
    return DeploymentAnswer.of(
        row,
        run=row.run_id,
        model=model_id(row),
        url=None if server is None else f"{server.url}/v1",
        health=None if server is None else server.deployments.get(row.id),
    )


def _permit(session: Session, caller: Caller, row: RunRow | DeploymentRow | None, what: str) -> None:
    """Raises `HubError`: the same for what does not exist, what is deleted, and what the caller may not see."""
    owner = None if row is None or row.deleted_at is not None else find_account(session, row.owner)
    permit(caller, role_in(session, caller, owner), visible=False, what=what)


def _check_name(session: Session, owner: str, base: str, name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise HubError(
            "invalid",
            f"a deployment cannot be called '{name[:80]}': letters, digits and . _ - are allowed, at most 64.",
        )
    alive = select(DeploymentRow).where(DeploymentRow.owner == owner, DeploymentRow.deleted_at.is_(None))
    for row in session.scalars(alive.where(DeploymentRow.name == name)):
        if model_of(row.base) == base:
            raise HubError(
                "name_taken", f"{owner} has a deployment {base}:{name} already. Delete it, or give another --name."
            )
    count = session.scalar(select(func.count()).select_from(alive.subquery())) or 0
    if count >= MOST:
        raise HubError("too_many", f"{owner} has {MOST} deployments. Delete some first.")


# What the process that serves deployments says of itself, for the API and pages: DATA/deployments/server.json.

STALE_S = 15.0
"""After so long without a word a process on another machine counts as gone."""


class ServerStatus(BaseModel):
    """The process, and the deployments that it knows of."""

    url: str  # without /v1
    host: str
    pid: int
    process_began: str | None
    started_at: float
    at: float
    deployments: dict[str, DeploymentHealth] = {}

    @property
    def alive(self) -> bool:
        if self.host == socket.gethostname():
            return began(self.pid) == self.process_began
        return time.time() - self.at < STALE_S


def status_file(data: Path) -> Path:
    return data / "deployments" / "server.json"


def read_status(data: Path) -> ServerStatus | None:
    """None where no such process runs."""
    try:
        status = ServerStatus.model_validate_json(status_file(data).read_bytes())
    except (OSError, ValidationError):
        return None
    return status if status.alive else None


def write_status(data: Path, status: ServerStatus) -> None:
    write_whole(status_file(data), status.model_dump_json(), durable=False)
