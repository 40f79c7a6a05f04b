"""`[teacher]`: an endpoint that is learned from. Torch-free, so that configs load fast."""

from __future__ import annotations

from pydantic import Field

from whet.config import StrictModel


class TeacherConfig(StrictModel):
    """`[teacher]`: the teacher of opd and opsd is at an endpoint, and not held by the learner."""

    url: str = Field(
        pattern=r"^https?://",
        description="Where its API is, up to /v1: a vLLM server, or whet serve, with prompt_logprobs.",
    )
    model: str | None = Field(None, min_length=1, description="Its name there; absent: the only one that is served.")
    api_key_var: str = Field("TEACHER_API_KEY", min_length=1, description="Environment variable that holds the key.")
    max_concurrent: int = Field(16, ge=1, description="Sequences at once.")
    timeout: float = Field(300.0, gt=0, description="Seconds one request may take.")
    max_retries: int = Field(5, ge=0, description="How often a request that failed for the moment is sent again.")
