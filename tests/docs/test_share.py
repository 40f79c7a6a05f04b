"""`docs/guides/share.sh`, from an empty folder to training on an environment of a hub, in a Python of its own."""

from __future__ import annotations

import fcntl
import json
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.docs.guide_scripts import run_script

from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import host

SCRIPT = Path(__file__).parents[2] / "docs" / "guides" / "share.sh"

for module in ("fastapi", "sqlalchemy", "torch"):
    pytest.importorskip(module)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The folder of a `whet` whose Python has the packages of this one, and installs into itself alone."""
    try:
        host()
    except SandboxUnavailableError as error:
        pytest.skip(f"packages are tried out in bubblewrap: {error}")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    packages.joinpath("outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    whet = home / "bin" / "whet"
    whet.write_text(f'#!/bin/sh\nexec "{python}" -m whet.cli.main "$@"\n')
    whet.chmod(0o755)
    return whet.parent


@pytest.mark.parts
def test_the_script_shares_an_environment_and_trains_on_it(programs: Path, tmp_path: Path) -> None:
    work = tmp_path / "share"
    code, text = run_script(SCRIPT, programs, work, tmp_path / "home")
    assert code == 0, text
    assert "pushed ann/word-game@0.1.0 (PRIVATE)" in text
    assert "installed word-game 0.1.0" in text
    assert "removed word-game 0.1.0" in text
    assert "whet_" not in text  # no token is printed
    assert "warning" not in text

    [evaluation] = work.glob("trainer/outputs/evals/*/*/metadata.json")
    evaluated = json.loads(evaluation.read_text())["environment"]
    trained = json.loads((work / "trainer/runs/share/environments.json").read_text())["trained"]
    assert (evaluated["owner"], evaluated["name"], evaluated["version"]) == ("ann", "word-game", "0.1.0")
    assert trained["word-game"]["id"] == "ann/word-game@0.1.0"
    assert trained["word-game"]["wheel"] == evaluated["wheel"]
    assert len(evaluated["wheel"]) == 64
    assert (work / "trainer/runs/share/model").is_dir()
    assert not list(programs.parent.glob("lib/*/site-packages/word_game*"))
    with (work / "hub" / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the hub has ended
