"""Sending a submission: its files first, then the run, once.

A submission has a key that the client makes up; the service makes one run of one key. The key is kept on disk until the
service has answered, so that a command that is repeated after a broken connection submits nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.hub.client.connection import HubClient, HubRequestError, path_of
from whet.hub.client.settings import config_folder
from whet.service.answers import SubmittedRun
from whet.service.client.files import SubmissionFiles
from whet.system.files import write_whole

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
        return {
            "owner": self.owner,
            "name": self.name,
            "kind": self.kind,
            "config": self.config,
            "files": {name: file.sha256 for name, file in sorted(self.files.found.items())},
            "environments": list(self.environments),
            "needs": dict(self.needs),
            "caps": dict(self.caps),
            "priority": self.priority,
            "skip_action_check": self.skip_action_check,
        }

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
    for done, file in enumerate(unique := {one.sha256: one for one in submission.files.found.values()}.values()):
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
