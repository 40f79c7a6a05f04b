"""API, runners and deployments that are started apart, on one database and folder, are one service."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")

import httpx

pytestmark = pytest.mark.parts
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


@pytest.fixture
def start(started: Any, database_url: str | None, tmp_path: Path) -> Iterator[Any]:
    """Starts a part; none is left in the end."""
    database = ("--database", database_url) if database_url else ()
    running: list[Any] = []

    def begin(part: str, *more: str) -> Any:
        running.append(started.Part(part, tmp_path / "service", *database, *more))
        return running[-1]

    yield begin
    for one in reversed(running):
        if one.process.poll() is None:
            one.end()


def submission(number: int) -> dict[str, Any]:
    own = {"key": secrets.token_hex(8), "owner": "hub-admin", "name": f"run-{number}", "kind": "training"}
    return {**own, "config": CONFIG, "needs": {"cores": 1, "memory": 1 << 20}}


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # tests/service/test_up.py has SQLite
def test_runs_of_two_runners_finish_and_one_is_served(start: Any) -> None:
    api = start("api", "--port", "0", "--no-actions")
    assert api.address
    for name in ("one", "two"):
        runner = start("runner", "--name", name, "--cores", "1", "--memory", "4", "--isolation", "none")
        assert f"on {name}: 1 core, 4 GiB; not isolated" in runner.said("runner ")
    assert {(one["host"], one["state"]) for one in api.ask("GET", "/runners").json()["items"]} == {
        ("one", "alive"),
        ("two", "alive"),
    }
    runs = [api.ask("POST", "/runs", json=submission(number)).json()["id"] for number in range(3)]
    for run in runs:
        api.until(lambda run=run: api.ask("GET", f"/runs/{run}").json()["state"] in ("finished", "failed"))
        found = api.ask("GET", f"/runs/{run}").json()
        assert (found["state"], found["step"], found["attempt"]) == ("finished", 2, 1), found
    deployments = start("deployments", "--port", "0", "--threads", "1")
    url = deployments.said("deployments at ").split()[2].rstrip(";")
    made = api.ask("POST", "/deployments", json={"run": runs[0], "name": "first"}).json()
    api.until(lambda: api.ask("GET", f"/deployments/{made['id']}").json()["state"] == "ready")
    asked = {"model": "whet/tiny:first", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {api.token}"}
    answer = httpx.post(f"{url}/chat/completions", json=asked, headers=headers, timeout=600)
    assert answer.status_code == 200, answer.text
    assert api.ask("GET", "/audit/verification").json()["intact"] is True
    assert [one.end() for one in (deployments, api)] == [0, 0]
