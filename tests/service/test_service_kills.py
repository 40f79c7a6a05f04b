"""SIGKILL of all of the service at once, while runs are submitted and run: nothing is lost, doubled or left behind."""

from __future__ import annotations

import random
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx

REAL_EVERY = 15
CONFIG = """\
max_steps = 2
batch_size = 4
rollouts_per_example = 2

[sampling]
max_tokens = 4

[eval]
before = false
after = false

[[env]]
id = "reverse-text"
"""


def submission(number: int) -> dict[str, Any]:
    """Every few are small enough to be started; the others wait for a machine that is not there."""
    real = number % REAL_EVERY == 0
    needs = {"cores": 1, "memory": 0} if real else {"cores": 4000}
    key = secrets.token_hex(16)
    return {
        "key": key,
        "owner": "hub-admin",
        "name": f"{'real' if real else 'waiting'}-{number}",
        "kind": "training",
        "config": CONFIG,
        "needs": needs,
    }


class Submitting:
    """Submits run after run until the service is gone. The one whose answer was cut off is sent again first."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}
        self.left: dict[str, Any] | None = None
        self.number = 0

    def until_killed(self, up: Any, after: int, enough: threading.Event) -> None:
        for count in range(100_000):
            if count == after:
                enough.set()
            if self.left is None:
                self.left, self.number = submission(self.number), self.number + 1
            try:
                answer = up.ask("POST", "/runs", json=self.left)
            except httpx.TransportError:
                return
            assert answer.status_code in (200, 201), answer.text
            self.acknowledged[self.left["key"]] = answer.json()["id"]
            self.left = None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.parts), pytest.param(50, marks=pytest.mark.long)])
def test_acknowledged_runs_survive_kills_and_are_started_once(kills: int, up: Any, tmp_path: Path) -> None:
    rng, submitting = random.Random(7), Submitting()
    service = up()
    token = service.token
    for _ in range(kills):
        enough = threading.Event()
        killer = threading.Thread(target=lambda at=enough, one=service: (at.wait(), one.kill_all()))
        killer.start()
        submitting.until_killed(service, rng.randrange(1, 12), enough)
        killer.join()
        service = up()
        service.lines.append(f"administrator's token, shown only now: {token}\n")
        assert service.address
    found = {run["id"]: run for run in everything(service)}
    assert set(submitting.acknowledged.values()) <= found.keys()
    assert len(found) - len(submitting.acknowledged) in (0, 1)  # one whose answer was cut off
    assert len(set(submitting.acknowledged.values())) == len(submitting.acknowledged)
    real = [run for run, row in found.items() if row["name"].startswith("real")]
    assert real
    for run in real:
        service.until(lambda run=run: get(service, run)["state"] in ("finished", "failed"))
        row = get(service, run)
        assert (row["state"], row["step"]) == ("finished", 2), row
        folder = service.data / "runs" / run
        assert [one["state"] for one in row["attempts"]] == ["ended"]
        assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert {row["state"] for row in everything(service) if row["id"] not in real} == {"queued"}
    assert service.ask("GET", "/audit/verification").json()["intact"] is True
    assert service.end() == 0
    assert service.parts() == {}


def get(service: Any, run: str) -> Any:
    return service.ask("GET", f"/runs/{run}").json()


def everything(service: Any) -> list[Any]:
    found, cursor = [], ""
    while True:
        page = service.ask("GET", f"/runs?limit=200{cursor}").json()
        found += page["items"]
        if not page["next"]:
            return found
        cursor = f"&cursor={page['next']}"
