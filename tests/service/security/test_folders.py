"""A run that exchanges its own folders for links: what the runner then reads, gives away and removes."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.errors import SandboxUnavailableError
from whet.service.domain import runs
from whet.service.library import run_directory
from whet.service.runner.isolation import NONE, choose
from whet.service.storage.tables import RunRow

SOURCE = Path(__file__).parents[3] / "src" / "whet"
SECRET = "secret-of-another-team"


@pytest.fixture
def database_url() -> None:
    """The kind of the database plays no part here."""


@pytest.fixture(params=["isolated", "not isolated"])
def working(request: pytest.FixtureRequest, queue: Any, tmp_path: Path) -> Iterator[Any]:
    """See tests/service/runner/working.py."""
    apart = NONE
    if request.param == "isolated":
        try:
            apart = choose("auto")
        except SandboxUnavailableError as error:
            pytest.skip(str(error))
    path = Path(__file__).parents[1] / "runner" / "working.py"
    spec = importlib.util.spec_from_file_location("working", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("working", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    found = module.Working(queue, tmp_path, apart)
    yield found
    found.close()


@pytest.fixture
def victim(working: Any) -> Path:
    """The run directory of another tenant, which the runner's user can read."""
    found: Path = working.folder(working.queue.submit(owner="bob")).run
    working.queue.change(lambda session: setattr(session.query(RunRow).one(), "state", "finished"))
    (found / "rollouts").mkdir(parents=True)
    for name in ("config.toml", "status.json", "metrics.jsonl", "metadata.json", "rollouts/step_1.jsonl"):
        (found / name).write_text(f'{{"state": "failed", "last_error": "{SECRET}", "step": 7, "reward/mean": 7}}\n')
    return found


def owners(folder: Path) -> set[int]:
    return {path.stat().st_uid for path in (folder, *folder.rglob("*"))}


def restart(working: Any, run: str) -> None:
    with working.queue.database.write() as session:
        runs.restart(session, session.get_one(RunRow, run), "ann", None, 0.0, there=set(), caps={})


@pytest.mark.parametrize("name", ["run", "cache", "submission", "attempts"])
def test_a_folder_that_became_a_link_leads_to_no_other_run(working: Any, victim: Path, name: str) -> None:
    before, content = owners(victim), (victim / "config.toml").read_text()
    hostile = f"cd ..; mv {name} x; rm -rf {name}; ln -s {victim} {name}; exit 3"
    run = working.queue.submit()
    runner = working.runner(hostile)
    row = working.end(runner, run)
    assert row.state == "failed"
    assert SECRET not in row.reason
    assert row.step != 7
    if name == "run":
        assert run_directory(working.data, row) is None
    for _ in range(2):  # the folder is given to the run, read, and emptied
        restart(working, run)
        row = working.end(runner, run)
        assert SECRET not in row.reason
        assert row.step != 7
    assert (victim / "config.toml").read_text() == content
    assert owners(victim) == before
    if working.apart is not NONE and os.geteuid() == 0:
        folder = working.folder(run)
        assert all(path.is_dir() and not path.is_symlink() for path in (folder.path / "attempts", folder.submission))


@pytest.mark.parametrize("times", [300, pytest.param(3000, marks=pytest.mark.long)])
def test_a_live_run_cannot_show_anothers_files_by_exchanging_its_own(working: Any, victim: Path, times: int) -> None:
    """The runner looks while the folder is exchanged all the time."""
    hostile = (
        f"cd ..; mkdir -p run/rollouts; ln -s {victim} link; "
        "while ! [ -e go ]; do mv -T run aside; mv -T link run; mv -T run link; mv -T aside run; done 2>/dev/null"
    )
    run = working.queue.submit()
    runner = working.runner(hostile)
    working.running(runner, run)
    watch = runner.following[run].watch
    working.until(runner, lambda: (working.folder(run).path / "link").is_symlink() or True)
    try:
        for _ in range(times):
            seen = watch.look()
            assert seen.error is None
            assert seen.step is None
    finally:
        (working.folder(run).path / "go").touch()
    working.end(runner, run)


def test_a_deployment_begins_with_the_submission_alone(working: Any) -> None:
    """The base model of a run may be in its submission, and in no folder that the run writes to."""
    from whet.errors import ConfigError
    from whet.service.deployments.folder import DeploymentSource, base_directory

    folder = working.folder(working.queue.submit())
    for path in (folder.run / "model", folder.submission / "model"):
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
    values = {"lora": None, "step": 1, "own_base": True, "data": str(working.data), "run": folder.path.name}
    assert (
        base_directory(DeploymentSource(base=str(folder.submission / "model"), **values)) == folder.submission / "model"
    )
    with pytest.raises(ConfigError, match="in the folder of the service"):
        base_directory(DeploymentSource(base=str(folder.run / "model"), **values))


WALKS = {"chown", "lchown", "walk", "fwalk", "rmtree", "glob", "rglob", "iterdir", "scandir", "listdir"}
TOUCHES = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "is_file", "is_dir", "exists", "stat", "lstat"),
    *("symlink_to", "unlink", "touch", "resolve", "is_symlink", "mkdir", "chmod"),
}
OWN = {"run", "cache"}
ALLOWED = {
    # What a run does not write to: the data folder, the store, a deployment's own folder.
    "service/deployments/": {"rmtree", "glob", "iterdir", "listdir"},
    "service/service.py": {"iterdir"},
    "service/up.py": {"scandir"},
    "service/runner/machine.py": {"glob", "iterdir"},
    "service/runner/isolation.py": {"glob"},
    "service/runner/shim.py": {"glob"},
    "service/runner/environments.py": {"rmtree"},
    "service/runner/preparing.py": {"walk", "rmtree", "chmod"},  # of submission/ while the runner makes it aside
}


def test_nothing_beside_the_one_helper_reaches_into_a_runs_folder() -> None:
    found = []
    for path in sorted((SOURCE / "service").rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        allowed = set().union(*(words for prefix, words in ALLOWED.items() if name.startswith(prefix)))
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            subject, method = node.func.value, node.func.attr
            if ast.unparse(subject) in ("untrusted", "ast") or "/client/" in name:
                continue
            if method in WALKS - allowed:
                found.append(f"{name}:{node.lineno} {ast.unparse(node)[:80]}")
            inside = {part.attr for part in ast.walk(subject) if isinstance(part, ast.Attribute)}
            if method in TOUCHES and inside & OWN and "folder" in ast.unparse(subject):
                found.append(f"{name}:{node.lineno} {ast.unparse(node)[:80]}")
    assert found == []
