"""The verifier of generated tasks, against what an agent may leave in its working directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from whet.authoring.terminal.check import (
    WrongError,
    check_git,
    check_json,
    check_mode,
    check_paths,
    check_sed,
    check_settings,
    check_text,
)


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    return tmp_path / "app"


def test_right_contents_pass() -> None:
    Path("a.txt").write_text("one \ntwo\n\n")
    check_text("a.txt", "one\ntwo")
    Path("list").write_text("./b\na\n")
    check_paths("list", ["a", "b"])
    Path("a.json").write_text('{"b": 1,"a": [true]}')
    check_json("a.json", {"a": [True], "b": 1})
    Path("a.ini").write_text("top=1\n[web]\nport = 80\n")
    check_settings("a.ini", {"web.port": "80", "top": "1"})
    Path("a.txt").chmod(0o640)
    check_mode("a.txt", "640")


@pytest.mark.parametrize("text", ["PORT=1\nPORT=2\n", "PORT=2\nX=1\n", "", "PORT=1\n"])
def test_settings_are_those_and_no_others(text: str) -> None:
    Path("a.env").write_text(text)
    with pytest.raises(WrongError):
        check_settings("a.env", {"PORT": "2"})


def test_links_pipes_and_large_files_are_not_read(app: Path) -> None:
    (app.parent / "expected").write_text("right")
    Path("link").symlink_to("../expected")
    Path("folder").symlink_to("..")
    os.mkfifo("pipe")
    Path("large").write_text("right" + "\n" * 2_000_000)
    for path in ("link", "folder/expected", "pipe", "large", "."):
        with pytest.raises(WrongError):
            check_text(path, "right")


@pytest.mark.parametrize("script", ["s/a/b/e", "1e touch ran", "w ran", "r /etc/passwd", "s/a/b", "s/x/y/"])
def test_sed_scripts_run_nothing_and_write_nothing(script: str) -> None:
    Path("script.sed").write_text(script)
    with pytest.raises(WrongError):
        check_sed("script.sed", [["a", "b"]])
    assert not Path("ran").exists()


def test_sed_script_passes_by_what_it_prints() -> None:
    Path("script.sed").write_text("s/(a+)/<\\1>/g\n")
    check_sed("script.sed", [["aa b a", "<aa> b <a>"], ["b", "b"]])


def repository() -> None:
    commands = "git init -q -b main . && git config user.name A && git config user.email a@b && echo 1 > x && git add x"
    subprocess.run(f"{commands} && git commit -q -m begin", shell=True, check=True)


def test_repository_is_read_by_its_branches() -> None:
    repository()
    check_git("main", {"x": "1"}, "main", "begin")
    subprocess.run("git pack-refs --all && git gc -q", shell=True, check=True)
    check_git("main", {"x": "1"}, "main", "begin")
    for files, head, subject in (({"x": "2"}, "main", None), ({}, "main", None), ({"x": "1"}, "other", None)):
        with pytest.raises(WrongError):
            check_git("main", files, head, subject)
    with pytest.raises(WrongError):
        check_git("main", {"x": "1"}, "main", "end")


def test_config_and_hooks_of_a_repository_run_nothing(app: Path) -> None:
    repository()
    program = app / "program"
    program.write_text(f"#!/bin/sh\ntouch {app}/ran\n")
    program.chmod(0o755)
    with Path(".git/config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\thooksPath = {app}\n")
        config.write(f"[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {program}\n")
    check_git("main", {"x": "1"}, "main", "begin")
    assert not Path("ran").exists()
