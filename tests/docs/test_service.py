"""`docs/guides/service.sh`: from an empty folder to a trained model that a service on this machine serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import host

SCRIPT = Path(__file__).parents[2] / "docs" / "guides" / "service.sh"
SECONDS = 570

for module in ("fastapi", "sqlalchemy", "torch", "openai"):
    pytest.importorskip(module)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The folder of a `whet` of this Python."""
    try:
        host()
    except SandboxUnavailableError as error:
        pytest.skip(f"runs are kept apart by bubblewrap: {error}")
    whet = tmp_path / "programs" / "whet"
    whet.parent.mkdir()
    whet.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m whet.cli.main "$@"\n')
    whet.chmod(0o755)
    return whet.parent


@pytest.mark.parts
def test_the_script_submits_trains_serves_and_evaluates(programs: Path, tmp_path: Path) -> None:
    work, home = tmp_path / "service", tmp_path / "home"
    home.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WHET_", "COV_", "PYTEST_"))}
    env |= {"PATH": f"{programs}{os.pathsep}{env['PATH']}", "HOME": str(home), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    output = tmp_path / "output"
    with output.open("wb") as printed:
        process = subprocess.Popen(
            ["bash", str(SCRIPT), str(work)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=tmp_path,
        )
        try:
            code = process.wait(SECONDS)
        finally:
            process.terminate()  # its trap stops the service
            process.wait()
    text = output.read_text(encoding="utf-8", errors="replace")
    assert code == 0, text + (work / "service.log").read_text()
    assert "done: " in text
    assert "whet_" not in text  # no token is printed

    run = json.loads((work / "project" / "run.json").read_text())
    assert (run["owner"], run["name"], run["kind"], run["new"]) == ("ann", "first", "training", True)
    assert (work / "project" / "adapter" / "adapter_config.json").is_file()
    rewards = (work / "project" / "service.csv").read_text().splitlines()
    assert rewards[0].startswith("step,reward/")
    assert len(rewards) == 4
    [evaluation] = work.glob("project/outputs/evals/*/*/metadata.json")
    assert json.loads(evaluation.read_text())["config"]["model"] == "whet/tiny:first"
    held = [path for path in work.rglob("*") if path.is_file() and b"not-for-everyone" in path.read_bytes()]
    assert held == [work / "project" / "secrets.env"]
