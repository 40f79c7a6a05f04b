"""What the process that serves deployments says of itself, for the API and pages: DATA/deployments/server.json."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from pydantic import BaseModel, ValidationError

from whet.runs.process import began
from whet.system.files import write_whole

STALE_S = 15.0
"""After so long without a word a process on another machine counts as gone."""


class Health(BaseModel):
    """One deployment in memory."""

    loaded: bool = False
    loaded_at: float | None = None
    in_flight: int = 0
    seconds: float | None = None  # of recent requests, the newest weighing most
    last_error: str | None = None
    last_error_at: float | None = None


class ServerStatus(BaseModel):
    """The process, and the deployments that it knows of."""

    url: str  # without /v1
    host: str
    pid: int
    process_began: str | None
    started_at: float
    at: float
    deployments: dict[str, Health] = {}

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
