"""The scripts that set up virtual environments beside `.venv`, with a directory of their own and no pip."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


class Setup:
    """One such script, and the commands that it has started."""

    def __init__(self, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        self.script = importlib.import_module(script)
        self.side: ModuleType = importlib.import_module("side_venv")
        self.venv = self.side.SideVenv(str(tmp_path / self.script.VENV.name))
        self.commands: list[list[str]] = []
        self.failing, self.output = "", ""  # what a command that fails has in it, and what pip says then
        self._patch = monkeypatch
        self.replace(VENV=self.venv, own_python=lambda: (sys.executable, (3, 12, 1)))
        monkeypatch.setattr(self.script.setup_venv, "ROOT", str(tmp_path))
        monkeypatch.setattr(self.side, "run_merged", self._run)
        self.arguments()

    def replace(self, **names: object) -> None:
        for name, value in names.items():
            self._patch.setattr(self.script, name, value)

    def arguments(self, *arguments: str) -> None:
        self._patch.setattr(sys, "argv", ["script", *arguments])

    def fail(self, failing: str, output: str) -> None:
        self.failing, self.output = failing, output

    def main(self) -> list[list[str]]:
        """Run it; the commands that it started."""
        begin = len(self.commands)
        self.code = self.script.main()
        return self.commands[begin:]

    def missing(self) -> dict[str, str]:
        missing: dict[str, str] = json.loads(Path(self.venv.stamp).read_text())["missing"]
        return missing

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        bad = bool(self.failing) and self.failing in " ".join(command)
        return subprocess.CompletedProcess(command, int(bad), stdout=self.output if bad else "")


@pytest.fixture
def setup_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Setup]:
    """`setup_script("parity_venv")`."""
    return lambda script: Setup(script, tmp_path, monkeypatch)
