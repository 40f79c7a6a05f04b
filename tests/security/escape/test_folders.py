"""Folders that hostile code has prepared, or tampers with while they are copied to the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whet.errors import SandboxError
from whet.sandboxes.bubblewrap.backend import BubblewrapSandbox

from .host import Host, used

pytestmark = pytest.mark.usefixtures("bubblewrap")
MAX_BYTES = 4 << 20

FOLDERS = {
    "has links to the host": "ln -s SECRET out/link; ln -s FOLDER out/folder; ln -s / out/root",
    "has a file behind a link": "ln -s FOLDER out/way; mkdir -p out/x; echo intruder > out/x/intruder",
    "has hard links to one file": "echo x > out/a; for i in 1 2 3 4 5 6 7 8; do ln out/a out/b$i; done",
    "has pipes": "mkfifo out/pipe",
    "has a socket": "cd out && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"door\")'",
    "has a file with holes": "truncate -s 400M out/holes",
    "has twenty thousand names": "cd out && seq 1 20000 | xargs touch",
    "has folders in folders in folders": "cd out && for i in $(seq 1 200); do mkdir d && cd d; done",
    "has names that are options": "touch -- 'out/--checkpoint=1' 'out/--checkpoint-action=exec=touch x' out/-C",
    "has names that break lines": "touch \"out/$(printf 'a\\nb\\033[2J')\" \"out/$(printf '\\377\\376')\"",
    "has names that climb": "mkdir -p 'out/...' 'out/..x' && touch 'out/.../..' 'out/..x/a' 2>/dev/null; true",
    "has programs that gain privileges": "cp /usr/bin/id out/id && chmod 6755 out/id",
    "has files that nobody may read": "echo x > out/closed && chmod 000 out/closed",
    "is a link to the system": "rmdir out && ln -s /usr/lib out",
    "is a file that was a folder": "rmdir out && echo x > out",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_comes_out_is_plain_files_in_a_new_folder_or_nothing(
    host: Host, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    place = tmp_path_factory.mktemp("copies")

    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.exec("mkdir out; " + host.fill(FOLDERS[name]))
        try:
            await sandbox.download("out", place / "copy", max_bytes=MAX_BYTES, max_files=1000)
        except SandboxError:
            assert os.listdir(place) == []

    used(host, use)
    check(host, place)


TAMPER = """
import os, time
name = "../intruder"
header = bytearray(512)
header[0:len(name)] = name.encode(); header[100:107] = b"0000644"; header[124:135] = b"00000000004"; header[156] = 48
header[257:263] = b"ustar\\0"; header[148:156] = b" " * 8
header[148:156] = b"%06o\\0 " % sum(header)
junk = bytes(header) + b"evil".ljust(512, b"\\0")
print("ready", flush=True)
end = time.monotonic() + 5
while time.monotonic() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "tar" in open(f"/proc/{pid}/comm").read():
                fd = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
                while time.monotonic() < end: os.write(fd, junk)
        except OSError: pass
"""


def test_bytes_written_into_a_folder_on_its_way_out_make_no_file_elsewhere(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("copies")

    async def use(sandbox: BubblewrapSandbox) -> None:
        await sandbox.exec("mkdir out; head -c 3M /dev/urandom > out/data")
        # Where whet is root, the pipe is root's and cannot be opened; elsewhere its bytes land in the stream.
        tamperer = await sandbox.start(["python3", "-c", TAMPER])
        await tamperer.stdout.readline()
        try:
            await sandbox.download("out", place / "copy", max_bytes=MAX_BYTES)
        except SandboxError:
            assert os.listdir(place) == []
        tamperer.kill()
        await tamperer.wait()
        tamperer.close()

    used(host, use)
    check(host, place)


def check(host: Host, place: Path) -> None:
    assert set(os.listdir(place)) <= {"copy"}
    for path in place.rglob("*"):
        assert not path.is_symlink()
        assert path.is_file() or path.is_dir()
        assert not path.stat().st_mode & 0o7022
        if path.is_file():
            assert path.stat().st_nlink == 1
            assert host.secret.read_bytes() not in path.read_bytes()
