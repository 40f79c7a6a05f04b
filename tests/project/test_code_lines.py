"""`scripts/code_lines.py`: what is counted, and when it refuses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A docstring
of two lines."""

# a comment
def f() -> str:
    """Another."""
    return """one
two"""
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    module = importlib.import_module("code_lines")
    (tmp_path / "src/whet/room").mkdir(parents=True)
    (tmp_path / "src/whet/room/a.py").write_text(SOURCE)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "src/whet")
    monkeypatch.setattr(sys, "argv", ["code_lines"])
    return module


def test_code_lines_are_neither_comments_nor_docstrings(script: ModuleType) -> None:
    assert script.code_lines(SOURCE) == 3


@pytest.mark.parametrize(("lines", "files", "code"), [(3, 1, 0), (2, 1, 1), (3, 0, 1)])
def test_more_than_allowed_is_refused(
    script: ModuleType, capsys: pytest.CaptureFixture[str], lines: int, files: int, code: int
) -> None:
    (script.ROOT / "pyproject.toml").write_text(f"[tool.whet]\ncode_lines = {lines}\nfiles = {files}\n")
    assert script.main() == code
    assert ("remove 1, or raise tool.whet." in capsys.readouterr().out) == bool(code)
