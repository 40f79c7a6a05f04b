"""`RunningServer`: a vLLM server that was started elsewhere. It is checked once, used, and never stopped."""

from __future__ import annotations

import os
from typing import Any

from whet.errors import EngineError

KEY = "VLLM_API_KEY"
ANSWER_S = 30.0


class RunningServer:
    """What `VllmServer` is to its users, for a server at an address. Its key is taken from the environment."""

    alive = True
    pid = None
    socket = None

    def __init__(self, base_url: str, *, name: str) -> None:
        """`base_url` is that of a server, `http://host:8000`, with or without `/v1`; `name` is for messages."""
        self.name, self.key = name, os.environ.get(KEY, "")
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.model = ""
        """The model's name in requests, once `ready` has learned it."""
        self.vllm_version = ""

    def start(self) -> None:
        """Nothing is to be done."""

    async def ready(self) -> None:
        """Learn what the server serves. Raises `EngineError` where no vLLM server answers at the address."""
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=ANSWER_S) as client:
                version = await client.get("/version")
                models = await client.get("/v1/models")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise EngineError(
                f"{self.name}: no server answers at {self.url} ({error or type(error).__name__}). Start it, or correct "
                "base_url."
            ) from None
        if models.status_code in (401, 403):
            given = f"the key in {KEY}" if self.key else f"requests without a key; set {KEY} to its key"
            raise EngineError(f"{self.name}: the server at {self.url} refuses {given}.")
        self.vllm_version = _object(version).get("version", "")
        served = [one["id"] for one in _object(models).get("data", []) if not one.get("parent")]
        if not self.vllm_version or not served:
            raise EngineError(
                f"{self.name}: what answers at {self.url} is not a vLLM server: /version has status "
                f"{version.status_code}, /v1/models {models.status_code}."
            )
        self.model = served[0]

    def failure(self) -> None:
        """What is known of its end: nothing."""

    async def stop(self) -> None:
        """It belongs to others."""

    def close(self) -> None:
        """It belongs to others."""


def _object(response: Any) -> dict[str, Any]:
    """The object that a response has in it; {} where it has none."""
    try:
        content = response.json() if response.status_code == 200 else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
