"""`whet service up`: parts are started, started again, and end with it, however it ends; runs do not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx

from whet.system.children import began

pytestmark = pytest.mark.parts
PATIENCE_S = 600.0


def test_parts_start_are_started_again_and_end_with_a_signal(up: Any) -> None:
    first = up()
    assert httpx.get(f"{first.address}/login").status_code == 200
    first.said("runner ")
    assert first.ask("GET", "/runners").json()["items"][0]["state"] == "alive"
    again = subprocess.run(first.process.args, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (again.returncode, "runs on" in again.stderr) == (2, True)
    parts = first.parts()
    assert sorted(parts) == ["api", "runner"]
    os.kill(parts["api"], signal.SIGKILL)
    assert first.ask("GET", "/whoami").status_code == 200  # the connection waits for the next one
    first.said("api ended (code -9)")
    os.kill(parts["runner"], signal.SIGKILL)
    first.said("runner ended (code -9)")
    first.said("Ctrl-C stops it, its runs continue", times=2)
    assert first.end(signal.SIGINT) == 0
    assert first.parts() == {}
    assert not any("Traceback" in line for line in first.lines)
    second = up()
    assert httpx.get(f"{second.address}/login").status_code == 200
    assert not any("shown only now" in line for line in second.lines)
    assert second.end() == 0


def test_training_api_is_a_part(up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the users of the service; its models are runs there; a kill of it is named, and no client notices."""
    tinker = pytest.importorskip("tinker", reason="the SDK is in the extra `tinker`")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    first = up("--no-runner", "--tinker", "whet/tiny", "--tinker-port", "0", "--tinker-setting", "adapter_gib=1")
    url = first.said("training API of whet/tiny at ").split()[5].rstrip(":")
    assert first.ask("GET", "/service").json()["training_api"]["url"] == url
    client = tinker.ServiceClient(base_url=url, api_key=f"tml-{first.token}")
    trainer = client.create_lora_training_client("whet/tiny", rank=4, user_metadata={"name": "mine"}).result()
    values = {"target_tokens": ([2, 3, 4], "int64"), "weights": ([1.0, 1.0, 1.0], "float32")}
    inputs = {key: tinker.TensorData(data=data, dtype=kind, shape=[3]) for key, (data, kind) in values.items()}
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)
    losses = []
    for step in range(4):
        if step == 2:
            os.kill(first.parts()["tinker"], signal.SIGKILL)
        passed = trainer.forward_backward([datum], "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(timeout=PATIENCE_S)
        losses.append(passed.result(timeout=PATIENCE_S).metrics["loss:sum"])
    assert losses == sorted(losses, reverse=True)
    first.said("tinker ended (code -9)")
    [run] = first.ask("GET", "/runs").json()["items"]
    assert [run[name] for name in ("name", "user", "state", "step")] == ["mine", "hub-admin", "running", 4]
    series = first.ask("GET", f"/runs/{run['id']}/metrics").json()
    assert "optim/loss" in str(series)
    assert first.end() == 0
    assert not any("Traceback" in line for line in first.lines)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("whet/tiny", "--tinker-setting", "adapter_gb=1"), "Did you mean 'adapter_gib'?"),
        (("whet/tiny", "--tinker-setting", "port=1"), "it is an option of `whet service up` itself"),
        (("./nothing",), "nothing"),
    ],
)
def test_training_api_that_cannot_start_is_refused(started: Any, tmp_path: Path, settings: Any, said: str) -> None:
    part = started.Part("up", tmp_path / "service", *started.OPTIONS, "--tinker-port", "0", "--tinker", *settings)
    assert part.process.wait(PATIENCE_S) == 2
    assert part.said(said)


def test_kill_of_up_leaves_no_part(up: Any) -> None:
    first = up()
    assert first.address
    first.said("runner ")
    parts = first.parts()
    assert sorted(parts) == ["api", "runner"]
    began_at = {pid: began(pid) for pid in parts.values()}
    assert first.end(signal.SIGKILL) == -9
    first.until(lambda: all(began(pid) != at for pid, at in began_at.items()))
    second = up()
    assert httpx.get(f"{second.address}/login").status_code == 200


def test_ports_are_taken_and_that_of_deployments_before_there_is_one(up: Any, held_port: int, tmp_path: Path) -> None:
    first = up("--deployments-port", str(held_port))
    port = first.address.rpartition(":")[2]
    command = [sys.executable, "-m", "whet.cli.main", "service", "up", "--data", str(tmp_path / "other")]
    taken = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (taken.returncode, "Choose another --port" in taken.stderr) == (2, True)
    api = [sys.executable, "-m", "whet.cli.main", "service", "api", "--data", str(first.data), "--port", "0"]
    done = subprocess.run(api, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, "another hub runs on" in done.stderr) == (2, True)
    with pytest.raises(OSError, match="in use"):  # `held_port` itself does not refuse a server
        socket.create_server(("127.0.0.1", held_port))
    answer = httpx.get(f"http://127.0.0.1:{held_port}/v1/models", timeout=PATIENCE_S)  # the connection starts them
    assert answer.status_code == 401
    assert sorted(first.parts()) == ["api", "deployments", "runner"]


def test_sample_run_finishes_and_outlives_the_service(up: Any) -> None:
    first = up("--sample")
    first.said("the sample run is in the queue")
    [run] = first.ask("GET", "/runs").json()["items"]
    identity = first.data / "runs" / run["id"] / "attempts" / "1" / "attempt.json"
    first.until(identity.exists)
    token, process = first.token, json.loads(identity.read_text())
    assert first.end() == 0
    assert process
    second = up()
    second.lines.append(f"administrator's token, shown only now: {token}\n")
    second.until(lambda: second.ask("GET", f"/runs/{run['id']}").json()["state"] == "finished")
    found = second.ask("GET", f"/runs/{run['id']}").json()
    assert (found["attempt"], found["step"], len(found["attempts"])) == (1, 8, 1)
    assert second.ask("GET", "/audit/verification").json()["intact"] is True
