"""Runs on disk as whet writes them, and a dashboard that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from whet.dashboard.app import create_app
from whet.dashboard.call import Site
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.folders import FolderLibrary
from whet.rl.storage.run_directory import write_step
from whet.rollouts.results import save_metadata
from whet.rollouts.row_log import append_rows
from whet.system.files import json_line
from whet.types import RolloutOutput

from .browser import opened, served, started

CONFIG = 'model = "whet/tiny"\nmax_steps = {max_steps}\nbatch_size = 4\n[[env]]\nid = "reverse-text"\n'
Row = dict[str, Any]


def rollout(example: int, reward: float | None, answer: str = "done", **more: Any) -> Row:
    """A row of an evaluation."""
    row: Row = {
        "example_id": example,
        "prompt": [{"role": "user", "content": f"question {example}"}],
        "completion": [{"role": "assistant", "content": answer}],
        "reward": reward,
        "metrics": {"exact_match": reward},
        "timing": {"total": 1.5},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "error": None,
        "token_usage": {"input_tokens": 12.0, "output_tokens": 3.0},
    }
    return {**row, **more}


def trained(group: str, reward: float, advantage: float, answer: str = "done", **more: Any) -> Row:
    """A row of a training run, with the tokens of its one turn."""
    turn = {
        "prompt_start": 0,
        "prompt_ids": [257, 266],
        "completion_ids": [101, 102, 103],
        "completion_logprobs": [-0.01, -3.5, -0.7],
        "policy_version": [[4, 3]],
    }
    row = {"group": group, "environment": "reverse-text", **rollout(int(group), reward, answer)}
    return {**row, "advantage": advantage, "turns": [turn], **more}


class Runs:
    """Writes runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def training(
        self,
        name: str = "mine",
        *,
        steps: Sequence[Sequence[Row]] = (),
        metrics: Sequence[Mapping[str, Any]] = (),
        config: str = CONFIG.format(max_steps=3),
        **status: Any,
    ) -> Path:
        """A run: rollouts by step, rows of metrics, fields of its status."""
        run = self.folder / "runs" / name
        (run / "rollouts").mkdir(parents=True)
        for step, rows in enumerate(steps, start=1):
            write_step(run / "rollouts", step, rows)
        (run / "config.toml").write_text(config)
        (run / "metrics.jsonl").write_text("".join(map(json_line, metrics)))
        known = {"state": "finished", "step": len(metrics), "ended": "2026-11-21T17:00:00+00:00"}
        (run / "status.json").write_text(json.dumps({**known, **status}))
        return run

    def evaluation(self, rows: Sequence[Row], name: str = "one", **metadata: Any) -> Path:
        directory = self.folder / "outputs" / "evals" / "arithmetic" / name
        append_rows(directory, [RolloutOutput(row) for row in rows])
        known = {"env_id": "arithmetic", "model": "whet/tiny", "num_examples": len(rows), "rollouts_per_example": 1}
        save_metadata(directory, {**known, "date": "2026-11-21T14:00:00", "avg_reward": 0.5, **metadata})
        return directory


class Browser:
    """Sends requests to a dashboard."""

    def __init__(self, http: TestClient, library: FolderLibrary) -> None:
        self.http = http
        self.library = library

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a route of the data. Raises AssertionError for an error."""
        answer = self.http.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def error(self, path: str, status: int, **query: Any) -> str:
        """The message of an error with this status."""
        answer = self.http.get(f"/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"]["message"])

    def id(self, name: str) -> str:
        """The id of the run of this name."""
        (found,) = [item["id"] for item in self.get("/runs", limit=200)["items"] if item["name"] == name]
        return str(found)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("data.checkpoints.CHECKED_SECONDS", "data.stores.INDEX_SECONDS", "data.stores.SEARCH_SECONDS")
    for name in (*names, "pages.run.PATIENCE"):
        monkeypatch.setattr(f"whet.dashboard.{name}", 250.0)  # on a busy machine what comes later is no answer
    for name in ("runs", "outputs"):
        (tmp_path / name).mkdir()
    return Runs(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[..., Browser]]:
    """Starts a dashboard of some folders in this process."""
    with ExitStack() as stack:

        def start(*folders: Path) -> Browser:
            library = FolderLibrary(folders)
            data = stack.enter_context(closing(DashboardData(library)))
            http = TestClient(create_app(data, Site()), base_url="http://localhost")
            return Browser(stack.enter_context(http), library)

        yield start


@pytest.fixture
def browser(runs: Runs, serve: Callable[..., Browser]) -> Browser:
    """A dashboard of `runs`."""
    return serve(runs.folder / "runs", runs.folder / "outputs")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser; see `browser.py`."""
    with started() as browser:
        yield browser


@pytest.fixture
def address(runs: Runs) -> Iterator[str]:
    """Where a dashboard of `runs` is served."""
    library = FolderLibrary([runs.folder / "runs", runs.folder / "outputs"])
    with closing(DashboardData(library)) as data, served(create_app(data, Site())) as found:
        yield found


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    """A page of a real browser, in which nothing may go wrong. It is closed before the dashboard that it follows."""
    with opened(chromium) as page:
        yield page
