"""Every route of the dashboard with odd input, on runs whose files are whole, damaged and hostile: no answer of 5xx."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.system.files import json_line

from .conftest import Browser, Runs, rollout, trained

QUICK, MANY = 200, 20_000
OUTSIDE = "canary of a file outside of the runs"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, float("nan"), "", "x", "\ud800", "<b>", "x" * 3000, [], [[]], {}, {"a": {}}, [None]
)  # fmt: skip


def damaged(value: Any, draw: random.Random, chance: float = 0.08) -> Any:
    """`value` with something else in some of its places."""
    if draw.random() < chance:
        return draw.choice(VALUES)
    if isinstance(value, dict):
        return {key: damaged(item, draw, chance) for key, item in value.items() if draw.random() > chance / 2}
    if isinstance(value, list):
        return [damaged(item, draw, chance) for item in value]
    return value


def damage(run: Path, draw: random.Random) -> None:
    """Other values in the lines of a run's files, torn lines, and lines that are no JSON."""
    for path in sorted(path for path in run.rglob("*") if path.suffix in (".json", ".jsonl")):
        lines = []
        whole = path.read_text()
        for line in [whole] if path.suffix == ".json" else whole.splitlines():
            text = json.dumps(damaged(json.loads(line), draw))
            lines.append(draw.choice([text] * 8 + [text[: len(text) // 2], "\x00\xff", "[" * 2000, ""]))
        path.write_text("\n".join(lines) + draw.choice(["", "\n"]), encoding="utf-8")


@pytest.fixture
def hostile(runs: Runs, tmp_path: Path) -> Runs:
    """Runs of each kind: whole, damaged, empty, and with links to a file elsewhere."""
    outside = tmp_path / "secret.txt"
    outside.write_text(json.dumps({"step": 1, "text": OUTSIDE}) + "\n")
    steps = [
        [trained("0", 1.0, 0.5), trained("0", 0.0, -0.5)],
        [trained("1", 0.5, 0.0, answer="<script>alert(1)</script>")],
    ]
    metrics = [{"step": step, "reward/mean": 0.5, "loss": 1.0, "time/step": 0.1} for step in (1, 2)]
    runs.training("whole", steps=steps, metrics=metrics)
    runs.training("empty")
    runs.evaluation([rollout(0, 1.0), rollout(1, 0.0)])
    for number in range(6):
        run = runs.training(f"damaged-{number}", steps=steps, metrics=metrics)
        results = runs.evaluation([rollout(0, 1.0), rollout(1, 0.0)], name=f"damaged-{number}")
        evals = [
            {"step": step, "moment": "during", "version": step, "environment": "reverse-text", "sampling": "sampled",
             "reward": 0.5, "metrics": {"reward/mean": 0.5}, "tasks": {"0": [1.0]}}
            for step in (1, 2)
        ]  # fmt: skip
        (run / "evals.jsonl").write_text("".join(map(json_line, evals)))
        (run / "errors.jsonl").write_text(json_line({"step": 1, "environment": "e", "error": "x", "rollouts": 1}))
        (run / "environments.json").write_text(json.dumps({"trained": {"e": {"name": "e"}}, "evaluated": {}}))
        for one in (run, results):
            damage(one, random.Random(number))
    (runs.training("no-toml") / "config.toml").write_bytes(b"\xff\xfe = [")
    linked = runs.training("linked")
    for name in ("metrics.jsonl", "status.json", "config.toml", "errors.jsonl", "evals.jsonl"):
        (linked / name).unlink(missing_ok=True)
        (linked / name).symlink_to(outside)
    (linked / "rollouts" / "step_000001.jsonl").symlink_to(outside)
    (linked / "logs").mkdir()
    (linked / "logs" / "run.log").symlink_to(outside)
    (linked / "checkpoints").symlink_to(tmp_path)
    return runs


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.long)])
def test_no_route_fails_or_shows_a_file_outside(
    count: int, hostile: Runs, serve: Callable[..., Browser], fuzzing: Any
) -> None:
    browser = serve(hostile.folder / "runs", hostile.folder / "outputs")
    ids = [item["id"] for item in browser.get("/runs", limit=200)["items"]]
    assert len(ids) > 12
    known = {
        "run": ids,
        "number": ["0", "1", "2"],
        "step": ["1", "2", "0"],
        "path": ["whet.css", "vendor/uPlot.js", "../app.py", "..%2f..%2fapp.py"],
        "limit": ["1", "200"],
        "names": ["reward/", "loss", "loss,reward/mean"],
        "points": ["10", "1000"],
        "kind": ["training", "evaluation"],
        "state": ["finished", "running"],
        "sort": ["reward", "advantage", "length", "step"],
        "part": ["train", "eval"],
        "what": ["adapter", "model", "checkpoint"],
        "environment": ["reverse-text"],
        "generation": ["0", "1"],
        "after": ["0", "1"],
    }
    # Streams do not end: they are read for runs that are not there.
    lists = ("/api/v1/events", "/data/events")  # of them test_events.py has what is in them
    routes = [route for route in fuzzing.routes_of(browser.http.app) if route.path not in lists]
    endless = [route for route in routes if route.path.endswith("/events")]
    routes = [route for route in routes if route not in endless]
    draw = fuzzing.Draw(11, routes, known, [], "http://localhost")
    none = fuzzing.Draw(12, endless, {}, [], "http://localhost") if endless else None
    statuses: dict[int, int] = {}
    for number in range(count):
        method, path, more = (none if none is not None and number % 25 == 0 else draw).request(number)
        if fuzzing.streams(path, ids):
            continue
        answer = browser.http.request(method, path, follow_redirects=False, **more)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (number, method, path, more, answer.text)
        assert OUTSIDE not in answer.text, (number, method, path, more)
    assert {200, 404, 422} <= statuses.keys(), statuses
    print(f"{count} requests on {len(routes)} routes: {dict(sorted(statuses.items()))}")
