"""A service with runs whose checkpoints are real, and what serves them in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from whet.gateway.app import Gateway
from whet.hub.storage.database import database_now
from whet.inference.loading import load_policy
from whet.service.deployments.access import TokenAccess, UsageMeter
from whet.service.deployments.folder import DeploymentFolder
from whet.service.deployments.models import ModelHost
from whet.service.deployments.prepare import prepare
from whet.service.deployments.reconciler import Deployments
from whet.service.domain import runs
from whet.service.storage.tables import DeploymentRow

LORA = {"rank": 4, "alpha": 64.0}
QUESTION = [{"role": "user", "content": "Reverse the text: abc"}]


def make_checkpoints(folder: Path) -> None:
    """Checkpoints of whet/tiny as a run leaves them: two of an adapter, one of all weights; and what each exports."""
    import torch

    from whet.models.tiny import path as tiny
    from whet.rl.learner.config import LoraConfig
    from whet.rl.learner.lora import LoraWeights
    from whet.rl.learner.make import load_model
    from whet.rl.learner.weights import FullWeights
    from whet.rl.storage.checkpoints import save_checkpoint

    torch.manual_seed(5)
    adapted = LoraWeights(load_model(tiny()), tiny(), LoraConfig(**LORA))
    for step in (2, 4):
        with torch.no_grad():
            for _, parameter in adapted.parameters():
                parameter.normal_(0, 0.05)
        save_checkpoint(folder / "lora", step, adapted.save, keep=9)
        adapted.export_merged(folder / f"merged_{step}", torch.float32)
        adapted.export(folder / "adapters" / f"step_{step}", torch.float32)
    whole = FullWeights(load_model(tiny()), tiny(), torch.float32)
    with torch.no_grad():
        for _, parameter in whole.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    save_checkpoint(folder / "full", 3, whole.save, keep=9)
    whole.export(folder / "whole_3", torch.float32)


class Service:
    """The API in this process, its users, and runs."""

    def __init__(self, hub: Any, checkpoints: Path) -> None:
        self.hub = hub  # of tests/hub/running.py, with the routes of deployments
        self.data: Path = hub.hub.uploads.parent
        self.database = hub.hub.database
        self.checkpoints = checkpoints

    def run(
        self,
        owner: str = "ann",
        kind: str = "lora",
        *,
        name: str = "words",
        model: str = "whet/tiny",
        user: str | None = None,
        **more: Any,
    ) -> str:
        """The id of a run with the checkpoints of a `kind` (lora, full, none)."""
        lora = "" if kind != "lora" else "[lora]\n" + "\n".join(f"{key} = {value}" for key, value in LORA.items())
        values: dict[str, Any] = {
            "key": secrets.token_hex(8),
            "owner": owner,
            "name": name,
            "kind": "training",
            "model": model,
            "config": f'model = "{model}"\nmax_steps = 4\n{lora}',
            "files": {},
            "environments": [],
            "labels": [],
            "needs": {"cores": 1, "memory": 0, "devices": 0},
            "caps": {},
            "max_steps": 4,
            **more,
        }
        with self.database.write() as session:
            row, _ = runs.submit(
                session, self.hub.hub.cipher, user or owner, runs.NewRun(**values), database_now(session)
            )
        directory = self.data / "runs" / row.id / "run"
        directory.mkdir(parents=True)
        if kind != "none":
            shutil.copytree(self.checkpoints / kind, directory / "checkpoints")
        return str(row.id)

    def deploy(self, user: str, run: str, **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.hub.ok("POST", "/deployments", user, json={"run": run, **body})
        return found

    def row(self, deployment: str) -> DeploymentRow:
        with self.database.read() as session:
            return session.get_one(DeploymentRow, deployment)

    @contextlib.asynccontextmanager
    async def serving(self, **more: Any) -> AsyncIterator[Serving]:
        """The deployments in this process; nothing is reconciled but by `reconcile`."""
        serving = Serving(self, **more)
        try:
            yield serving
        finally:
            await serving.deployments.close()


class Serving:
    """What `whet service deployments` has in its process, without a port and without a clock of its own."""

    def __init__(self, service: Service, **more: Any) -> None:
        self.service, self.now = service, 1000.0
        self.loads: list[Path] = []
        self.host = ModelHost(self.load, clock=lambda: self.now, available=more.pop("available", lambda: None))
        self.deployments = Deployments(service.database, service.data, self.host, self.export, **more)
        self.meter = UsageMeter(service.database)
        self.access = TokenAccess(service.database, self.deployments, self.meter, clock=lambda: self.now)
        self.gateway = Gateway(access=self.access)

    def load(self, path: Path) -> Any:
        self.loads.append(path)
        return load_policy(str(path), repeatable=False)

    async def export(self, folder: DeploymentFolder) -> None:
        await asyncio.to_thread(prepare, folder)

    async def reconcile(self) -> None:
        """Until what the rows say is so."""
        await self.deployments.reconcile()
        await self.deployments.settled()
        await self.deployments.reconcile()

    async def request(self, method: str, path: str, user: str | None = None, **more: Any) -> Any:
        """With the token of a user, or with the header `key`."""
        headers = more.pop("key", {})
        if user is not None:
            headers = {"Authorization": f"Bearer {self.service.hub.tokens[user]}"}
        transport = httpx.ASGITransport(app=self.gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, **more)

    async def ask(self, user: str | None, model: str, tokens: int = 12, **more: Any) -> Any:
        """The answer's token ids, or status and code of an error."""
        body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": tokens, "return_token_ids": True}
        answer = await self.request("POST", "/v1/chat/completions", user, json={**body, **more})
        if answer.status_code != 200:
            return answer.status_code, answer.json()["error"]["code"]
        return answer.json()["choices"][0]["token_ids"]

    async def models(self, user: str) -> list[str]:
        return [one["id"] for one in (await self.request("GET", "/v1/models", user)).json()["data"]]


def ids_of(model: Path, tokens: int = 12) -> list[int]:
    """The greedy answer of a model that is loaded by itself."""

    async def answer() -> list[int]:
        policy = load_policy(str(model))
        try:
            args = {"temperature": 0, "max_tokens": tokens}
            response = await policy.client.get_response(QUESTION, "m", args)
            ids: list[int] = response.message["tokens"]["completion_ids"]
            return ids
        finally:
            await policy.engine.close()

    return asyncio.run(answer())


def manifest(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())
    return found
