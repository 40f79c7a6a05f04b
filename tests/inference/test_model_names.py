"""Names of models: where each kind is found, and what is said where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.inference.weights import gguf_files

from whet.errors import ModelLoadError
from whet.inference import model_names
from whet.inference.model_names import PACKAGED, find_local, on_this_machine, packaged_file, resolve_model
from whet.models import tiny
from whet.models.local_models import local_models


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that holds a model under the short name `mini`; its file."""
    folder = tmp_path / "site" / "mini_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('the package itself is not imported')\n")
    gguf_files.write(folder / "mini.gguf")
    monkeypatch.syspath_prepend(str(folder.parent))
    one = replace(PACKAGED["smollm2-135m"], distribution="mini-model", file="mini_model/mini.gguf")
    monkeypatch.setitem(model_names.PACKAGED, "mini", one)
    return folder / "mini.gguf"


def test_whet_tiny_is_its_directory() -> None:
    assert find_local("whet/tiny") == resolve_model("whet/tiny") == on_this_machine("whet/tiny") == tiny.path()


def test_a_directory_is_itself_and_wins_over_an_id_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert find_local("owner/name") is None
    monkeypatch.chdir(tmp_path)
    assert find_local("owner/name") == Path("owner/name")


def test_a_short_name_is_the_file_of_an_installed_package(package: Path) -> None:
    assert packaged_file("mini") == package
    assert find_local("mini") is None
    assert on_this_machine("mini") is None
    directory = resolve_model("mini")
    assert find_local("mini") == on_this_machine("mini") == directory
    assert {"model": "mini", "size_mb": 0.1, "where": str(package)} in local_models()


def test_a_short_name_that_is_not_here_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(PACKAGED["smollm2-135m"], file="no_such_package/model.gguf")
    monkeypatch.setitem(model_names.PACKAGED, "smollm2-135m", missing)
    with pytest.raises(ModelLoadError, match="`whet model get smollm2-135m` downloads it"):
        resolve_model("smollm2-135m")
    [row] = [row for row in local_models() if row["model"] == "smollm2-135m"]
    assert row["where"].startswith("not here: whet model get smollm2-135m")


@pytest.mark.parametrize("name", ["nothing-here", "./no/such", "/no/such/model", "~/no-such-model", "a/b/c"])
def test_a_name_of_no_kind_lists_the_kinds(name: str) -> None:
    with pytest.raises(
        ModelLoadError, match=r"whet/tiny, smollm2-135m, a directory .* a \.gguf file, or a Hugging Face"
    ):
        find_local(name)
