"""Packages for `verifiers.v1` under 0.1.14 and under whet: what the model was shown, and every row.

What differs on purpose is taken out below, by its number in docs/design/tasksets.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sides import ROOT, VENV, require

HERE = Path(__file__).parent
pytestmark = pytest.mark.parts

RUNS = ["typed configs", "a wrong answer", "tools", "a user", "a known solution", "the openai client"]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What both did, by library and run."""
    require("verifiers")
    folder = tmp_path_factory.mktemp("tasksets")
    seen = {}
    for library in ("verifiers", "whet"):
        output = folder / f"{library}.json"
        path = f"{ROOT / 'src'}{os.pathsep}{HERE}" if library == "whet" else str(HERE)
        command = [VENV / "bin/python", HERE / "taskset_driver.py", library, HERE / "packages_v1", output]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        run = subprocess.run(list(map(str, command)), env=environment, cwd=folder, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-3000:]
        seen[library] = json.loads(output.read_text())
    return seen


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs on purpose."""
    row = {key: value for key, value in row.items() if key not in row["metrics"]}  # difference 31
    row.pop("tool_defs", None)  # 2
    row["completion"] = row["completion"] or []  # 3
    for message in row["completion"]:
        if message["role"] == "tool" and "nowhere" in message["content"]:
            message["content"] = "there is no such tool"  # repair 11 of docs/design/environments.md
    return row


def shown(request: dict[str, Any]) -> dict[str, Any]:
    messages = [
        "there is no such tool" if message["role"] == "tool" and "nowhere" in message["content"] else message
        for message in request["prompt"]
    ]
    return {"prompt": messages, "tools": request["tools"] or [], "model": request["model"]}


@pytest.mark.parametrize("run", RUNS)
def test_the_model_is_shown_the_same(found, run: str) -> None:
    old, new = (found[library][run] for library in ("verifiers", "whet"))
    assert [shown(request) for request in new["requests"]] == [shown(request) for request in old["requests"]]


@pytest.mark.parametrize("run", RUNS)
def test_the_rows_are_the_same(found, run: str) -> None:
    old, new = (found[library][run] for library in ("verifiers", "whet"))
    assert [comparable(row) for row in new["rows"]] == [comparable(row) for row in old["rows"]]
    assert new["groups"] == old["groups"]


def test_every_run_was_observed(found) -> None:
    assert set(found["verifiers"]) == set(found["whet"]) == set(RUNS)
