"""`docs/guides/service.sh`: from an empty folder to a trained model that a service on this machine serves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.docs.guide_scripts import run_script

from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import host

SCRIPT = Path(__file__).parents[2] / "docs" / "guides" / "service.sh"

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
    work = tmp_path / "service"
    code, text = run_script(SCRIPT, programs, work, tmp_path / "home")
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
