"""Environment packages of the hub, installed for runs: what is visible, what is verified, two at once, failures."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.hub.domain.accounts import add_account
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, EnvironmentRow, Membership, StoredFile, Version
from whet.service.runner.environments import Builder, _installed, packages_of
from whet.system import untrusted

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

    def add(self, wheel: Any, owner: str = "ann", visibility: str = "PRIVATE") -> str:
        """The id of a version with this wheel."""
        content = wheel.bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        source = self.data / "source.whl"
        source.write_bytes(content)
        self.store.add(source, sha256)
        with self.database.write() as session:
            account = session.query(Account).filter_by(name=owner).one_or_none()
            account = account or add_account(session, owner, "user", "", 0.0)
            values = {"visibility": visibility, "summary": "", "created_at": 0.0, "updated_at": 0.0}
            environment = session.query(EnvironmentRow).filter_by(owner=account, name=wheel.name).one_or_none()
            environment = environment or EnvironmentRow(owner=account, name=wheel.name, **values)
            file = StoredFile(kind="wheel", filename=wheel.filename, size=len(content), sha256=sha256)
            texts = dict.fromkeys(("summary", "readme", "readme_type", "requires_python", "yanked_reason"), "")
            version = Version(
                environment=environment,
                version=wheel.version,
                files=[file],
                requires_dist=re.findall(r"Requires-Dist: (.*)", wheel.more),
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


def test_what_a_library_carries_for_itself_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As setuptools does, which torch.compile imports: its folder of packages is on sys.path from then on."""
    before = _installed()
    (carried := tmp_path / "platformdirs-4.2.2.dist-info").mkdir()
    (carried / "METADATA").write_text("Metadata-Version: 2.1\nName: platformdirs\nVersion: 4.2.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert _installed() == before != {}


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


@contextlib.contextmanager
def index(*wheels: Any) -> Iterator[str]:
    """The address of a package index of somewhere else, on the loopback interface."""
    files = {f"/files/{wheel.filename}": wheel.bytes() for wheel in wheels}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/simple/").strip("/")
            links = [f'<a href="/files/{one.filename}">{one.filename}</a>' for one in wheels if one.name == name]
            body = files.get(self.path, "".join(links).encode())
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html" if links else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
        finally:
            server.shutdown()


@pytest.fixture
def _upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")


def installed_in(python: Path) -> list[str]:
    return sorted(path.name.removesuffix(".dist-info") for path in python.parents[1].rglob("*.dist-info"))


@pytest.mark.parts
@pytest.mark.usefixtures("_upstream")
def test_no_line_of_a_dependency_runs_while_it_is_installed(shelf: Shelf, packages: Any, tmp_path: Path) -> None:
    """pip imports `_manylinux` where there is one, and Python each module that a `.pth` file names."""
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'a').write(__name__)\n"
    helper = packages.Wheel(name="helper", code="X = 1\n", files={"_manylinux.py": code.encode()})
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: helper\n"))
    with index(helper) as address:
        python = shelf.python(wanted, upstream=address)
    assert installed_in(python) == ["helper-1.0.0", "word_game-1.0.0"]
    assert not ran.exists()
    # It is code of the run: there, and only there, it runs.
    subprocess.run([python, "-c", "import _manylinux"], check=True)
    assert ran.read_text() == "_manylinux"
    assert not (python.parents[1] / "wheels").exists()
    assert not (python.parents[1] / "scratch").exists()


@pytest.mark.parts
@pytest.mark.usefixtures("_upstream")
@pytest.mark.parametrize("file", ["_distutils_hack.py", "pluggy.py", "pluggy/__init__.py", "pydantic/main.py", "x.pth"])
def test_a_dependency_that_stands_before_the_runners_packages_is_refused(
    shelf: Shelf, packages: Any, tmp_path: Path, file: str
) -> None:
    ran = tmp_path / "ran"
    code = f"import os; open({str(ran)!r}, 'a').write(__name__)\n".encode()
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: helper\n"))
    with (
        index(packages.Wheel(name="helper", code="X = 1\n", files={file: code})) as address,
        pytest.raises(ConfigError, match=r"(?s)cannot be installed: helper 1\.0\.0 was not installed, since its wheel"),
    ):
        shelf.python(wanted, upstream=address)
    assert not ran.exists()
    assert list((shelf.data / "environments").iterdir()) == []


@pytest.mark.parts
def test_installing_is_isolated_and_of_the_runs_user(
    shelf: Shelf, packages: Any, apart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = apart.user_of("a run")
    given: list[tuple[int, set[int]]] = []
    give = untrusted.give

    def note(directory: Path, name: str, to: int) -> None:
        given.append((to, {path.lstat().st_uid for path in (directory / name).rglob("site-packages/*")}))
        give(directory, name, to)

    monkeypatch.setattr(untrusted, "give", note)
    wanted = shelf.add(packages.Wheel())
    with shelf.database.read() as session:
        chosen = packages_of(session, [wanted], "ann", "ann")
    builder = Builder(shelf.data, shelf.store, apart, hidden=[shelf.data])
    python = builder.python_with(chosen, user)
    if user is not None:  # made by the run's user, and the runner's from then on
        assert given == [(user, set()), (os.geteuid(), {user})]
    owners = {path.lstat().st_uid for path in python.parents[1].rglob("*")}
    assert owners == {os.geteuid()}
    done = subprocess.run([python, "-c", LOOK, wanted], capture_output=True, text=True, check=False)
    assert done.stdout.split()[:3] == ["ann", "word-game", "1.0.0"], done.stderr


def organisation(shelf: Shelf, packages: Any, visibility: str = "PUBLIC") -> str:
    """An environment of acme, where cat is a member, that requires its private `utils`."""
    private = packages.Wheel(name="utils", version="1.0.0", code="FROM = 'acme'\n")
    shelf.add(private, "acme")
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: utils>=1\n"), "acme", visibility)
    with shelf.database.write() as session:
        cat = add_account(session, "cat", "user", "", 0.0)
        session.flush()
        acme = session.query(Account).filter_by(name="acme").one()
        session.add(Membership(owner_id=acme.id, user_id=cat.id, role=1))
    return wanted


@pytest.mark.parts
@pytest.mark.usefixtures("_upstream")
def test_a_private_package_comes_from_the_hub_and_no_other_index(
    shelf: Shelf, packages: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = organisation(shelf, packages)
    other = packages.Wheel(name="utils", version="99.0", code="FROM = 'elsewhere'\n")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / other.filename).write_bytes(other.bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    with index(other) as address:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", address)
        monkeypatch.setenv("PIP_INDEX_URL", address)
        for owner, user in (("acme", "ann"), ("cat", "cat")):
            python = shelf.python(wanted, owner=owner, user=user)
            assert installed_in(python) == ["utils-1.0.0", "word_game-1.0.0"]
        with pytest.raises(ConfigError, match=r"(?s)cannot be installed.*utils"):  # it may not see it
            shelf.python(wanted, owner="eve", user="eve")
    shelf.add(packages.Wheel(name="utils", version="1.1.0", code="FROM = 'acme'\n"), "acme")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    newer = shelf.python(wanted, owner="cat", user="cat")
    assert newer != python
    assert installed_in(newer) == ["utils-1.1.0", "word_game-1.0.0"]


@pytest.mark.parts
@pytest.mark.usefixtures("_upstream")
def test_a_package_of_elsewhere_cannot_bring_one_of_an_organisations_name(shelf: Shelf, packages: Any) -> None:
    shelf.add(packages.Wheel(name="utils", code="FROM = 'acme'\n"), "acme")
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: between\n"), "acme")
    between = packages.Wheel(name="between", code="", more="Requires-Dist: utils\n")
    other = packages.Wheel(name="utils", version="99.0", code="FROM = 'elsewhere'\n")
    with index(between, other) as address, pytest.raises(ConfigError, match=r"(?s)cannot be installed.*utils"):
        shelf.python(wanted, owner="acme", upstream=address)


@pytest.mark.parts
@pytest.mark.usefixtures("_upstream")
def test_a_runner_that_ends_waits_for_no_index(shelf: Shelf, packages: Any, apart: Any) -> None:
    wanted = shelf.add(packages.Wheel(more="Requires-Dist: helper\n"))
    leaving, requested = threading.Event(), threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.set()
            leaving.wait()

    def leave() -> None:
        requested.wait()
        leaving.set()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/simple/"
        threading.Thread(target=leave, daemon=True).start()
        with pytest.raises(ConfigError, match="took more than"):
            shelf.python(wanted, upstream=address, isolation=apart, leaving=leaving)
        server.shutdown()
    assert requested.is_set()
    assert list((shelf.data / "environments").iterdir()) == []


def test_one_name_of_two_organisations_is_refused(shelf: Shelf, packages: Any) -> None:
    wanted = [
        shelf.add(packages.Wheel(name=f"game-of-{owner}", more="Requires-Dist: utils\n"), owner, "PUBLIC")
        for owner in ("acme", "bob")
    ]
    shelf.add(packages.Wheel(name="utils", code=""), "acme", "PUBLIC")
    with pytest.raises(ConfigError, match="require two packages utils: of another index and of acme"):
        shelf.python(*wanted)


def test_a_version_that_is_gone_is_named(shelf: Shelf) -> None:
    with pytest.raises(ConfigError, match=r"^environment 'ann/none@1' is not on this hub any more"):
        shelf.python("ann/none@1")


def test_a_run_whose_environment_cannot_be_installed_fails_with_the_reason(working: Any) -> None:
    run = working.queue.submit(environments=["ann/none@1"], skip_action_check=True)
    row = working.end(working.runner("true"), run)
    assert row.state == "failed"
    assert row.reason.startswith("environment 'ann/none@1' is not on this hub")
