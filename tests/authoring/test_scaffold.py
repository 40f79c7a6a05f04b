"""`whet env init`: what it writes works at once, under any name, and it never writes over anything."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import whet
from whet.authoring.review.check import check_environment
from whet.authoring.scaffold import KINDS, TEMPLATES, init_package, names_of
from whet.errors import ConfigError
from whet.rl.config import load_run_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    "kind", [kind if kind == "single" else pytest.param(kind, marks=pytest.mark.parts) for kind in KINDS]
)
def test_new_package_passes_tests_and_review(kind: str) -> None:
    made = init_package("brand-new", kind)
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(made.folder))
    assert tests.returncode == 0, tests.stdout
    assert check_environment("brand-new", tasks=1).findings == ()


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_does_not_spoil_the_code(kind: str) -> None:
    for name in ("a", "a-rather-long-name-of-words"):
        folder = init_package(name, kind).folder
        assert list(folder.glob("**/*my_env*")) == []
        assert not any("my-env" in path.read_text() for path in folder.rglob("*") if path.is_file())
        settings = (
            "--config",
            str(ROOT / "pyproject.toml"),
            "--config",
            f'src = ["{ROOT / "src"}", "{folder.absolute()}"]',
        )
        assert run("-m", "ruff", "check", *settings, str(folder)).stdout == "All checks passed!\n"


@pytest.mark.parametrize("name", ["my-env", "my-environment", "not-my-env", "my-env-my-env"])
def test_a_name_that_contains_the_templates_name_is_written_as_it_is(name: str) -> None:
    """`my-env` is also the name that the templates have themselves."""
    for kind in KINDS:
        shutil.rmtree("environments", ignore_errors=True)
        made = init_package(name, kind)
        names, other = names_of(name), init_package("brand-new", kind)
        assert set(made.files) == {path.replace("brand_new", names.module) for path in other.files}
        for path in other.files:
            expected = (other.folder / path).read_text()
            for old, new in (("brand-new", names.id), ("brand_new", names.module), ("BrandNewEnv", names.cls)):
                expected = expected.replace(old, new)
            assert (made.folder / path.replace("brand_new", names.module)).read_text() == expected
    assert load_run_config(made.folder / "train.toml", []).env[0].id == name


@pytest.mark.parametrize("kind", KINDS)
def test_templates_are_formatted_and_have_disjoint_splits(kind: str) -> None:
    assert "crc32" in (TEMPLATES / kind / "my_env.py").read_text()
    assert run("-m", "ruff", "format", "--check", str(TEMPLATES / kind)).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_config_loads_and_names_the_environment(kind: str) -> None:
    made = init_package("brand-new", kind)
    config = load_run_config(made.folder / "train.toml", [])
    assert [env.id for env in config.env] == ["brand-new"]


def test_the_package_lies_in_environments_where_its_id_finds_it() -> None:
    made = init_package("word_game", "tool")
    assert made.folder == Path("environments/word_game")
    assert isinstance(whet.load_environment(made.id), whet.ToolEnv)
    assert made.commands[0] == "whet eval run word-game -n 4"


def test_elsewhere_the_commands_and_the_config_name_its_path() -> None:
    made = init_package("word-game", "single", Path("mine"))
    assert made.commands[:2] == ("whet eval run mine/word_game -n 4", "whet train run mine/word_game/train.toml")
    assert load_run_config(made.folder / "train.toml", []).env[0].id == "mine/word_game"
    assert init_package("word-game", "single", Path(".")).commands[0] == "whet eval run ./word_game -n 4"
    odd = init_package("word-game", "single", Path('my-env "2"\\'))
    assert load_run_config(odd.folder / "train.toml", []).env[0].id == str(odd.folder)
    assert shlex.split(odd.commands[0]) == ["whet", "eval", "run", str(odd.folder), "-n", "4"]


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "mine"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="exists already"):
        init_package("mine")
    assert list(folder.iterdir()) == []


def test_where_no_folder_can_be_made_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is not a folder"):
        init_package("mine", "single", Path("file"))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Word Game", "For example: word-game"),
        ("2048", "a letter first"),
        ("a--b", "single dashes"),
        ("../up", "For example: up"),
        ("x" * 61, "at most 60"),
        ("", "cannot be the name"),
        ("class", "a word of Python's own"),
        ("json", "standard library"),
        ("whet", "something else"),
        ("pytest", "is installed already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_what_would_do(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        init_package(name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_has_one_spelling_for_each_use() -> None:
    names = names_of("word_game")
    assert (names.id, names.module, names.cls) == ("word-game", "word_game", "WordGameEnv")
    assert names_of("my-own-env").cls == "MyOwnEnv"


def test_an_installed_whet_has_the_templates_too(tmp_path: Path) -> None:
    built = run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("whet-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    script = "import sys; sys.path.insert(0, 'installed'); from whet.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for kind in KINDS:
        done = run("-P", "-c", script, "env", "init", f"made-{kind}", "--kind", kind)
        assert done.returncode == 0, done.stderr
        module = tmp_path / "environments" / f"made_{kind}" / f"made_{kind}.py"
        assert module.read_text() == (TEMPLATES / kind / "my_env.py").read_text().replace(
            "my_env", f"made_{kind}"
        ).replace("MyEnv", f"Made{kind.capitalize()}Env")
