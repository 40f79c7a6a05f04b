"""Every public name of the 0.1.14 wheel is there under the alias, or in the list of what is not and what to do instead.

The names are data, read from the wheel by `tests/parity/public_names.py`; a test there holds the two together.
"""

import importlib
import json
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import whet
from whet.compat.alias import advice_on
from whet.compat.gaps import BROUGHT, GAPS, instead_of

HERE = Path(__file__).parents[1]
NAMES = json.loads((HERE / "parity" / "verifiers-0.1.14.json").read_text())
DOCUMENT = (HERE.parent / "docs" / "migrating.md").read_text()


@pytest.fixture(scope="module")
def missing():
    """`verifiers.…` modules and names that do not resolve."""
    whet.install_verifiers_alias()
    found = []
    for module, names in NAMES.items():
        try:
            there = importlib.import_module(module)
        except ImportError:
            found.append(module)
        else:
            found += [f"{module}.{name}" for name in names if not hasattr(there, name)]
    return found


def test_what_is_missing_is_listed_with_what_to_do_instead(missing):
    assert [name for name in missing if instead_of(name) is None] == []


def test_what_is_listed_is_missing(missing):
    patterns = [pattern for patterns in GAPS for pattern in patterns]
    assert [one for one in patterns if not any(fnmatchcase(name, one) for name in missing)] == []


def test_the_core_of_the_contract_is_there(missing):
    rooms = ("verifiers.parsers", "verifiers.rubrics.rubric", "verifiers.decorators", "verifiers.envs.multiturn_env")
    assert [name for name in missing if name.startswith(rooms)] == []


def test_the_document_shows_the_list():
    for patterns, instead in GAPS.items():
        names = ", ".join(f"`{pattern.removeprefix('verifiers.')}`" for pattern in patterns)
        assert f"| {names} | {instead} |" in DOCUMENT


def test_a_module_that_there_is_not_says_what_to_do():
    whet.install_verifiers_alias()
    with pytest.raises(ModuleNotFoundError, match="Instead: a `StatefulToolEnv`"):
        import verifiers.envs.integrations.browser_env  # noqa: F401


def test_an_environment_that_imports_what_there_is_not_is_told_what_to_do(tmp_path):
    path = tmp_path / "needs_trainer.py"
    path.write_text("from verifiers import GRPOTrainer\n")
    with pytest.raises(whet.WhetError, match=r"cannot import name 'GRPOTrainer'.*Instead: training: `whet train run`"):
        whet.load_environment(str(path))


@pytest.mark.parametrize(
    "line",
    [
        "from verifiers.v1 import Trace",
        "from verifiers import Rollouts2",
        "import verifiers.v1.cli.validate",
        "import verifiers.v1 as vf; vf.Trace",
    ],
)
def test_names_of_later_releases_say_that_another_release_is_needed(tmp_path, line):
    path = tmp_path / "needs_later_release.py"
    path.write_text(f"{line}\n")
    with pytest.raises(whet.WhetError, match=r"verifiers 0\.1\.14, which it replaces, has none either: this") as caught:
        whet.load_environment(str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("another release") == 1


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("line", ["from verifiers import Rollouts2", "def load_environment(): raise KeyError('x')"])
def test_a_package_that_requires_a_later_release_says_so(tmp_path, monkeypatch, line, installed):
    name = f"needs_later_{installed}_{len(line)}".lower()
    folder = tmp_path / name
    folder.mkdir()
    (folder / f"{name}.py").write_text(f"{line}\n")
    if installed:
        info = folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Dist: verifiers>=0.2\n"
        )
        monkeypatch.syspath_prepend(str(folder))
    else:
        (folder / "pyproject.toml").write_text('[project]\ndependencies = ["numpy", "verifiers>=0.2"]\n')
    with pytest.raises(whet.WhetError, match=r"requires verifiers>=0\.2, and whet replaces verifiers 0\.1") as caught:
        whet.load_environment(name if installed else str(folder))
    assert "\n" not in str(caught.value)


def test_a_package_that_requires_0_1_is_not_said_to_need_another(tmp_path):
    folder = tmp_path / "needs_this_contract"
    folder.mkdir()
    (folder / "needs_this_contract.py").write_text("raise KeyError('x')\n")
    for requirement in ("verifiers>=0.1.9", "verifiers[rl]", "verifiers 2 ]", "verifiers>=0.1.15.dev0"):
        (folder / "pyproject.toml").write_text(f'[project]\ndependencies = ["{requirement}"]\n')
        with pytest.raises(whet.WhetError) as caught:
            whet.load_environment(str(folder))
        assert "replaces" not in str(caught.value)


def test_what_came_with_verifiers_is_an_extra_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    path = tmp_path / "needs_datasets.py"
    path.write_text("from datasets import Dataset\n")
    with pytest.raises(whet.WhetError, match=r"Install it with: pip install 'whet\[datasets\]'"):
        whet.load_environment(str(path))


def test_each_of_them_is_an_extra_of_the_project():
    extras = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(BROUGHT.values()) <= set(extras)
    assert advice_on(ModuleNotFoundError("No module named 'numpy'", name="numpy")) == ""
    assert advice_on(ImportError("cannot import name 'nothing' from 'json' (json.py)", name="json")) == ""
