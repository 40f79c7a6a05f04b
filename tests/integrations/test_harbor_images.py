"""`images` of `harbor:`: tasks that see the files of an image, made here of bash, Python and what they need."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import ConfigError, SandboxError
from whet.integrations.harbor_env import HarborEnv
from whet.integrations.harbor_root import image_roots
from whet.sandboxes.bubblewrap.layout import layout_of_image
from whet.sandboxes.protocol import SandboxSpec
from whet.sandboxes.registry import get_backend

PROGRAMS = (
    *("bash", "dirname", "cp", "mv", "head", "touch", "env", "stat", "mktemp", "sort", "gzip"),
    "cat",
    "chmod",
    "ls",
    "mkdir",
    "printf",
    "readlink",
    "rm",
    "rmdir",
    "ln",
    "tail",
    "tar",
    "wc",
    "find",
)
FROM = """\
FROM mine:1
ENV WORDS=words.txt
WORKDIR /app
COPY data/ ./data/
COPY run.sh /app
RUN cat /usr/share/marker > made && mkdir out
"""
Make = Callable[..., Path]


def libraries(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


@pytest.fixture
def image(harbor_cache: Path) -> Path:
    """The files of an image with bash, a few programs and this Python."""
    root = harbor_cache / "image"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/share").mkdir()
    (root / "bin").symlink_to("usr/bin")
    for empty in ("opt", "app", "etc", "root"):
        (root / empty).mkdir()
    (root / "usr/share/marker").write_text("of the image\n")
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = root / "usr/bin" / version
    shutil.copy2((base / "bin" / version).resolve(), python)
    (root / "usr/bin/python3").symlink_to(version)
    (root / "usr/bin/sh").symlink_to("bash")
    skip = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "tkinter", "config-*", "__pycache__")
    shutil.copytree(base / "lib" / version, root / "usr/lib" / version, ignore=skip, symlinks=True)
    needed = [python, *(root / "usr/lib" / version / "lib-dynload").glob("*.so")]
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found is not None, name
        needed.append(Path(shutil.copy2(found, root / "usr/bin" / name)))
    for library in {library for program in needed for library in libraries(program)}:
        place = library if library.parts[1].startswith("lib") or library.parts[2].startswith("lib") else "/usr/lib/x"
        place = root / Path(place).relative_to("/").with_name(library.name)  # where it is found without a cache
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), place)
    return root


def test_task_runs_in_the_image_and_sees_nothing_of_this_machines_system(
    bubblewrap: None, task: Make, rollout: Any, image: Path, harbor_cache: Path
) -> None:
    (harbor_cache / "secret").write_text("of this machine")
    (image / "etc/localtime").symlink_to(harbor_cache / "secret")
    archive = harbor_cache / "image.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(image, ".")
    folder = task(environment__Dockerfile=FROM)
    for given in (image, archive):
        state, (made, shown, ran, wrote, read) = rollout(
            folder,
            "cat made",
            "ls /usr /usr/bin",
            "./run.sh > out/count; cat out/count",
            "echo x > /usr/x",
            f"cat /etc/localtime {harbor_cache}/secret /etc/mime.types",
            images={"mine:1": str(given)},
        )
        assert state["error"] is None, state["error"]
        assert made == "of the image"
        programs = {path.name for path in (image / "usr/bin").iterdir()}
        folders = {path.name for path in (image / "usr").iterdir()}
        assert {*shown.split()} == {"/usr:", "/usr/bin:", *folders, *programs}
        assert (ran, state["reward"]) == ("3", 1.0)
        assert "Read-only file system" in wrote
        assert read.count("No such file") == 3, read


def test_archive_is_unpacked_once_by_its_content(image: Path, harbor_cache: Path) -> None:
    one, other = harbor_cache / "one.tar", harbor_cache / "other.tar"
    with tarfile.open(one, "w") as tar:
        tar.add(image / "usr/bin/python3", "bin/python3")
        tar.add(image / "usr/bin/bash", "usr/share/marker")  # of two of a name the later counts
        tar.add(image / "usr/share", "usr/share")
    shutil.copy(one, other)
    first, second = (image_roots({"a": str(path)})["a"] for path in (one, other))
    assert first == second
    assert (Path(first) / "usr/share/marker").read_text() == "of the image\n"


@pytest.mark.parametrize(
    ("name", "kind", "link", "said"),
    [
        ("../out", tarfile.REGTYPE, "", "leads out of the image"),
        ("a/../../out", tarfile.REGTYPE, "", "leads out of the image"),
        ("usr/link", tarfile.SYMTYPE, "../../etc/passwd", "leads out of the image"),
        ("usr/link", tarfile.LNKTYPE, "../../etc/passwd", "leads out of the image"),
        ("usr/link", tarfile.LNKTYPE, "etc/passwd", "cannot be unpacked"),
        ("dev/null", tarfile.CHRTYPE, "", "neither a file, a folder nor a link"),
        ("pipe", tarfile.FIFOTYPE, "", "neither a file, a folder nor a link"),
    ],
)
def test_archive_with_a_way_out_is_refused(harbor_cache: Path, name: str, kind: bytes, link: str, said: str) -> None:
    archive = harbor_cache / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member, io.BytesIO())
    with pytest.raises(ConfigError, match=said):
        image_roots({"mine:1": str(archive)})
    assert not (harbor_cache / "out").exists()
    assert not list((harbor_cache / "cache/harbor").glob("[!.]*"))


def test_nothing_is_written_through_a_link(harbor_cache: Path) -> None:
    archive, outside = harbor_cache / "bad.tar", harbor_cache / "outside"
    outside.mkdir()
    with tarfile.open(archive, "w") as tar:
        for name, kind, link in (("usr", tarfile.SYMTYPE, str(outside)), ("usr/file", tarfile.REGTYPE, "")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member, io.BytesIO())
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        image_roots({"mine:1": str(archive)})
    assert not list(outside.iterdir())


def test_image_that_cannot_be_used_is_refused(task: Make, image: Path, tmp_path: Path) -> None:
    folder = task(environment__Dockerfile=FROM)
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "gz").write_bytes(b"\x1f\x8btorn")
    (tmp_path / "xz").write_bytes(b"\xfd7zXZ\x00torn")
    (tmp_path / "empty").mkdir()
    for images, said in (
        ({"mine:1": str(tmp_path / "none")}, "neither a folder"),
        ({"mine:1": "/"}, "neither a folder"),
        ({"mine:1": str(tmp_path / "text")}, "cannot be unpacked"),
        *(({"mine:1": str(tmp_path / kind)}, "cannot be unpacked") for kind in ("gz", "xz")),
        ({"mine:1": str(tmp_path / "empty")}, "has no python3"),
        ({"other": str(image)}, "no task has FROM other. They have: mine:1"),
        (["mine:1"], "a table"),
    ):
        with pytest.raises(ConfigError, match=said):
            HarborEnv(str(folder), images=images)
    (image / "app/own").write_text("hidden by the task's folder")
    with pytest.raises(ConfigError, match="has files in /app"):
        HarborEnv(str(folder), images={"mine:1": str(image)})


def test_system_packages_are_those_of_the_image(task: Make, image: Path) -> None:
    for line, said in (("apt-get install -y git", "lacks git"), ("apt-get install -y findutils", "")):
        folder = task(environment__Dockerfile=f"FROM mine:1\nRUN {line}\n")
        if not said:
            assert HarborEnv(str(folder), images={"mine:1": str(image)}).tasks
            continue
        with pytest.raises(ConfigError, match=said):
            HarborEnv(str(folder), images={"mine:1": str(image)})


def test_links_of_an_image_lead_nowhere_on_this_machine(image: Path) -> None:
    (image / "srv").mkdir()
    (image / "srv/link").symlink_to("/etc/passwd")
    layout = layout_of_image(image)
    assert ("/etc/passwd", "/srv/link") in layout.links  # a link inside, and no file of the host
    assert not any("/srv" in shown for _, shown in layout.interpreter)


def test_root_that_cannot_be_shown_is_an_error(bubblewrap: None) -> None:
    assert not Path("/srv/image").exists()
    with pytest.raises(SandboxError, match="cannot be read"):
        asyncio.run(get_backend("bubblewrap").create(SandboxSpec(root="/srv/image")))
    with pytest.raises(ConfigError, match="bubblewrap backend alone"):
        asyncio.run(get_backend("subprocess").create(SandboxSpec(root="/srv/image")))


def test_an_agent_runs_in_the_image_by_its_programs(bubblewrap: None, task: Make, image: Path, play: Any) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("prometheus_client")
    folder = task(environment__Dockerfile=FROM)
    call = {"id": "call", "name": "bash", "arguments": json.dumps({"command": "cat made; ./run.sh > out/count"})}

    env = whet.load_environment(f"harbor:{folder}", agent="bash", images={"mine:1": str(image)})
    state = play(env, [{"tool_calls": [call]}, "Done."])
    assert (state["error"], state["reward"]) == (None, 1.0)
    assert state["trajectory"][1]["prompt"][-1]["content"] == "of the image\n"
