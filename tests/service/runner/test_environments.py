"""Environment packages of the hub, installed for runs: what is visible, what is verified, two at once, failures."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.hub.domain.accounts import add_account
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, EnvironmentRow, StoredFile, Version
from whet.service.runner.environments import Builder, packages_of

PACKAGES = Path(__file__).parents[2] / "hub" / "packages.py"


@pytest.fixture
def database_url() -> None:
    """The kind of the database plays no part."""


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed suffices; pip asks no server."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def packages() -> Any:
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("hub_packages", PACKAGES)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["hub_packages"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Shelf:
    """A hub's database and store with wheels in them."""

    def __init__(self, database: Any, data: Path) -> None:
        self.database, self.data = database, data
        self.store = FileStore(str(data / "files"))

    def add(self, wheel: Any, owner: str = "ann") -> str:
        """The id of a version with this wheel."""
        content = wheel.bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        source = self.data / "source.whl"
        source.write_bytes(content)
        self.store.add(source, sha256)
        with self.database.write() as session:
            account = session.query(Account).filter_by(name=owner).one_or_none()
            account = account or add_account(session, owner, "user", "", 0.0)
            values = {"visibility": "PRIVATE", "summary": "", "created_at": 0.0, "updated_at": 0.0}
            environment = EnvironmentRow(owner=account, name=wheel.name, **values)
            file = StoredFile(kind="wheel", filename=wheel.filename, size=len(content), sha256=sha256)
            texts = dict.fromkeys(("summary", "readme", "readme_type", "requires_python", "yanked_reason"), "")
            version = Version(
                environment=environment,
                version=wheel.version,
                files=[file],
                requires_dist=[],
                core_metadata=b"",
                pushed_by=owner,
                created_at=0.0,
                downloads=0,
                **texts,
            )
            session.add_all([environment, version])
        return f"{owner}/{wheel.name}@{wheel.version}"

    def python(self, *environments: str, owner: str = "ann", user: str = "ann", **more: Any) -> Path:
        with self.database.read() as session:
            packages = packages_of(session, environments, owner, user)
        return Builder(self.data, self.store, **more).python_with(packages)


@pytest.fixture
def shelf(database: Any, tmp_path: Path) -> Shelf:
    return Shelf(database, tmp_path)


LOOK = """
import sys, whet
from importlib.util import find_spec
from whet.envs.identity.record import identify
found = identify(sys.argv[1])
print(found.owner, found.name, found.version, whet.__file__, find_spec('pytest').origin)
print(whet.load_environment(sys.argv[1]).env_id)
"""


@pytest.mark.parts
def test_an_installed_environment_is_verified_and_nothing_else_is_installed(shelf: Shelf, packages: Any) -> None:
    import whet

    wanted = shelf.add(packages.Wheel(more="Requires-Dist: whet\nRequires-Dist: numpy\nRequires-Dist: verifiers\n"))
    python = shelf.python(wanted)
    done = subprocess.run([python, "-c", LOOK, wanted], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["ann", "word-game", "1.0.0", whet.__file__, pytest.__file__, wanted], done.stderr
    installed = sorted(path.name for path in python.parents[1].glob("lib/python*/site-packages/*.dist-info"))
    assert installed == ["word_game-1.0.0.dist-info"]
    assert shelf.python(wanted) == python
    assert [path.name for path in (shelf.data / "environments").iterdir()] == [python.parents[1].name]


@pytest.mark.parts
def test_two_runners_may_install_the_same_at_once(shelf: Shelf, packages: Any) -> None:
    wanted = shelf.add(packages.Wheel())
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(shelf.python(wanted))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(list((shelf.data / "environments").iterdir())) == 1


@pytest.mark.parts
def test_another_version_of_what_is_installed_is_refused_in_pips_words(shelf: Shelf, packages: Any) -> None:
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: numpy<1\n"))
    with pytest.raises(ConfigError, match=r"(?s)^environment 'ann/word-game@1\.0\.0' cannot be installed: .*numpy<1"):
        shelf.python(wanted)
    assert list((shelf.data / "environments").iterdir()) == []


@pytest.mark.parts
def test_a_wheel_that_is_damaged_in_the_store_is_refused(shelf: Shelf, packages: Any) -> None:
    wanted = shelf.add(packages.Wheel())
    [stored] = [path for path in (shelf.data / "files").rglob("*") if path.is_file()]
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"(?s)cannot be installed.*hash"):
        shelf.python(wanted)


def test_a_version_that_is_gone_is_named(shelf: Shelf) -> None:
    with pytest.raises(ConfigError, match=r"^environment 'ann/none@1' is not on this hub any more"):
        shelf.python("ann/none@1")


def test_a_run_whose_environment_cannot_be_installed_fails_with_the_reason(working: Any) -> None:
    run = working.queue.submit(environments=["ann/none@1"], skip_action_check=True)
    row = working.end(working.runner("true"), run)
    assert row.state == "failed"
    assert row.reason.startswith("environment 'ann/none@1' is not on this hub")
