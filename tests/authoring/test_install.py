"""`whet env install`, by a real pip into a real environment, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from whet.authoring import install
from whet.authoring.install import divide
from whet.errors import ConfigError

pytestmark = pytest.mark.parts

ROOT = Path(__file__).parents[2]
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.5"
dependencies = {dependencies}

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]

[tool.hatch.build]
dev-mode-dirs = ["."]
"""
EXTRA = '[project.optional-dependencies]\ndev = ["good-env"]\n\n'
Whet = Callable[..., subprocess.CompletedProcess[str]]


def write(folder: Path, name: str, code: str, *dependencies: str) -> Path:
    module = name.replace("-", "_")
    (folder / module).mkdir(parents=True)
    text = PYPROJECT.format(name=name, module=module, dependencies=json.dumps(dependencies))
    (folder / module / "pyproject.toml").write_text(text)
    (folder / module / f"{module}.py").write_text(code)
    return folder / module


HARMLESS = {"good_env.py": "def load_environment(): ...\n", "good_env_data/model.pth": "weights\n"}
INTRUDERS: dict[str, tuple[dict[str, str], str]] = {
    "pth": ({"zz.pth": "import os\n"}, "carries zz.pth, which every Python that starts here would run"),
    "pth-data": ({"{data}/data/{site}/zz.pth": "import os\n"}, "zz.pth, which every Python"),
    "pth-platlib": ({"{data}/platlib/zz.PTH": "import os\n"}, "zz.PTH, which every Python"),
    "customize": ({"sitecustomize.py": "\n"}, "carries sitecustomize, which every Python"),
    "ours": ({"whet/errors.py": "\n"}, "carries a package whet, which hides whet's own"),
    "alias": ({"verifiers/__init__.py": "\n"}, "carries a package verifiers"),
    "added": ({"pydantic/__init__.py": "\n"}, "carries a package pydantic, which hides "),
    "helper": ({"helper_lib.py": "FACTOR = 3\n"}, "helper_lib.py, a file of helper-lib"),
    "package": ({"helper_lib/__init__.py": "\n"}, "carries a package helper_lib, which hides "),
    "compiled": ({"helper_lib.abi3.so": "\n"}, "carries a package helper_lib, which hides "),
    "command": ({"{info}/entry_points.txt": "[console_scripts]\npython = bad:main\n"}, "replace the command python"),
    "command-case": (
        {"{info}/Entry_Points.txt": "", "{info}/entry_points.TXT": "[console_scripts]\npython = bad:main\n"},
        "replace the command python",
    ),
    "program": ({"{data}/scripts/python": "#!/bin/sh\n"}, "would replace "),
}


def write_wheel(folder: Path, name: str, files: dict[str, str], *requires: str) -> None:
    """A wheel with exactly these files."""
    stem = f"{name.replace('-', '_')}-1.0"
    site = f"lib/python3.{sys.version_info[1]}/site-packages"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    own = {
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": "",
    }
    named = {
        path.format(data=f"{stem}.data", info=f"{stem}.dist-info", site=site): text for path, text in files.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in {**named, **own}.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def whet(tmp_path_factory: pytest.TempPathFactory) -> Whet:
    """`whet` in a virtual environment of its own, which sees this one's packages and installs into itself.

    Its index is a folder with one wheel, whose own requirement is verifiers.
    """
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "venv", symlinks=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "base.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "index"),
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_CONFIG_FILE": os.devnull,
    }
    helper = write(folder, "helper-lib", "FACTOR = 2\n", "verifiers<0.2,>=0.1.3")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "index"), str(helper)]
    subprocess.run(build, check=True, env={**os.environ, **settings})
    old = """
        import verifiers as vf
        from helper_lib import FACTOR

        def load_environment():
            rows = [{"question": str(n), "answer": str(n * FACTOR)} for n in range(3)]
            return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
    """
    write(
        folder / "environments",
        "old-env",
        "\n".join(line[8:] for line in old.splitlines()),
        "verifiers>=0.1.8",
        "helper-lib>=1",
        "whet",
    )
    write(folder, "new-env", "", "verifiers>=0.2")
    extra = write(folder / "environments", "extra-env", "def load_environment(): ...\n", "whet") / "pyproject.toml"
    text = extra.read_text().replace("[tool.hatch.build.targets.wheel]", EXTRA + "[tool.hatch.build.targets.wheel]")
    extra.write_text(text)
    write(folder, "near-env", "def load_environment(): ...\n", "whet")
    write_wheel(folder / "index", "good-env", HARMLESS, "verifiers")
    write_wheel(folder / "index", "leads-to-pth", {"leads_to_pth.py": "\n"}, "bad-pth")
    for name, (files, _) in INTRUDERS.items():
        write_wheel(folder / "index", f"bad-{name}", files)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        python = folder / "venv" / "bin" / "python"
        command = [str(python), "-P", *arguments]
        return subprocess.run(
            command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="module")
def editable(whet: Whet) -> subprocess.CompletedProcess[str]:
    """The installation of a package that requires verifiers, editable."""
    done = whet("-m", "whet.cli.main", "env", "install", "old-env", "-e", "--json")
    assert done.returncode == 0, done.stderr
    return done


def test_verifiers_package_installs_without_verifiers(whet: Whet, editable: subprocess.CompletedProcess[str]) -> None:
    (installed,) = json.loads(editable.stdout)
    assert (installed["id"], installed["version"], installed["editable"]) == ("old-env", "1.5", True)
    assert installed["dependencies"] == ["helper-lib 1.5"]
    assert installed["left_out"] == ["verifiers>=0.1.8", "verifiers<0.2,>=0.1.3"]
    script = (
        "import importlib.metadata, sys, whet; print(len(whet.load_environment('old-env').get_dataset()), "
        "sys.modules['old_env'].__file__, 'verifiers' in {each.name for each in importlib.metadata.distributions()})"
    )
    count, origin, has_verifiers = whet("-c", script).stdout.split()
    assert (count, has_verifiers) == ("3", "False")
    assert origin.endswith("environments/old_env/old_env.py")  # editable: the module is where it was


def test_what_pip_cannot_find_is_told_in_its_words(whet: Whet) -> None:
    done = whet("-m", "whet.cli.main", "env", "install", "no-such-package")
    assert done.returncode == 2
    assert "pip could not install that" in done.stderr
    assert "no-such-package" in done.stderr
    assert "Traceback" not in done.stderr


def test_setuptools_loads_after_an_install_in_the_same_process(tmp_path: Path) -> None:
    """Its import hook gives distutils up where pip is looked for, and torch.compile needs setuptools."""
    pytest.importorskip("setuptools")
    script = (
        "from whet.authoring.install import install_environment\nfrom whet.errors import ConfigError\n"
        "try:\n    install_environment('./nothing-here')\nexcept ConfigError:\n"
        "    import setuptools\n    print('loaded')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("loaded\n", "")


def test_a_package_for_a_newer_verifiers_is_refused(whet: Whet) -> None:
    done = whet("-m", "whet.cli.main", "env", "install", "./new_env")
    assert done.returncode == 2
    assert "requires verifiers>=0.2, and whet replaces verifiers 0.1 only" in done.stderr


@pytest.fixture(scope="module")
def refusals(whet: Whet, editable: subprocess.CompletedProcess[str]) -> list[str]:
    """What is said of each wheel, by the Python that it would be installed into."""
    code = """if True:
        import sys
        from pathlib import Path
        from whet.authoring.install import check_wheels
        from whet.errors import WhetError
        for name in sys.argv[1:]:
            (wheel,) = Path("index").glob(f"bad_{name}-*.whl")
            try:
                check_wheels([wheel])
                print("accepted")
            except WhetError as error:
                print(error)
    """
    done = whet("-c", code, *(name.replace("-", "_") for name in INTRUDERS))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", INTRUDERS)
def test_wheel_with_foreign_files_is_refused(refusals: list[str], name: str) -> None:
    refusal = refusals[list(INTRUDERS).index(name)]
    assert f"bad-{name} 1.0 was not installed, since its wheel" in refusal
    assert INTRUDERS[name][1] in refusal


def installed_files(whet: Whet) -> dict[Path, bytes]:
    """Everything in the Python that is installed into, with its content."""
    prefix = Path(whet("-c", "import sys; print(sys.prefix)").stdout.strip())
    return {path: path.read_bytes() for path in prefix.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize("name", ["pth", "helper"])
@pytest.mark.usefixtures("editable")
def test_refused_wheel_leaves_the_environment_unchanged(whet: Whet, name: str) -> None:
    before = installed_files(whet)
    done = whet("-B", "-m", "whet.cli.main", "env", "install", f"bad-{name}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"bad-{name} 1.0 was not installed, since its wheel" in done.stderr
    assert INTRUDERS[name][1] in done.stderr
    assert "Traceback" not in done.stderr
    assert installed_files(whet) == before


def test_dependency_with_foreign_files_is_refused_with_its_parent(whet: Whet) -> None:
    before = installed_files(whet)
    done = whet("-B", "-m", "whet.cli.main", "env", "install", "leads-to-pth")
    assert (done.returncode, "bad-pth 1.0 was not installed" in done.stderr) == (2, True)
    assert installed_files(whet) == before


@pytest.mark.usefixtures("editable")
def test_a_package_that_is_installed_again_replaces_its_own_files(whet: Whet) -> None:
    for _ in range(2):
        done = whet("-m", "whet.cli.main", "env", "install", "good-env")
        assert done.returncode == 0, done.stderr
    again = [whet("-m", "whet.cli.main", "env", "install", "old-env", *options) for options in ((), ("-e",), ("-e",))]
    assert [one.returncode for one in again] == [0, 0, 0]
    said = [[line for line in one.stdout.splitlines() if "instead of the editable" in line] for one in again]
    assert [len(lines) for lines in said] == [1, 0, 0]
    assert "old-env from file:///" in said[0][0]
    assert "/environments/old_env; " in said[0][0]
    frozen = whet(
        "-m",
        "pip",
        "freeze",
        "--path",
        whet("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip(),
    ).stdout
    assert "good-env==1.0" in frozen  # and not a path of a file that is gone


@pytest.mark.parametrize(
    ("target", "folder", "dependencies"),
    [
        ("extra-env[dev]", "environments/extra_env[dev]", ["good-env 1.0"]),
        ("Near-Env", "near_env", []),
    ],
)
def test_capitals_and_extras_mean_the_folder_of_that_name(
    whet: Whet, target: str, folder: str, dependencies: list[str]
) -> None:
    whet("-m", "pip", "uninstall", "--yes", "good-env")
    done = whet("-m", "whet.cli.main", "env", "install", target, "--json")
    assert done.returncode == 0, done.stderr
    (installed,) = json.loads(done.stdout)
    assert installed["source"].endswith(f"/{folder}")
    assert installed["dependencies"] == dependencies


@pytest.mark.parametrize(
    ("target", "folder"),
    [
        ("Extra_Env", "environments/extra_env"),
        ("extra-env[dev]", "environments/extra_env[dev]"),
        ("environments/extra_env[dev]", "environments/extra_env[dev]"),
        ("Near-Env", "near_env"),
        ("near.env[none]", "near_env[none]"),
    ],
)
def test_folders_are_found_by_names_with_capitals_and_extras(
    target: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "environments", "extra-env", "")
    write(tmp_path, "near-env", "")
    monkeypatch.chdir(tmp_path)
    base, extras = install._divided(target)
    assert f"{install._source(base, target)}{extras}" == str(tmp_path / folder)


@pytest.mark.parametrize(
    ("requirement", "left_out"),
    [
        ("verifiers", ["verifiers"]),
        ("verifiers[all]>=0.1.3.post0", ["verifiers[all]>=0.1.3.post0"]),
        ("Verifiers ==0.1.9.post1", ["Verifiers==0.1.9.post1"]),
        ("verifiers; python_version < '3'", []),
        ("verifiers-extra", []),
    ],
)
def test_what_whet_stands_in_for_is_told_from_the_rest(requirement: str, left_out: list[str]) -> None:
    assert divide([requirement], "some-env")[1] == left_out


def test_markers_and_extras_decide_what_is_installed() -> None:
    lines = ["numpy>=2", "torch; extra == 'train'", "tomli; python_version < '3'", "whet[math]"]
    assert divide(lines, "some-env") == (["numpy>=2", "whet[math]"], [])
    assert divide(lines, "some-env", ["train"]) == (["numpy>=2", "torch", "whet[math]"], [])


@pytest.mark.parametrize("requirement", ["verifiers>=0.2", "verifiers==0.0.9", "verifiers>=1"])
def test_another_contract_is_refused(requirement: str) -> None:
    with pytest.raises(ConfigError, match=r"replaces verifiers 0\.1 only"):
        divide([requirement], "some-env")
