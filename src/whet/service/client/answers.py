"""What the service answers, as docs/design/service.md has it. Fields that a newer service adds are left out."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class InstalledAnswer(BaseModel):
    """An environment that the service's own Python has."""

    id: str
    version: str = ""
    content: str | None = None


class ServiceAnswer(BaseModel):
    version: str
    environments: list[InstalledAnswer] = []
    models: list[str] = []
    largest: dict[str, float] | None = None
    free_cores: float | None = None  # on the runner that has most now


class SubmittedRun(BaseModel):
    """A run, with whatever else the service says of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    owner: str
    name: str
    kind: str
    state: str
    reason: str = ""
    model: str = ""
    environments: list[str] = []
    step: int = 0
    max_steps: int | None = None
    submitted_at: float | str | None = None
    place: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed", "stopped")

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class DeploymentHealth(BaseModel):
    loaded: bool = False
    in_flight: int = 0
    seconds: float | None = None
    last_error: str | None = None


class DeploymentAnswer(BaseModel):
    """A deployment, with whatever else the service says of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    owner: str
    run: str
    step: int
    name: str
    model: str
    state: str
    reason: str = ""
    url: str | None = None
    requests: int = 0
    last_used_at: str | None = None
    health: DeploymentHealth | None = None
