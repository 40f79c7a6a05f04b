"""The package that a push takes: found, checked, built, its version raised."""

from __future__ import annotations

import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from whet.authoring.scaffold import init_package
from whet.errors import ConfigError
from whet.hub.client import package


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[package.PackageSource, package.Built]:
    """One package, built once: a build in isolation installs its tools first."""
    folder = tmp_path_factory.mktemp("built")
    made = init_package("letter-game", "single", folder / "environments").folder
    (made / "settings.env").write_text("OPENAI_API_KEY=sk-proj-Zk3xQ9vT7bN2mL5pR8wJ4hF6\n")
    (made / "data.bin").write_bytes(random.Random(0).randbytes(6 << 20))
    into = folder / "out"
    into.mkdir()
    source = package.read_source(made)
    return source, package.build(source, into)


@pytest.mark.parametrize(
    ("version", "taken", "following"),
    [
        ("1.2.3", [], "1.2.4"),
        ("1.2.3", ["1.2.3", "1.2.9"], "1.2.10"),
        ("1.2", ["1.2"], "1.2.1"),
        ("2", [], "2.0.1"),
        ("1.0.0", ["1.1.0rc1"], "1.1.0"),
    ],
)
def test_next_version_is_above_all_that_are_taken(version: str, taken: list[str], following: str) -> None:
    assert package.next_version(version, taken) == following


def test_raising_the_version_changes_that_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    text = '# keep\n[tool.x]\nversion = "0.1.0"\n\n[project]\nname = "word-game"\nversion = \'0.1.0\'  # mine\n'
    file.write_text(text)
    source = package.write_version(package.read_source(tmp_path), "0.1.1")
    assert source.version == "0.1.1"
    assert file.read_text() == text.replace("'0.1.0'", "'0.1.1'")


def test_a_version_that_is_not_on_a_line_of_its_own_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('project = {name = "word-game", version = "0.1.0"}\n')
    with pytest.raises(ConfigError, match="by hand"):
        package.write_version(package.read_source(tmp_path), "0.1.1")
    assert "0.1.0" in file.read_text()


@pytest.mark.parametrize(
    ("project", "said"),
    [
        ('version = "1.0"', "has no name"),
        ('name = "word-game"', "has no version"),
        ('name = "word-game"\nversion = "one"', "is no version"),
        ('name = "json"\nversion = "1.0"', "reserved"),
        ('name = "word-game"\nversion = "1.0+local"', "local part"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_package_that_no_hub_takes_is_refused_before_it_is_built(tmp_path: Path, project: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{project}\n")
    with pytest.raises(ConfigError, match=said):
        package.read_source(tmp_path)


def test_a_package_is_found_by_folder_and_by_name(home: Path) -> None:
    made = init_package("letter-game").folder.resolve()
    assert {package.find_source(target).folder for target in ("letter-game", "letter_game", str(made))} == {made}
    with pytest.raises(ConfigError, match="whet env init"):
        package.find_source("other-game")


def test_a_build_has_both_archives_and_warns_of_secrets_and_large_files(
    built: tuple[package.PackageSource, package.Built],
) -> None:
    _, archives = built
    assert [archive.kind for archive in (archives.wheel, archives.sdist)] == ["wheel", "sdist"]
    assert "letter_game.py" in dict(archives.wheel.files)
    said = "\n".join(archives.warnings)
    assert "settings.env" in said
    assert "data.bin has 6 MiB" in said
    assert "sk-proj" not in said


def test_a_source_archive_is_unpacked_without_its_top_folder(
    built: tuple[package.PackageSource, package.Built], tmp_path: Path
) -> None:
    source, archives = built
    package.unpack(archives.sdist.path, tmp_path / "new")
    assert (tmp_path / "new" / "letter_game.py").read_bytes() == (source.folder / "letter_game.py").read_bytes()


def test_unpacking_writes_over_nothing(built: tuple[package.PackageSource, package.Built], tmp_path: Path) -> None:
    (tmp_path / "letter_game.py").write_text("mine")
    with pytest.raises(FileExistsError):
        package.unpack(built[1].sdist.path, tmp_path)
    assert (tmp_path / "letter_game.py").read_text() == "mine"


def test_what_a_failed_build_prints_is_shown(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "word-game"\nversion = "1.0"\n'
    )
    (tmp_path / "backend.py").write_text("raise SystemExit('no build today')")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=r"could not be built[\s\S]*no build today"):
        package.build(package.read_source(tmp_path), tmp_path / "out")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_uncommitted_changes_are_those_of_the_folder(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.py").write_text("a")
    assert package.uncommitted(inside) == []
    git("init")
    assert len(package.uncommitted(inside)) == 1
    git("add", ".")
    git("commit", "-m", "a")
    (tmp_path / "outside.py").write_text("b")
    assert package.uncommitted(inside) == []


def test_archives_of_equal_sources_are_equal(built: tuple[package.PackageSource, package.Built]) -> None:
    with tarfile.open(built[1].sdist.path) as tar:
        assert {member.mtime for member in tar} == {int(package.EPOCH)}
