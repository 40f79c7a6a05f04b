"""A rollout of `CliAgentEnv` under 0.1.14 and under whet: the same turns, scores, stops and completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sides import VENV, require

DRIVER = Path(__file__).with_name("agent_driver.py")


@pytest.mark.parts
@pytest.mark.parametrize("max_turns", [-1, 2])
def test_agent_has_the_same_rollout(tmp_path: Path, bubblewrap: None, held_port: int, max_turns: int) -> None:
    require("verifiers")
    results = {}
    for side, python in (("verifiers", str(VENV / "bin/python")), ("whet", sys.executable)):
        output = tmp_path / f"{side}.json"
        command = [python, str(DRIVER), side, str(held_port), str(max_turns), str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr[-3000:]
        results[side] = json.loads(output.read_text())
    assert results["whet"] == results["verifiers"]
    assert len(results["whet"]["steps"]) == (3 if max_turns < 0 else 2)
    assert results["whet"]["reward"] == (1.0 if max_turns < 0 else 0.0)
