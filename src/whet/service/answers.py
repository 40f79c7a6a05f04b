"""What the service answers: the models of its routes, pages and clients (docs/design/service.md)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from whet.hub.answers import Moment, ResponseModel


class InstalledAnswer(ResponseModel):
    """An environment that the service's own Python has."""

    id: str
    version: str = ""
    content: str | None = None


class TrainingApiAnswer(ResponseModel):
    """The server for clients of the tinker SDK (docs/tinker.md)."""

    url: str
    model: str
    started_at: Moment


class ServiceAnswer(ResponseModel):
    version: str
    environments: list[InstalledAnswer] = Field(default_factory=list)
    models: list[str] = Field(default_factory=list)
    largest: dict[str, int | float] | None = None
    free_cores: float | None = None  # on the runner that has most now
    training_api: TrainingApiAnswer | None = None


class SubmittedRun(ResponseModel):
    """A run, with whatever else the service says of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    owner: str
    name: str
    kind: str
    state: str
    reason: str = ""
    model: str = ""
    environments: list[str] = Field(default_factory=list)
    step: int = 0
    max_steps: int | None = None
    submitted_at: float | str | None = None
    place: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed", "stopped")

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class DeploymentHealth(ResponseModel):
    """One deployment in the memory of the process that serves."""

    loaded: bool = False
    loaded_at: float | None = None
    in_flight: int = 0
    seconds: float | None = None  # of recent requests, the newest weighing most
    last_error: str | None = None
    last_error_at: float | None = None


class DeploymentAnswer(ResponseModel):
    id: str
    owner: str
    user: str
    run: str
    step: int
    name: str
    model: str
    adapter: bool
    state: str
    reason: str
    url: str | None
    created_at: Moment
    last_used_at: Moment | None
    requests: int
    input_tokens: int
    output_tokens: int
    health: DeploymentHealth | None


class RunnerAnswer(ResponseModel):
    """A process that runs what was submitted."""

    id: str
    host: str
    version: str
    capacity: dict[str, Any]
    free: dict[str, int | float] | None
    state: Literal["alive", "silent", "ended"]
    silent_s: float
    started_at: Moment
    heartbeat_at: Moment
    ended_at: Moment | None


class WebhookAnswer(ResponseModel):
    id: str
    owner: str
    user: str
    url: str
    events: list[str]
    created_at: Moment


class NewWebhookAnswer(WebhookAnswer):
    """A webhook that was just made; the secret that signs its requests is shown only here."""

    secret: str


class DeliveryAnswer(ResponseModel):
    """An event that was sent to a webhook, or waits for it."""

    id: str
    event: str
    state: str
    attempts: int
    next_at: Moment | None
    answer: str
    created_at: Moment

    @model_validator(mode="after")
    def _next_where_it_waits(self) -> Self:
        self.next_at = self.next_at if self.state == "waiting" else None
        return self
