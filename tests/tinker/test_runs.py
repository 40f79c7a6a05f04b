"""Models as runs: their folders, `whet train list` and the dashboard; what a kill, a start and a full disk leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

IDS, TARGETS = [1, 2, 3, 4], [2, 3, 4, 5]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(folder / "metrics.jsonl").splitlines()]


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def folders(data: Path) -> list[Path]:
    return sorted(path for path in (data / "runs").iterdir() if path.is_dir())


def until(condition: Callable[[], bool]) -> None:
    """A line follows the answer by a moment."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def step(trainer: Any, data: list[Any], loss: str = "cross_entropy", rate: float = 5e-3) -> Any:
    import tinker

    passed = trainer.forward_backward(data, loss)
    trainer.optim_step(tinker.AdamParams(learning_rate=rate)).result(timeout=60)
    return passed.result(timeout=60)


def reinforcing(datum: Callable[..., Any], advantages: list[float]) -> Any:
    return datum(IDS, target_tokens=TARGETS, logprobs=[-3.0] * 4, advantages=advantages)


def test_curves_are_those_of_the_passes(served: Any, client: Any, datum: Callable[..., Any], tmp_path: Path) -> None:
    import numpy as np

    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
    imitated = [
        datum(IDS, target_tokens=TARGETS, weights=[0.0, 1.0, 1.0, 0.5]),
        datum(IDS[:2], target_tokens=TARGETS[:2], weights=[1.0, 1.0]),
    ]
    first = step(trainer, imitated)
    sampled = [reinforcing(datum, [0.0, 2.0, 2.0, 2.0]), reinforcing(datum, [-1.0] * 4)]
    second = step(trainer, sampled, "ppo", rate=0.2)
    (folder,) = folders(tmp_path / "data")
    until(lambda: len(rows(folder)) == 2)
    one, two = rows(folder)
    assert (one["step"], one["data/rows"], one["seq_len/mean"], one["seq_len/trained_mean"]) == (1, 2, 3, 2.5)
    assert one["optim/loss"] == pytest.approx(first.metrics["loss:sum"] / 5)
    assert (one["optim/lr"], two["optim/lr"]) == (5e-3, 0.2)
    assert one["optim/grad_norm"] > 0
    assert "policy/kl" not in one
    assert two["advantage/mean"] == pytest.approx((6 - 4) / 7)
    assert two["optim/loss"] == pytest.approx(second.metrics["loss:sum"] / 7)
    now = np.concatenate([out["logprobs"].to_numpy() for out in second.loss_fn_outputs])[1:]
    apart = now + 3.0
    assert two["policy/kl"] == pytest.approx(np.mean(np.exp(apart) - 1 - apart), rel=1e-4)
    assert two["time/step"] > 0


def test_the_dashboard_and_the_list_show_them(
    served: Any,
    client: Any,
    datum: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    from typer.testing import CliRunner

    from whet.cli.main import app
    from whet.dashboard.app import create_app
    from whet.dashboard.call import Site
    from whet.dashboard.data.dashboard_data import DashboardData
    from whet.dashboard.folders import FolderLibrary
    from whet.errors import RunError

    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    served.server.decode = lambda ids: "-".join(f"<{id}>" for id in ids)
    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
    prompted = datum(IDS, target_tokens=TARGETS, logprobs=[0, 0, -1, -1], advantages=[0, 0, 0.5, 0.5])
    step(trainer, [reinforcing(datum, [1.0] * 4)] * 2 + [prompted] * 9, "importance_sampling")
    for _ in range(5):
        step(trainer, [reinforcing(datum, [1.0] * 4)], "importance_sampling")
    path = trainer.save_state("good").result().path
    trainer.load_state(path).result()
    (folder,) = folders(tmp_path / "data")
    until(lambda: "loaded" in text(folder / "logs" / "run.log"))
    data = DashboardData(FolderLibrary([tmp_path / "data" / "runs"]))
    request.addfinalizer(data.close)
    web = TestClient(create_app(data, Site()), base_url="http://localhost")
    listed = web.get("/runs").text
    assert folder.name in listed
    assert "hub-admin · training · whet/tiny" in listed
    (run,) = web.get("/api/v1/runs").json()["items"]
    assert (run["state"], run["step"], run["owner"]) == ("running", 6, "hub-admin")
    page = web.get(f"/runs/{run['id']}").text
    for said in (
        "Gradient norm",
        "Mean advantage",
        "Learning rate",
        f"saved after step 6: {path}",
        f"loaded after step 6: {path}",
    ):
        assert said in page
    for name in ("rollouts", "logs", "checkpoints", "config"):
        assert web.get(f"/runs/{run['id']}/{name}").status_code == 200
    assert "owner" in web.get(f"/runs/{run['id']}/config").text

    def whet(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["train", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    (head,) = json.loads(whet("list", str(tmp_path / "data" / "runs"), "--json"))["runs"]
    assert (head["state"], head["step"], head["owner"], head["fault"]) == ("running", 6, "hub-admin", None)
    assert "a program of hub-admin" in whet("list", str(tmp_path / "data" / "runs"))
    assert "whet train logs" in whet("show", str(folder))
    first = [json.loads(line) for line in text(folder / "rollouts" / "step_000001.jsonl").splitlines()]
    assert len(first) == 8
    assert [first[2][name] for name in ("group", "prompt", "completion", "advantage")] == [
        "1",
        "<1>-<2>-<3>",
        "<4>-<5>",
        0.5,
    ]
    assert "&lt;4&gt;-&lt;5&gt;" in web.get(f"/runs/{run['id']}/rollouts?step=1").text
    assert "<1>-<2>-<3>" in whet("rollouts", str(folder), "--step", "1", "-n", "8")
    refused = CliRunner().invoke(app, ["train", "stop", str(folder)])
    assert isinstance(refused.exception, RunError)
    assert "whet tinker serve" in str(refused.exception)
    assert "not the same policy" not in page
    client.close("success").result()
    until(lambda: status(folder)["state"] == "finished")
    assert web.get(f"/api/v1/runs/{run['id']}").json()["ended_at"] is not None


def test_a_start_goes_on_with_the_same_lines(serving: Any, tmp_path: Path, datum: Callable[..., Any]) -> None:
    import tinker

    from whet.errors import RunError
    from whet.rl.stored.stored_run import config_of_run, open_run

    one = datum(IDS, target_tokens=TARGETS, weights=[1.0] * 4)
    with serving.serving(tmp_path / "data") as served:
        client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
        trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
        for _ in range(3):
            step(trainer, [one])
        port = int(served.url.rpartition(":")[2])
    (folder,) = folders(tmp_path / "data")
    before = (folder / "metrics.jsonl").read_text()
    assert len(rows(folder)) == 3
    stopped = open_run(folder)
    assert (stopped.state, stopped.resume) == ("interrupted", None)
    with pytest.raises(RunError, match="whet tinker serve"):
        config_of_run(folder)
    # A kill before the last line was written, or in the middle of it.
    (folder / "metrics.jsonl").write_text(before[:-20])
    with serving.serving(tmp_path / "data", port):
        assert open_run(folder).state == "running"
        step(trainer, [one])
        until(lambda: len(rows(folder)) == 4)
    lines = rows(folder)
    kept = [name for name in lines[2] if not name.startswith(("time/", "perf/"))]
    assert {name: lines[2][name] for name in kept} == {name: json.loads(before.splitlines()[2])[name] for name in kept}
    assert [row["step"] for row in lines] == [1, 2, 3, 4]
    assert len({row["request"] for row in lines}) == 4


def test_a_folder_that_cannot_be_written_stops_no_training(
    served: Any, client: Any, datum: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = datum(IDS, target_tokens=TARGETS, weights=[1.0] * 4)
    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
    step(trainer, [one])
    (folder,) = folders(tmp_path / "data")
    until(lambda: len(rows(folder)) == 1)
    folder.rename(tmp_path / "moved")  # in one step: the server may be writing there
    folder.touch()
    losses = [step(trainer, [one]).metrics["loss:sum"] for _ in range(3)]
    assert losses[2] < losses[0]
    until(lambda: "could not be written" in caplog.text)


def test_clients_that_fall_silent_and_servers_that_are_killed(
    serving: Any, tmp_path: Path, datum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tinker

    from whet.records.lock import LOCK

    one = datum(IDS, target_tokens=TARGETS, weights=[1.0] * 4)
    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    with serving.serving(tmp_path / "data", live_s=-1.0) as served:
        client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
        trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
        step(trainer, [one])
        (folder,) = folders(tmp_path / "data")
        until(lambda: status(folder)["state"] == "interrupted")
        assert "not heard of" in status(folder)["last_error"]
        assert (folder / LOCK).samefile(tmp_path / "data" / "runs" / LOCK)
    (folder / "status.json").write_text(json.dumps({**status(folder), "state": "running"}))
    from whet.rl.stored.stored_run import open_run

    assert open_run(folder).state == "died"


def test_figures_are_for_administrators(served: Any, client: Any, datum: Callable[..., Any]) -> None:
    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope

    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result()
    one = datum(IDS, target_tokens=TARGETS, weights=[1.0] * 4)
    for _ in range(3):
        step(trainer, [one, one])
    bearer = {"Authorization": f"Bearer {served.key}"}
    answer = httpx.get(f"{served.url}/metrics", headers=bearer)
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    for line in ("sessions 1.0", "models 1.0", "requests_waiting 0.0", "steps_total 3.0", "tokens_total 24.0"):
        assert f"whet_tinker_{line}" in lines
    assert "_created" not in answer.text
    assert httpx.get(f"{served.url}/metrics").status_code == 401
    with served.server.hub.database.write() as session:
        now = served.server.hub.clock()
        token = issue(session, add_account(session, "eve", "user", "", now), "one", Scope.PUSH, DAY_S, now)[1]
    foreign = {"Authorization": f"Bearer tml-{token}"}
    assert httpx.get(f"{served.url}/metrics", headers=foreign).status_code == 403
