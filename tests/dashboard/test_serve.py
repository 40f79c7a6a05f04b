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

from .conftest import Runs


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
    assert (
        done.stderr.strip() == "error: the dashboard needs the 'hub' extra. Install it with: pip install 'whet[hub]'."
    )
