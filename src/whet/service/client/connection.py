"""The service that this machine is logged in to: the hub of `whet login`, where that is one."""

from __future__ import annotations

import hashlib
import json
import os
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import ConfigError
from whet.hub.client.connection import HubClient, HubRequestError, connect, path_of
from whet.hub.client.settings import HUB_VARIABLE, config_folder, read_settings
from whet.service.answers import ServiceAnswer, SubmittedRun
from whet.service.client.files import SubmissionFiles
from whet.system.files import write_whole

NO_SERVICE = (
    "no training service is set. Start one with: whet service up. Then log in to it: whet login --hub URL "
    "(it prints URL and token). Without a service: whet train run CONFIG"
)


def service_is_set() -> bool:
    """Whether there is an address to ask. Nothing is sent."""
    return bool(os.environ.get(HUB_VARIABLE) or read_settings().hub)


def connect_service(url: str | None = None) -> HubClient:
    """The service, with the token of this machine. Raises `ConfigError` where none is set, or there is no login."""
    if url is None and not service_is_set():
        raise ConfigError(NO_SERVICE)
    service = connect(url)
    if service.token is None:
        raise ConfigError(f"there is no login to {service.url}. Log in with: whet login --hub {service.url}")
    return service


def ask_service(service: HubClient) -> ServiceAnswer:
    """What the service has. Raises `HubRequestError` where the address is a hub that trains nothing."""
    try:
        return service.ask(ServiceAnswer, "GET", "/service")
    except HubRequestError as error:
        if error.code != "not_found":
            raise
        raise HubRequestError(
            f"{service.url} is a hub of environments without a training service. Start one on its folder with: "
            "whet service up --data DIR",
            error.code,
        ) from None


# Sending a submission: its files first, then the run, once.
#
# A submission has a key that the client makes up; the service makes one run of one key. The key is kept on disk until
# the service has answered, so that a command that is repeated after a broken connection submits nothing twice.

KEPT_S = 24 * 3600.0
"""After so long an unanswered submission is taken to be another one."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Submission:
    """The body of `POST /runs`, less its key."""

    owner: str
    name: str
    kind: str
    config: str
    files: SubmissionFiles
    environments: Sequence[str]
    needs: Mapping[str, float]
    secrets: Mapping[str, str]
    caps: Mapping[str, float]
    priority: int = 0
    skip_action_check: bool = False

    def body(self) -> dict[str, Any]:
        names = ("owner", "name", "kind", "config", "environments", "needs", "caps", "priority", "skip_action_check")
        files = {name: file.sha256 for name, file in sorted(self.files.by_name.items())}
        return {**{name: getattr(self, name) for name in names}, "files": files}

    def digest(self, url: str) -> str:
        """Of all but the secrets' values, so that nothing of them is on disk; and but the needs, which also depend on
        the service's runners at the moment."""
        whole = {"url": url, "secrets": sorted(self.secrets), **self.body(), "needs": None}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]


def submit(service: HubClient, submission: Submission, progress: Progress) -> tuple[SubmittedRun, bool]:
    """The run, and whether it is new: false where an earlier command, whose answer was lost, submitted it.

    Raises `HubRequestError`.
    """
    kept = config_folder() / "submissions" / submission.digest(service.url)
    key = _kept_key(kept)
    for done, file in enumerate(unique := {one.sha256: one for one in submission.files.by_name.values()}.values()):
        service.send("PUT", f"/api/v1/blobs{path_of(file.sha256)}", content=file.content())
        progress("files", done + 1, len(unique))
    body = {"key": key, **submission.body(), "secrets": dict(submission.secrets)}
    try:
        response = service.send("POST", "/api/v1/runs", json=body, retry=True)  # one key is one run
    except HubRequestError as error:
        if error.code is not None:  # it was answered: nothing was submitted
            kept.unlink(missing_ok=True)
        raise
    run = SubmittedRun.model_validate(response.json())
    kept.unlink(missing_ok=True)
    return run, response.status_code == 201


def _kept_key(file: Path) -> str:
    """The key of a submission whose answer never came, or a new one, which is kept."""
    try:
        if time.time() - file.stat().st_mtime < KEPT_S:
            return file.read_text(encoding="utf-8").strip()
    except OSError:
        pass
    key = random.token_hex(16)
    write_whole(file, f"{key}\n")
    return key
