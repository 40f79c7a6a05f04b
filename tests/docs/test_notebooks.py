"""The notebooks run from their first cell to their last, and show what their text says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.rl.monitors.jsonl import read_evaluations

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook in an empty folder, with this Python, and returns what its cells print."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    (folder := tmp_path / "work").mkdir()

    def execute(name: str) -> str:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        return "".join(output.get("text", "") for output in outputs)

    return execute


def rewards(run: Path) -> list[float]:
    return [report.scores[0].reward for report in read_evaluations(run / "evals.jsonl")]


def test_notebooks_are_kept_without_outputs() -> None:
    import json

    assert NAMES == ["distil", "environment", "train"]
    for name in NAMES:
        cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if "outputs" in cell)


@pytest.mark.parts
def test_write_an_environment(execute: Any) -> None:
    said = execute("environment")
    assert "'aeiouaei'   1.00" in said
    assert "'rhythm'     0.00" in said
    assert "0 errors" in said
    assert "readiness" in said


@pytest.mark.parts
def test_train_and_look(execute: Any, tmp_path: Path) -> None:
    said = execute("train")
    before, after = rewards(tmp_path / "work" / "runs" / "vowels")
    assert before < 0.5 < 0.9 < after
    assert "policy/entropy" in said


@pytest.mark.parts
def test_distil_a_teacher(execute: Any, tmp_path: Path) -> None:
    said = execute("distil")
    [teacher, student] = ([*rewards(tmp_path / "work" / "runs" / name)] for name in ("teacher", "student"))
    assert student[-1] > 0.9 * teacher[-1] > 0.8
    assert "student: " in said
    assert "with 64 rollouts" in said
