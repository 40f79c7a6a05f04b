"""`whet dashboard`: its address, which requests it answers, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from whet.cli.main import main

from .conftest import Runs, trained


def status(address: str, **headers: str) -> int:
    request = urllib.request.Request(f"{address}/api/v1/runs", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_prints_its_address_and_refuses_other_hosts_until_a_signal(runs: Runs) -> None:
    runs.training()
    command = [sys.executable, "-m", "whet.cli.main", "dashboard", "runs", "outputs", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=runs.folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"dashboard at (http://127\.0\.0\.1:\d+); Ctrl-C stops it\n", line)
        assert found, line
        assert status(found[1]) == 200
        assert status(found[1], Host="rebound.example") == 403
        assert status(found[1], Origin="https://other.example") == 403
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert "Traceback" not in said


def test_folder_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_missing_extra_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from whet.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "dashboard", str(tmp_path), "--port", "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: the dashboard needs the 'dashboard' extra. Install it with: pip install 'whet[dashboard]'."
    )


WITHOUT_TRAIN = """
import sys
for name in ("numpy", "torch", "transformers", "tokenizers", "peft", "safetensors", "renderers"):
    sys.modules[name] = None
from pathlib import Path
from starlette.testclient import TestClient
from whet.dashboard.app import create_app
from whet.dashboard.call import Site
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.folders import FolderLibrary
http = TestClient(create_app(DashboardData(FolderLibrary([Path("runs")])), Site()), base_url="http://localhost")
ids = [run["id"] for run in http.get("/data/runs").json()["items"]]
for path in sys.argv[1:]:
    answer = http.get(path.replace("RUN", ids[0]).replace("OTHER", ids[1]))
    assert answer.status_code == 200, (path, answer.text)
print(http.get(f"/data/runs/{ids[0]}/findings").text, http.get(f"/data/runs/{ids[0]}/rollouts/0").text)
"""


def test_only_the_extra_that_is_named_is_needed(runs: Runs) -> None:
    for name in ("a", "b"):
        runs.training(name, steps=[[trained("1", 1.0, 0.5)]], metrics=[{"step": 1, "reward/mean": 1.0}])
    data = ("", "/metrics", "/evaluations", "/progress", "/rollouts", "/rollouts/0", "/distributions", "/checkpoints")
    pages = ("", "/rollouts", "/rollouts/0", "/steps/1", "/config", "/checkpoints", "/logs")
    paths = [*(f"/data/runs/RUN{one}" for one in data), *(f"/runs/RUN{one}" for one in pages)]
    command = [sys.executable, "-c", WITHOUT_TRAIN, *paths, "/data/compare?run=RUN&run=OTHER", "/runs"]
    done = subprocess.run(command, cwd=runs.folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'whet[train]'") == 1
