"""What the code of a run finds of the service, of other runs and of the machine: nothing but its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.envs.loading import locate
from whet.errors import SandboxUnavailableError
from whet.service.runner import isolation
from whet.system.children import began


@pytest.fixture
def database_url() -> None:
    """SQLite: the kind of the database plays no part here; `test_kills.py` has both."""


# Tries to read everything that it is given on its command line, and what /proc has of every process it sees.
SPY = r"""
import glob, json, os, sys
found = {"uid": os.getuid(), "secret": None, "read": [], "environ": [], "processes": 0}
for path in sys.argv[1:]:
    for name in ([path] if not os.path.isdir(path) else [os.path.join(path, one) for one in os.listdir(path)]):
        try:
            open(name, "rb").read(1)
            found["read"].append(name)
        except OSError:
            pass
        try:
            open(name + ".spy", "w").close()
        except OSError:
            pass
for path in glob.glob("/proc/[0-9]*"):
    found["processes"] += 1
    for name in ("environ", "cmdline"):
        try:
            if b"can" + b"ary" in open(f"{path}/{name}", "rb").read():
                found["environ"].append(path)
        except OSError:
            pass
with open("../run.json", "w") as file:
    json.dump(found, file)
"""


def test_python_that_is_reached_by_a_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = isolation.choose("bubblewrap")
    link = tmp_path / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(link))
    assert isolation._problem(chosen) is None


def spy(*paths: Path) -> Any:
    return lambda python, job, folder: [str(python), "-I", "-c", SPY, *map(str, paths)]


def test_run_code_reads_nothing_of_the_service_or_of_other_runs(isolated: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config" / "whet").mkdir(parents=True)
    (home / ".config" / "whet" / "hub.json").write_text("canary")
    (tmp_path / "secrets.key").write_text("canary")
    environment = dict(os.environ, WHET_HUB_SECRETS_KEY="canary")
    service = subprocess.Popen([sys.executable, "-c", "input()", "canary"], stdin=subprocess.PIPE, env=environment)
    try:
        other = isolated.queue.submit(secrets={"API_KEY": "canary-of-the-other"})
        first = isolated.runner("while ! [ -e ../go ]; do sleep 0.05; done")
        isolated.running(first, other)
        run = isolated.queue.submit(secrets={"API_KEY": "own-secret"})
        folder = isolated.folder(run)
        everything = (
            *(
                tmp_path / "hub.sqlite",
                tmp_path / "hub.sqlite-wal",
                tmp_path / "secrets.key",
                home / ".config" / "whet",
            ),
            *(isolated.folder(other).path, isolated.attempt(other).path, isolated.folder(other).submission),
            *(folder.path / "attempts", folder.path / "attempts" / "1", tmp_path, tmp_path / "runs"),
            *(Path("/dev/shm"), Path("/etc/shadow"), Path.home() / ".bashrc", Path(f"/proc/{service.pid}/environ")),
        )
        first.workshop = isolated.workshop(spy(*everything))
        assert isolated.end(first, run).state == "finished", isolated.said()
        found = json.loads((folder.path / "run.json").read_text())
        assert [one for one in found["read"] if not one.endswith(".spy")] == ["/dev/shm/whet-secrets.json"]
        assert found["environ"] == []
        assert found["processes"] < 10
        assert [path for path in tmp_path.rglob("*.spy") if not path.is_relative_to(folder.path)] == []
        if os.getuid() == 0:
            assert found["uid"] != 0
        (isolated.folder(other).path / "go").touch()
        isolated.end(first, other)
    finally:
        service.communicate(b"\n")


def test_a_stop_reaches_an_isolated_run_by_its_process_of_this_machine(isolated: Any) -> None:
    run = isolated.queue.submit()
    runner = isolated.runner("trap 'exit 143' TERM; while :; do sleep 0.05; done")
    found = isolated.running(runner, run)
    assert found["run"]["pid"] != found["shim"]["pid"]

    def stop(session: Any) -> None:
        from whet.service.storage.tables import RunRow

        session.get_one(RunRow, run).stop_requested_at = 1.0

    isolated.queue.change(stop)
    assert isolated.end(runner, run).state == "stopped"


def test_a_killed_shim_leaves_an_isolated_run_to_the_next(isolated: Any) -> None:
    run = isolated.queue.submit()
    runner = isolated.runner("while ! [ -e ../go ]; do sleep 0.05; done; echo went")
    before = isolated.running(runner, run)
    os.kill(before["shim"]["pid"], 9)
    identity = isolated.attempt(run).identity
    isolated.until(runner, lambda: json.loads(identity.read_text())["shim"] != before["shim"])
    after = json.loads(identity.read_text())
    assert after["run"] == before["run"]
    assert began(after["run"]["pid"]) == after["run"]["process_began"]
    (isolated.folder(run).path / "go").touch()
    isolated.until(runner, lambda: isolated.queue.run(run).attempt == 2 or isolated.queue.run(run).ended_at)
    assert isolated.attempt(run, 1).output.read_text() == "went\n"


def test_killing_the_run_ends_everything_in_its_process_table(isolated: Any) -> None:
    run = isolated.queue.submit()
    runner = isolated.runner("setsid sleep 987654 & echo started; while :; do sleep 0.05; done")
    found = isolated.running(runner, run)
    isolated.until(runner, lambda: "started" in isolated.output(run))
    os.kill(found["run"]["pid"], 9)
    assert isolated.end(runner, run).state == "failed"
    isolated.until(runner, lambda: not any(b"987654" in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_sandbox_of_an_environment_starts_inside(isolated: Any, bubblewrap: None) -> None:
    code = "from whet.sandboxes.bubblewrap.host import host; host(); print('sandboxed')"
    run = isolated.queue.submit()
    row = isolated.end(isolated.runner(lambda python, job, folder: [str(python), "-c", code]), run)
    assert row.state == "finished", isolated.said()
    assert isolated.output(run).endswith("sandboxed\n")


def test_what_a_run_adds_to_the_model_cache_is_its_own(
    isolated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isolated.apart.overlays:
        pytest.skip("this bubblewrap or kernel has no overlays")
    shared = tmp_path / "cache" / "hub"
    shared.mkdir(parents=True)
    (shared / "known").write_text("model")
    (shared.parent / "token").write_text("canary")
    monkeypatch.setenv("HF_HOME", str(shared.parent))
    script = "cat ~/.cache/huggingface/hub/known; echo bad > ~/.cache/huggingface/hub/known; ls ~/.cache/huggingface"
    runner = isolated.runner(script)
    run = isolated.queue.submit()
    isolated.end(runner, run)
    assert isolated.output(run).startswith("model")
    assert "token" not in isolated.output(run)
    assert (shared / "known").read_text() == "model"


def test_auto_insists_on_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(own_network: bool) -> Any:
        raise SandboxUnavailableError("bwrap is missing. Or use the docker backend.")

    monkeypatch.setattr(isolation, "_tried", refused)
    with pytest.raises(SandboxUnavailableError, match=r"^runs cannot be isolated .* --isolation none\.$"):
        isolation.choose("auto")
    assert isolation.choose("none") is isolation.NONE


def test_programs_that_are_found_by_links_are_named_as_a_run_sees_them(
    tmp_path: Path, apart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("unshare", "setpriv", "bwrap"):
        if (found := shutil.which(program)) is not None:
            (tmp_path / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isolation.choose("bubblewrap").setpriv == apart.setpriv


def test_packages_that_are_installed_in_place_are_shown_and_the_repository_is_not() -> None:
    shown = isolation.python_folders()
    assert Path(locate("reverse-text").path).parent in shown
    root = Path(__file__).parents[3]
    assert root / "src" in shown
    assert root not in shown
