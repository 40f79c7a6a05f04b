"""What setting up `.venv-parity` decides: which Python, whether anything changed, what is recorded of a failure."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parity_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a directory of its own to work in."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("parity_venv", ROOT / "scripts" / "parity_venv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv-parity"
    monkeypatch.setattr(module, "VENV", str(venv))
    monkeypatch.setattr(module, "STAMP", str(venv / "whet-parity.json"))
    monkeypatch.setattr(module, "LOG", str(venv / "whet-parity.log"))
    monkeypatch.setattr(module.setup_venv, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "own_python", lambda: (sys.executable, (3, 12, 1)))
    monkeypatch.setattr(sys, "argv", ["parity_venv.py"])
    return module


def answer(commands: list[list[str]], failing: str = "", output: str = ""):
    """A `run_merged` that notes commands, makes what `venv` makes, and fails where a command names `failing`."""

    def run(command):
        commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        bad = bool(failing) and failing in " ".join(command)
        return subprocess.CompletedProcess(command, int(bad), stdout=output if bad else "")

    return run


def stamp(module: ModuleType) -> dict:
    return json.loads(Path(module.STAMP).read_text())


def test_it_installs_what_is_pinned_and_then_starts_nothing(parity_venv, monkeypatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(parity_venv, "run_merged", answer(commands))
    assert parity_venv.main() == 0
    assert [command[-1] for command in commands[1:]] == [part[-1] for part in parity_venv.PARTS.values()]
    assert all(parity_venv.CONSTRAINTS in command for command in commands[1:])
    assert stamp(parity_venv)["missing"] == {}
    started = len(commands)
    assert parity_venv.main() == 0
    assert len(commands) == started


def test_other_pins_make_it_anew(parity_venv, monkeypatch, tmp_path) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(parity_venv, "run_merged", answer(commands))
    parity_venv.main()
    started = len(commands)
    pins = tmp_path / "parity.txt"
    pins.write_text("verifiers==0.1.14\n")
    monkeypatch.setattr(parity_venv, "CONSTRAINTS", str(pins))
    parity_venv.main()
    assert len(commands) == 2 * started


@pytest.mark.parametrize(("argument", "code"), [(None, 0), ("--strict", 1)])
def test_without_a_network_the_reason_is_recorded_and_it_is_tried_again(
    parity_venv, monkeypatch, argument, code
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, *([argument] if argument else [])])
    commands: list[list[str]] = []
    monkeypatch.setattr(parity_venv, "run_merged", answer(commands, "pip", "NameResolutionError"))
    assert parity_venv.main() == code
    missing = stamp(parity_venv)["missing"]
    assert set(missing) == set(parity_venv.PARTS)
    assert "could not be reached" in missing["verifiers"]
    started = len(commands)
    parity_venv.main()
    assert len(commands) > started


def test_what_cannot_be_compiled_does_not_take_the_rest_with_it(parity_venv, monkeypatch) -> None:
    monkeypatch.setattr(parity_venv, "run_merged", answer([], "reasoning-gym", "error: command 'gcc' failed"))
    assert parity_venv.main() == 0
    assert list(stamp(parity_venv)["missing"]) == ["games"]
    assert "gcc" in stamp(parity_venv)["missing"]["games"]
    commands: list[list[str]] = []
    monkeypatch.setattr(parity_venv, "run_merged", answer(commands))
    assert parity_venv.main() == 0
    assert [command[-3:] for command in commands] == [list(parity_venv.PARTS["games"])]
    assert stamp(parity_venv)["missing"] == {}


def test_too_new_python_falls_back_or_is_named(parity_venv, monkeypatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(parity_venv, "run_merged", answer(commands))
    monkeypatch.setattr(parity_venv, "own_python", lambda: ("/usr/bin/python3.14", (3, 14, 0)))
    monkeypatch.setattr(parity_venv, "other_pythons", lambda: {"/b": (3, 13, 2)})
    assert parity_venv.main() == 0
    assert commands[0][0] == "/b"
    monkeypatch.setattr(parity_venv, "other_pythons", dict)
    assert parity_venv.main() == 0
    assert stamp(parity_venv)["missing"]["verifiers"] == "verifiers 0.1.14 needs Python 3.11 to 3.13, and here is 3.14"


def test_it_pins_everything_exactly_and_no_torch() -> None:
    lines = [line for line in (ROOT / "requirements" / "parity.txt").read_text().splitlines() if line[0] != "#"]
    assert all(line.count("==") == 1 for line in lines)
    names = [line.split("==")[0].lower() for line in lines]
    assert "verifiers==0.1.14" in lines
    assert not [name for name in names if name.startswith(("torch", "nvidia", "triton"))]
