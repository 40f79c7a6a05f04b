"""A service in this process, and what users ask of it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from whet.service.api.app import create_service_app
from whet.service.service import open_service

Asking: Any = sys.modules["hub_running"].Asking
CONFIG = """\
max_steps = 2
batch_size = 4
rollouts_per_example = 2
learning_rate = 1e-3

[sampling]
max_tokens = 8

[[env]]
id = "reverse-text"
"""


class RunningService(Asking):  # type: ignore[misc]
    """A service's application and its parts, in this process."""

    def __init__(self, service: Any, admin: str | None) -> None:
        self.service = service
        self.app = create_service_app(service)
        client = TestClient(self.app, base_url="http://service.test", raise_server_exceptions=True)
        super().__init__(client, admin)

    def blob(self, user: str, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.ok("PUT", f"/blobs/{sha256}", user, content=data)
        return sha256

    def body(self, owner: str, config: str = CONFIG, **more: Any) -> dict[str, Any]:
        key = secrets.token_hex(8)
        return {"key": key, "owner": owner, "name": "run", "kind": "training", "config": config, **more}

    def submit(self, user: str, owner: str | None = None, config: str = CONFIG, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ok("POST", "/runs", user, json=self.body(owner or user, config, **more))
        return found

    def refuse(self, user: str, config: str = CONFIG, **more: Any) -> list[tuple[str, str]]:
        """Field and reason of each thing that is wrong with a submission."""
        error = self.refused(422, "refused_config", "POST", "/runs", user, json=self.body(user, config, **more))
        assert len(error["message"].splitlines()) == len(error["details"])
        return [(one["field"], one["reason"]) for one in error["details"]]


@contextlib.contextmanager
def running_service(data: Path, database: str | None = None, **more: Any) -> Iterator[RunningService]:
    with open_service(data, database, None, "https://pypi.org/simple/", **more) as (service, token):
        running = RunningService(service, token)
        yield running
        running.app.state.dashboard_data.close()
