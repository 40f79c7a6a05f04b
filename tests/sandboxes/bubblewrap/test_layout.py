"""What of a file system is shown to a sandbox and what is hidden, on trees of plain files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap.layout import ELSEWHERE, Layout, layouts, links_to_python

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with packages in every place that one may have them, and a conda in /usr/local that runs whet."""
    folders = (
        "usr/bin",
        "usr/lib/python3/dist-packages/pip",
        "usr/lib64/python3.12/site-packages",
        "usr/src/app",
        "usr/share/my-venv/lib/site",
        "usr/local/lib/python3.11/site-packages/code_tests",
        "usr/local/cuda/bin",
        f"usr/local/miniconda/lib/{PYTHON}/site-packages/whet",
        "usr/local/miniconda/bin",
        "usr/local/miniconda/pkgs",
    )
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/local/miniconda/bin" / PYTHON).write_text("")
    (tmp_path / "bin").symlink_to("usr/bin")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "usr/local/miniconda"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "usr/share/my-venv"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "usr/bin"), str(tmp_path / "usr/share/my-venv/lib/site")])
    return tmp_path


def names(root: Path, paths: tuple[str, ...]) -> list[str]:
    return sorted(str(Path(path).relative_to(root)) for path in paths)


def test_packages_are_hidden_wherever_they_lie(machine: Path) -> None:
    layout = layouts(machine)[0]
    assert names(machine, layout.packages) == [
        "usr/lib/python3/dist-packages",
        "usr/lib64/python3.12/site-packages",
        "usr/local/lib/python3.11/site-packages",
        f"usr/local/miniconda/lib/{PYTHON}/site-packages",
    ]


def test_folders_without_a_standard_name_are_hidden_and_a_venv_too(machine: Path) -> None:
    hidden = names(machine, layouts(machine)[0].hidden)
    assert hidden == ["usr/local/cuda", "usr/local/miniconda", "usr/share/my-venv", "usr/src"]


def test_of_a_prefix_elsewhere_its_interpreter_and_libraries_are_shown(machine: Path) -> None:
    layout = layouts(machine)[0]
    assert layout.python == str(machine / "usr/local/miniconda/bin" / PYTHON)
    assert names(machine, tuple(inside for _, inside in layout.interpreter)) == [
        f"usr/local/miniconda/bin/{PYTHON}",
        "usr/local/miniconda/lib",
    ]
    assert (PYTHON, str(machine / "usr/local/miniconda/bin/python3")) in layout.links
    words = layout.arguments(with_pip=False)
    order = [words.index(str(machine / path)) for path in ("usr", "usr/local/miniconda", "usr/local/miniconda/lib")]
    assert order == sorted(order), "a folder is hidden after the one above it is shown, and before one in it is"


def test_home_prefix_is_mounted_outside_sandbox_folders(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = machine / "home/alice/.pyenv"
    home.parent.mkdir(parents=True)
    (machine / "usr/local/miniconda").rename(home)
    monkeypatch.setattr(sys, "base_prefix", str(home))
    layout = layouts(machine)[0]
    assert layout.python == f"{ELSEWHERE}/bin/{PYTHON}"
    assert layout.interpreter == (
        (str(home / "bin" / PYTHON), f"{ELSEWHERE}/bin/{PYTHON}"),
        (str(home / "lib"), f"{ELSEWHERE}/lib"),
    )
    assert f"{ELSEWHERE}/lib/{PYTHON}/site-packages" in layout.packages
    assert (PYTHON, f"{ELSEWHERE}/bin/python3") in layout.links
    assert str(home) not in " ".join((*layout.packages, *layout.hidden))


def test_the_installer_is_shown_to_a_sandbox_with_a_network_alone(machine: Path) -> None:
    layout = layouts(machine)[0]
    pip = str(machine / "usr/lib/python3/dist-packages/pip")
    assert pip not in layout.arguments(with_pip=False)
    assert pip in layout.arguments(with_pip=True)


def test_what_is_hidden_cannot_be_written_to() -> None:
    layout = Layout((), ("/usr",), "/usr/bin/python3", hidden=("/usr/src",), packages=("/usr/lib/p",))
    assert layout.seal() == ["--remount-ro", "/usr/src", "--remount-ro", "/usr/lib/p"]


def test_links_to_python_are_followed_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("venv/bin", "home/bin", "opt/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "opt/bin/python3.12").touch()
    (tmp_path / "home/bin/python3").symlink_to("../../opt/bin/python3.12")
    (tmp_path / "venv/bin/python3").symlink_to(tmp_path / "home/bin/python3")
    (tmp_path / "venv/bin/python").symlink_to("python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    found = links_to_python([tmp_path / "venv", tmp_path / "opt"])
    assert found == [("../../opt/bin/python3.12", tmp_path / "home/bin/python3")]
