"""What setting up `.venv-parity` decides: which Python, whether anything changed, what is recorded of a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parity(setup_script):
    return setup_script("parity_venv")


def test_it_installs_what_is_pinned_and_then_starts_nothing(parity) -> None:
    _, *installs = parity.main()
    assert parity.code == 0
    assert [command[-1] for command in installs] == [part[-1] for part in parity.script.PARTS.values()]
    assert all(parity.script.CONSTRAINTS in command for command in installs)
    assert parity.missing() == {}
    assert parity.main() == []


def test_other_pins_make_it_anew(parity, tmp_path) -> None:
    first = parity.main()
    pins = tmp_path / "parity.txt"
    pins.write_text("verifiers==0.1.14\n")
    parity.replace(CONSTRAINTS=str(pins))
    assert len(parity.main()) == len(first)


@pytest.mark.parametrize(("argument", "code"), [(None, 0), ("--strict", 1)])
def test_without_a_network_the_reason_is_recorded_and_it_is_tried_again(parity, argument, code) -> None:
    parity.arguments(*[argument] if argument else [])
    parity.fail("install", "NameResolutionError")
    parity.main()
    assert parity.code == code
    assert set(parity.missing()) == set(parity.script.PARTS)
    assert "could not be reached" in parity.missing()["verifiers"]
    assert parity.main() != []


def test_what_cannot_be_compiled_does_not_take_the_rest_with_it(parity) -> None:
    parity.fail("reasoning-gym", "error: command 'gcc' failed")
    parity.main()
    assert parity.code == 0
    assert list(parity.missing()) == ["games"]
    assert "gcc" in parity.missing()["games"]
    parity.fail("", "")
    assert [command[-3:] for command in parity.main()] == [list(parity.script.PARTS["games"])]
    assert parity.missing() == {}


def test_too_new_python_falls_back_or_is_named(parity) -> None:
    parity.replace(own_python=lambda: ("/usr/bin/python3.14", (3, 14, 0)), other_pythons=lambda: {"/b": (3, 13, 2)})
    assert parity.main()[0][0] == "/b"
    parity.replace(other_pythons=dict)
    parity.main()
    assert parity.code == 0
    assert parity.missing()["verifiers"] == "verifiers 0.1.14 needs Python 3.11 to 3.13, and here is 3.14"


def test_it_pins_everything_exactly_and_no_torch() -> None:
    lines = [line for line in (ROOT / "requirements" / "parity.txt").read_text().splitlines() if line[0] != "#"]
    assert all(line.count("==") == 1 for line in lines)
    names = [line.split("==")[0].lower() for line in lines]
    assert "verifiers==0.1.14" in lines
    assert not [name for name in names if name.startswith(("torch", "nvidia", "triton"))]


def test_uv_installs_it_and_pip_what_uv_cannot(parity, tmp_path, monkeypatch) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(uv.parent / "python"))
    parity.fail("uv pip install", "No solution found")
    _, *installs = parity.main()
    assert [command[0] for command in installs] == [str(uv), sys.executable] * len(parity.script.PARTS)
    assert parity.missing() == {}
    assert parity.main() == []
