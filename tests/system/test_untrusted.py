"""Folders that hostile code writes into: no link is followed, whatever is exchanged, and any depth can be removed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from whet.config import read_toml
from whet.system import untrusted
from whet.system.files import read_lines


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of another tenant."""
    found = tmp_path / "outside"
    (found / "inner").mkdir(parents=True)
    for name in ("status.json", "config.toml", "inner/status.json"):
        (found / name).write_text('{"state": "secret"}')
    return found


def test_links_in_any_part_of_a_path_lead_nowhere(tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(outside)
    (run / "file").symlink_to(outside / "status.json")
    for name in ("link", "link/inner", "../outside", str(outside), "file/x", "link\0x"):
        assert not untrusted.is_folder(run, name)
        assert not untrusted.exists(run, name)
        assert untrusted.names(run, name, most=9) == []
        assert list(untrusted.folders(run, name, deepest=3, most=9)) == []
    for name in ("link/status.json", "file", "link/inner/status.json", "../outside/status.json"):
        assert untrusted.read_object(run, name) == {}
        assert not untrusted.is_file(run, name)
    assert untrusted.read_object(outside, "inner/status.json") == {"state": "secret"}


def test_sizes_depths_and_numbers_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_text('{"a": "' + "x" * 100 + '"}')
    (tmp_path / "deep.json").write_text('{"a": ' + "[" * 100_000)
    assert untrusted.read_object(tmp_path, "big.json", most=50) == {}
    assert untrusted.read_object(tmp_path, "deep.json") == {}
    for number in range(30):
        (tmp_path / "many" / f"{number}" / "x" / "y").mkdir(parents=True)
    assert len(untrusted.names(tmp_path, "many", most=10)) == 10
    found = list(untrusted.folders(tmp_path, "many", deepest=1, most=20))
    assert found[0][0] == ""
    assert len(found) == 20
    assert all("/" not in path for path, _ in found)


def test_a_distrusted_root_holds_for_paths_below_it(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "_roots", [])
    runs = tmp_path / "runs"
    (runs / "mine").mkdir(parents=True)
    (runs / "mine" / "run").symlink_to(outside)
    directory = runs / "mine" / "run"
    with untrusted.open_inside(directory, "status.json"):
        pass  # as for a directory that a user names
    untrusted.distrust(runs)
    with pytest.raises(OSError, match="symbolic links"), untrusted.open_inside(directory, "status.json"):
        pass
    with pytest.raises(OSError, match="symbolic links"):
        list(read_lines(directory / "status.json"))
    with pytest.raises(OSError, match="symbolic links"):
        read_toml(directory / "config.toml", untrusted.open_path)
    (outside / "rows.jsonl").write_text('{"a": 1}\n')
    assert list(read_lines(outside / "rows.jsonl")) == [{"a": 1}]


def test_reading_while_a_folder_is_exchanged_for_a_link(tmp_path: Path, outside: Path) -> None:
    run, aside, link = tmp_path / "run", tmp_path / "aside", tmp_path / "link"
    run.mkdir()
    (run / "status.json").write_text('{"state": "own"}')
    link.symlink_to(outside)
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            os.rename(run, aside)
            os.rename(link, run)
            os.rename(run, link)
            os.rename(aside, run)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        found = [untrusted.read_object(tmp_path, "run/status.json") for _ in range(3000)]
    finally:
        ended.set()
        thread.join()
    assert {one.get("state") for one in found} <= {"own", None}


def test_what_is_removed_is_in_the_folder(tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "link").symlink_to(outside)
    (run / "closed").mkdir()
    (run / "closed" / "inner").mkdir()
    (run / "closed" / "inner" / "file").touch()
    (run / "closed" / "inner").chmod(0)
    (run / "closed").chmod(0)
    os.mkfifo(run / "pipe")
    untrusted.remove(tmp_path / "runs", "run")
    assert not run.exists()
    assert (outside / "inner" / "status.json").exists()
    run.symlink_to(outside)
    untrusted.remove(tmp_path / "runs", "run")
    assert not run.is_symlink()
    assert (outside / "inner" / "status.json").exists()
    untrusted.remove(tmp_path / "runs", "run")  # there is none


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    """1,500 levels: more than Python's recursion and than the descriptors of a process allow."""
    top = tmp_path / "run"
    top.mkdir()
    held = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 40, dir_fd=held)
        inner = os.open("d" * 40, os.O_RDONLY, dir_fd=held)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(held)
        held = inner
    os.close(held)
    untrusted.remove(tmp_path, "run")
    assert not top.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_only_what_is_in_the_folder_changes_its_owner(tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "run"
    (run / "deep").mkdir(parents=True)
    (run / "deep" / "file").touch()
    (run / "link").symlink_to(outside)
    os.link(outside / "status.json", run / "hard")
    untrusted.give(tmp_path, "run", 4321)
    assert {(run / name).stat().st_uid for name in (".", "deep", "deep/file")} == {4321}
    assert {path.stat().st_uid for path in (outside, outside / "status.json", outside / "inner")} == {0}
    (tmp_path / "linked").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        untrusted.give(tmp_path, "linked", 4321)
    assert outside.stat().st_uid == 0
