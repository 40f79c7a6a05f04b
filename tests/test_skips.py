"""Skips that are not listed fail a run under continuous integration, in one process and with pytest-xdist."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = Path(__file__).with_name("skips.py")
PLUGIN = """
import importlib.util
spec = importlib.util.spec_from_file_location("skips", {skips!r})
skips = importlib.util.module_from_spec(spec)
spec.loader.exec_module(skips)

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(skips.Skips(skips.Path({entries!r})))
"""
ENTRIES = """
[[skip]]
test = "*test_some.py::test_listed"
says = "no such program*"
because = "It is not there."
"""
LISTED = "import pytest\ndef test_listed(): pytest.skip('no such program: x')\ndef test_runs(): pass\n"
UNLISTED = """
import pytest
def test_other(): pytest.skip('no such program: x')
@pytest.mark.skipif(True, reason='too slow')
def test_listed(): pass
"""
MODULE = "import pytest\npytest.importorskip('no_module_of_this_name')\n"


def run(folder: Path, ci: bool, *options: str, entries: str = ENTRIES, **files: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(PLUGIN.format(skips=str(SKIPS), entries=str(folder / "skips.toml")))
    (folder / "skips.toml").write_text(entries)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **({"CI": "true"} if ci else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    done = subprocess.run([*command, "."], capture_output=True, text=True, env=env, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["one process", "xdist"])
def test_skips_that_are_not_listed_fail_under_ci_and_are_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said = run(tmp_path, True, *options, some=UNLISTED, more=MODULE)
    assert code == 1, said
    assert "test_some.py::test_other: no such program: x" in said
    assert "test_some.py::test_listed: too slow" in said
    assert "test_more.py: could not import 'no_module_of_this_name'" in said


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["one process", "xdist"])
def test_a_listed_skip_passes_under_ci(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said = run(tmp_path, True, *options, some=LISTED)
    assert code == 0, said
    assert "does not list" not in said


def test_elsewhere_a_skip_that_is_not_listed_is_named_and_passes(tmp_path: Path) -> None:
    code, said = run(tmp_path, False, some=LISTED, more=UNLISTED)
    assert code == 0, said
    assert "test_more.py::test_other: no such program: x" in said


def test_a_list_without_reasons_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, True, entries=ENTRIES.replace("It is not there.", " "), some=LISTED)
    assert code != 0
    assert "should have because, says, test" in said


def test_the_list_of_this_project_can_be_read_and_names_files_that_are_there() -> None:
    spec = importlib.util.spec_from_file_location("skips", SKIPS)
    assert spec is not None
    assert spec.loader is not None
    skips = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(skips)
    for entry in skips.read_list():
        file = entry["test"].partition("::")[0]
        assert "*" in file or (SKIPS.parents[1] / file).is_file(), f"{file} is not there"
