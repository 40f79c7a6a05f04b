"""Each archive that could do harm, or lies, is refused with the file and the reason; none is accepted."""

from __future__ import annotations

import gzip
import importlib.util
import io
import stat
import struct
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.hub.archive.problems import ArchiveRefusedError
from whet.hub.archive.sdists import check_sdist
from whet.hub.archive.wheels import check_wheel

spec = importlib.util.spec_from_file_location("hub_hostile_packages", Path(__file__).parents[1] / "packages.py")
assert spec is not None
assert spec.loader is not None
packages: Any = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
spec.loader.exec_module(packages)
Wheel, sdist = packages.Wheel, packages.sdist
TOP = "word_game-1.0.0"
INFO = f"{TOP}.dist-info"
PACKAGE = {"word_game/__init__.py": b""}


def checked(data: bytes, filename: str = f"{TOP}-py3-none-any.whl") -> Any:
    return check_wheel(io.BytesIO(data), filename, "word-game", "1.0.0")


def refusal(data: bytes, filename: str = f"{TOP}-py3-none-any.whl") -> ArchiveRefusedError:
    check = check_sdist if filename.endswith(".tar.gz") else check_wheel
    with pytest.raises(ArchiveRefusedError) as caught:
        check(io.BytesIO(data), filename, "word-game", "1.0.0")
    return caught.value


def with_entry(name: str, data: bytes = b"", mode: int = 0o644 | stat.S_IFREG, **fields: Any) -> bytes:
    """A wheel with one more entry, which is not in RECORD."""

    def edit(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.create_system = 3
        for key, value in fields.items():
            setattr(info, key, value)
        with warnings.catch_warnings(action="ignore"):  # some tests want a name twice
            archive.writestr(info, data)

    return Wheel(edit=edit).bytes()


def patched(data: bytes, mark: bytes, offset: int, new: bytes) -> bytes:
    """`data` with bytes replaced at an offset from the first `mark`."""
    at = data.index(mark) + offset
    return data[:at] + new + data[at + len(new) :]


def many_entries() -> bytes:
    """The end of an archive that claims 60,000 entries, with a table of that size."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    table = entry * 60_000
    return table + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 60_000, 60_000, len(table), 0, 0)


def bomb(size: int) -> bytes:
    """A wheel with an entry that declares and holds `size` zeros."""
    return Wheel(
        files={"word_game/zeros.bin": b"\0" * size, "word_game/__init__.py": b""}, without=("word_game.py",)
    ).bytes()


def lying_size() -> bytes:
    """An entry of a mebibyte of zeros whose two headers declare 100 bytes."""
    data = Wheel(files={"word_game/zeros.bin": b"\0" * (1 << 20), **PACKAGE}, without=("word_game.py",)).bytes()
    for mark, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        at = 0
        while (at := data.find(mark, at)) >= 0:
            if struct.unpack_from("<L", data, at + offset)[0] == 1 << 20:
                data = data[: at + offset] + struct.pack("<L", 100) + data[at + offset + 4 :]
            at += 4
    return data


def overlapping() -> bytes:
    """Two entries of the table that share the bytes of one."""
    data = Wheel().bytes()
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    second = data.index(b"PK\1\2", start + 4)
    table = data[start:second] * 2 + data[second:end]
    total = struct.unpack_from("<H", data, end + 10)[0] + 1
    return data[:start] + table + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, total, total, len(table), start, 0)


def hidden_between() -> bytes:
    data = Wheel().bytes()
    end = data.index(b"PK\5\6")
    fields = list(struct.unpack("<4s4H2LH", data[end:]))
    start = fields[6]
    fields[6] = start + 9
    return data[:start] + b"in hiding" + data[start:end] + struct.pack("<4s4H2LH", *fields)


def record_of(*lines: str) -> dict[str, bytes]:
    return {f"{INFO}/RECORD": "".join(line + "\n" for line in lines).encode()}


def real_record() -> list[str]:
    return str(Wheel().contents()[f"{INFO}/RECORD"], "ascii").splitlines()


def entry_points(text: bytes) -> bytes:
    return bytes(Wheel(files={f"{INFO}/entry_points.txt": text}).bytes())


def parts(depth: int) -> bytes:
    """Mail of parts in parts: Python's reader of it calls itself for each."""
    return b"\nWheel-Version: 1.0" + b"".join(
        b"\nContent-Type: multipart/mixed; boundary=b%d\n\n--b%d" % (number, number) for number in range(depth)
    )


def described(name: str, version: str) -> bytes:
    return bytes(Wheel(files={f"{INFO}/METADATA": packages.metadata(name, version)}).bytes())


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


WHEELS: dict[str, tuple[str, Callable[[], bytes]]] = {
    # names of entries
    "parent folder": ("outside", lambda: with_entry("../evil.py")),
    "parent folder inside": ("outside", lambda: with_entry("word_game/../../evil.py")),
    "absolute path": ("absolute", lambda: with_entry("/etc/evil.py")),
    "drive letter": ("odd-name", lambda: with_entry("C:/evil.py")),
    "backslashes": ("odd-name", lambda: Wheel().bytes().replace(b"word_game.py", b"..\\wordga.py")),
    "empty segment": ("odd-name", lambda: with_entry("word_game//evil.py")),
    "dot segment": ("odd-name", lambda: with_entry("word_game/./evil.py")),
    "control character": ("odd-name", lambda: with_entry("word_game/\x1b[2Jevil.py")),
    "newline": ("odd-name", lambda: with_entry("word_game/a\nb.py")),
    "cyrillic look-alike": ("odd-name", lambda: with_entry("w\u043erd_game.py")),
    "full-width letters": ("odd-name", lambda: with_entry("\uff57ord_game.py")),
    "right-to-left mark": ("odd-name", lambda: with_entry("word_game/\u202eyp.py")),
    "trailing dot": ("odd-name", lambda: with_entry("word_game/evil.py.")),
    "device of Windows": ("odd-name", lambda: with_entry("word_game/con.txt")),
    "name of 201 characters": ("long-name", lambda: with_entry("word_game/" + "a" * 188 + ".py")),
    "same name twice": ("duplicate", lambda: with_entry("word_game.py", b"import os")),
    "same name in other case": ("duplicate", lambda: with_entry("Word_Game.py", b"")),
    "folder in other case": ("duplicate", lambda: Wheel(files={"word_game/a": b"", "WORD_GAME/b": b""}).bytes()),
    "file and folder": ("duplicate", lambda: Wheel(files={"word_game/a": b"", "word_game/a/b": b""}).bytes()),
    # kinds of entries
    "symbolic link": ("link", lambda: with_entry("word_game/l", b"/etc/passwd", 0o777 | stat.S_IFLNK)),
    "character device": ("special", lambda: with_entry("word_game/d", b"", 0o666 | stat.S_IFCHR)),
    "block device": ("special", lambda: with_entry("word_game/d", b"", 0o666 | stat.S_IFBLK)),
    "named pipe": ("special", lambda: with_entry("word_game/d", b"", 0o666 | stat.S_IFIFO)),
    "socket": ("special", lambda: with_entry("word_game/d", b"", 0o666 | stat.S_IFSOCK)),
    "folder mode with a file's name": ("odd-zip", lambda: with_entry("word_game/d", b"", 0o755 | stat.S_IFDIR)),
    # the zip itself
    "no zip": ("not-a-zip", lambda: b"#!/bin/sh\n" * 100),
    "empty file": ("not-a-zip", lambda: b""),
    "gzip instead": ("not-a-zip", lambda: sdist()),
    "data before": ("hidden-data", lambda: b"#!/bin/sh\nexit\n" + Wheel().bytes()),
    "data after": ("not-a-zip", lambda: Wheel().bytes() + b"more"),
    "data between": ("hidden-data", hidden_between),
    "comment": ("not-a-zip", lambda: Wheel(edit=lambda archive: setattr(archive, "comment", b"hello")).bytes()),
    "cut short": ("not-a-zip", lambda: Wheel().bytes()[:-40]),
    "encrypted": ("encrypted", lambda: patched(Wheel().bytes(), b"PK\1\2", 8, b"\1\0")),
    "part of several": ("spanned", lambda: patched(Wheel().bytes(), b"PK\5\6", 4, b"\1\0")),
    "another name in the local header": ("ambiguous", lambda: patched(Wheel().bytes(), b"PK\3\4", 30, b"evil_game.py")),
    "another size in the local header": ("ambiguous", lambda: patched(Wheel().bytes(), b"PK\3\4", 22, b"\1\0\0\0")),
    "shared bytes": ("overlap", overlapping),
    "unknown compression": ("odd-zip", lambda: Wheel().bytes(zipfile.ZIP_LZMA)),
    "second name in an extra field": ("odd-zip", lambda: with_entry("word_game/a", extra=b"up\x05\0\1abcd")),
    "wrong checksum": ("damaged", lambda: lying_checksum()),
    # sizes
    "60,000 entries": ("too-many-entries", many_entries),
    "64-bit counts": ("too-many-entries", lambda: patched(Wheel().bytes(), b"PK\5\6", 8, b"\xff\xff\xff\xff")),
    "bomb of 8 MiB": ("bomb", lambda: bomb(8 << 20)),
    "declares 10 GiB in all": ("too-large", lambda: declares_gigabytes()),
    "declares less than it holds": ("bomb", lying_size),
    "metadata of 2 MiB": ("too-large", lambda: Wheel(readme="".join(f"line {n}\n" for n in range(200_000))).bytes()),
    # what is installed
    ".pth": ("pth", lambda: Wheel(files={"evil.pth": b"import os"}).bytes()),
    ".pth in the package": ("pth", lambda: Wheel(files={"word_game/evil.PTH": b"import os"}).bytes()),
    "sitecustomize": ("start-up", lambda: Wheel(files={"sitecustomize.py": b""}).bytes()),
    "usercustomize as a package": ("start-up", lambda: Wheel(files={"usercustomize/__init__.py": b""}).bytes()),
    "second package": ("top-level", lambda: Wheel(files={"other/__init__.py": b""}).bytes()),
    "second module": ("top-level", lambda: Wheel(files={"helpers.py": b""}).bytes()),
    "tests at the top": ("shadows", lambda: Wheel(files={"tests/test_a.py": b""}).bytes()),
    "whet": ("shadows", lambda: Wheel(files={"whet/__init__.py": b""}).bytes()),
    "verifiers": ("shadows", lambda: Wheel(files={"verifiers/__init__.py": b""}).bytes()),
    "standard library": ("shadows", lambda: Wheel(files={"json.py": b""}).bytes()),
    "another environment's module": ("top-level", lambda: Wheel(files={"gsm8k.py": b""}).bytes()),
    "module and package of one name": ("top-level", lambda: Wheel(files={"word_game/__init__.py": b""}).bytes()),
    "no module": ("no-module", lambda: Wheel(without=("word_game.py",)).bytes()),
    "compiled code": ("compiled", lambda: Wheel(files={"word_game/fast.so": b"\x7fELF"}).bytes()),
    "bytecode": ("compiled", lambda: Wheel(files={"word_game/a.pyc": b"\0"}).bytes()),
    "scripts folder": ("data-folder", lambda: Wheel(files={f"{TOP}.data/scripts/python": b""}).bytes()),
    "purelib folder": ("data-folder", lambda: Wheel(files={f"{TOP}.data/purelib/x.py": b""}).bytes()),
    "commands": ("entry-points", lambda: entry_points(b"[console_scripts]\npip = a:b")),
    "plug-in of pytest": ("entry-points", lambda: entry_points(b"[pytest11]\na = a")),
    "commands in another case": ("entry-points", lambda: Wheel(
        files={f"{INFO}/Entry_Points.TXT": b"[console_scripts]\npip = a:b"}).bytes()),
    "installer in another case": ("installer-file", lambda: Wheel(files={f"{INFO}/Installer": b"pip"}).bytes()),
    "signature in another case": ("installer-file", lambda: Wheel(files={f"{INFO}/Record.JWS": b"{}"}).bytes()),
    "path file in another case": ("pth", lambda: Wheel(files={"word_game/A.PTH": b"import os"}).bytes()),
    "data folder in another case": ("data-folder", lambda: Wheel(files={f"{TOP}.Data/scripts/pip": b""}).bytes()),
    "start-up module in another case": ("start-up", lambda: Wheel(files={"SiteCustomize.py": b""}).bytes()),
    "provenance of its own": ("installer-file", lambda: Wheel(files={f"{INFO}/direct_url.json": b"{}"}).bytes()),
    "second dist-info": ("dist-info", lambda: Wheel(files={"other-1.dist-info/METADATA": b""}).bytes()),
    # what it says about itself
    "no METADATA": ("missing", lambda: Wheel(without=(f"{INFO}/METADATA",)).bytes()),
    "no WHEEL": ("missing", lambda: Wheel(without=(f"{INFO}/WHEEL",)).bytes()),
    "no RECORD": ("missing", lambda: Wheel(without=(f"{INFO}/RECORD",)).bytes()),
    "another name": ("name", lambda: described("torch", "1.0.0")),
    "another version": ("version", lambda: described("word-game", "9")),
    "two names": ("metadata", lambda: Wheel(more="Name: torch\n").bytes()),
    "requirement from a URL": ("direct-url", lambda: Wheel(more="Requires-Dist: a @ https://e.example/a\n").bytes()),
    "requirement in 25,000 brackets": ("metadata", lambda: Wheel(
        more=f"Requires-Dist: a; {'(' * 25_000}os_name > '3'{')' * 25_000}\n").bytes()),
    "requirement of 800 kB": ("metadata", lambda: Wheel(more=f"Requires-Dist: a{' ' * 800_000}\n").bytes()),
    "100,000 parameters": ("metadata", lambda: Wheel(
        more=f"Description-Content-Type: text/plain{'; a=b' * 100_000}\n").bytes()),
    "METADATA of many parts": ("metadata", lambda: Wheel(files={
        f"{INFO}/METADATA": packages.metadata("word-game", "1.0.0").partition(b"\n\n")[0] + parts(2_000)}).bytes()),
    "WHEEL of many parts": ("metadata", lambda: Wheel(files={f"{INFO}/WHEEL": parts(3_000).strip()}).bytes()),
    "requirement that is none": ("metadata", lambda: Wheel(more="Requires-Dist: !!!\n").bytes()),
    "requires itself": ("requires-itself", lambda: Wheel(more="Requires-Dist: word-game>=2\n").bytes()),
    "another Python": ("python", lambda: Wheel(more="Requires-Python: <3.9\n").bytes()),
    "platform tag inside": ("wheel-file", lambda: Wheel(
        files={f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: cp312-cp312-win32\n"}).bytes()),
    "not pure": ("wheel-file", lambda: Wheel(
        files={f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"}).bytes()),
    "RECORD with another hash": ("record", lambda: Wheel(
        files=record_of(f"word_game.py,{packages.digest(b'x')},{len(Wheel().code)}", *real_record()[1:])).bytes()),
    "RECORD with another size": ("record", lambda: Wheel(
        files=record_of(real_record()[0].rpartition(",")[0] + ",1", *real_record()[1:])).bytes()),
    "RECORD without a hash": ("record", lambda: Wheel(files=record_of("word_game.py,,", *real_record()[1:])).bytes()),
    "RECORD with an MD5": ("record", lambda: Wheel(files=record_of("word_game.py,md5=x,", *real_record()[1:])).bytes()),
    "RECORD lists less": ("record", lambda: Wheel(files=record_of(*real_record()[1:])).bytes()),
    "RECORD lists more": ("record", lambda: Wheel(files=record_of("gone.py,,", *real_record())).bytes()),
    "RECORD lists twice": ("record", lambda: Wheel(files=record_of(real_record()[0], *real_record())).bytes()),
    "RECORD with a NUL": ("record", lambda: Wheel(files={f"{INFO}/RECORD": b"a\0,\xff,1\n"}).bytes()),
}  # fmt: skip

FILENAMES = {
    "other-1.0.0-py3-none-any.whl": "filename",
    "word_game-2.0.0-py3-none-any.whl": "filename",
    "Word.Game-1.0.0-py3-none-any.whl": "filename",
    "word_game-1.0.0-1-py3-none-any.whl": "filename",
    "word_game-1.0.0-cp312-cp312-manylinux_2_17_x86_64.whl": "platform",
    "word_game-1.0.0-py3-none-win_amd64.whl": "platform",
    "word_game-1.0.0-py2-none-any.whl": "python",
    "word_game-1.0.0-cp312-none-any.whl": "python",
    "../word_game-1.0.0-py3-none-any.whl": "filename",
    "word_game.whl": "filename",
}

SDISTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "parent folder": ("outside", lambda: sdist(members=(member(f"{TOP}/../../evil"),))),
    "absolute path": ("absolute", lambda: sdist(members=(member("/etc/evil"),))),
    "symbolic link": ("link", lambda: sdist(members=(member(f"{TOP}/l", tarfile.SYMTYPE, linkname="/etc"),))),
    "hard link": ("link", lambda: sdist(members=(member(f"{TOP}/l", tarfile.LNKTYPE, linkname="/etc/passwd"),))),
    "device": ("special", lambda: sdist(members=(member(f"{TOP}/d", tarfile.CHRTYPE),))),
    "block device": ("special", lambda: sdist(members=(member(f"{TOP}/d", tarfile.BLKTYPE),))),
    "named pipe": ("special", lambda: sdist(members=(member(f"{TOP}/d", tarfile.FIFOTYPE),))),
    "contiguous file": ("odd-tar", lambda: sdist(members=(member(f"{TOP}/d", tarfile.CONTTYPE),))),
    "sparse file": ("odd-tar", lambda: sdist(members=(member(f"{TOP}/d", tarfile.GNUTYPE_SPARSE),))),
    "size in an extended header": ("odd-tar", lambda: sdist(
        members=(member(f"{TOP}/d", pax_headers={"size": "0", "GNU.sparse.major": "1"}),))),
    "duplicate": ("duplicate", lambda: sdist(members=(member(f"{TOP}/PKG-INFO"),))),
    "other case": ("duplicate", lambda: sdist(members=(member(f"{TOP}/pkg-info"),))),
    "long name": ("long-name", lambda: sdist(members=(member(f"{TOP}/" + "a" * 300),), format=tarfile.GNU_FORMAT)),
    "look-alike": ("odd-name", lambda: sdist(members=(member(f"{TOP}/\u043e"),))),
    "second folder": ("top-level", lambda: sdist(members=(member("other/setup.py"),))),
    "10,001 entries": ("too-many-entries", lambda: sdist(members=tuple(member(f"{TOP}/{n}") for n in range(10_001)))),
    "bomb of 8 MiB": ("bomb", lambda: sdist(members=(member(f"{TOP}/zeros", size=8 << 20),))),
    "claims 8 GiB": ("damaged", lambda: gzip.compress(
        member(f"{TOP}/big", size=8**11 - 1).tobuf(tarfile.USTAR_FORMAT))),
    "another name": ("name", lambda: sdist(files={"PKG-INFO": packages.metadata("torch", "1.0.0")})),
    "no pyproject.toml": ("missing", lambda: gzip.compress(tar_without_project())),
    "cut short": ("damaged", lambda: sdist()[:-20]),
    "no gzip": ("damaged", lambda: b"hello" * 200),
    "data after": ("hidden-data", lambda: sdist() + b"more"),
    "second gzip member": ("hidden-data", lambda: sdist() + gzip.compress(b"more")),
    "second tar archive": ("hidden-data", lambda: gzip.compress(gzip.decompress(sdist()) * 2)),
}  # fmt: skip


def lying_checksum() -> bytes:
    data = Wheel().bytes()
    wrong = patched(data, b"PK\3\4", 14, b"\1\2\3\4")
    return patched(wrong, b"PK\1\2", 16, b"\1\2\3\4")


def declares_gigabytes() -> bytes:
    """A table whose entries declare 3 GiB each, four times."""
    data = Wheel().bytes()
    at = 0
    while (at := data.find(b"PK\1\2", at)) >= 0:
        data = data[: at + 24] + struct.pack("<L", 3 << 30) + data[at + 28 :]
        at += 4
    return data


def tar_without_project() -> bytes:
    stream = io.BytesIO()
    described = packages.metadata("word-game", "1.0.0")
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(member(f"{TOP}/PKG-INFO", size=len(described)), io.BytesIO(described))
    return stream.getvalue()


@pytest.mark.parametrize("case", WHEELS)
def test_hostile_wheel_is_refused(case: str) -> None:
    code, make = WHEELS[case]
    problems = refusal(make()).problems
    assert code in {problem.code for problem in problems}, problems
    assert all(problem.file and problem.reason and problem.file.isprintable() for problem in problems)


@pytest.mark.parametrize("filename", FILENAMES)
def test_wheel_file_name_is_refused(filename: str) -> None:
    assert refusal(Wheel().bytes(), filename).problems[0].code == FILENAMES[filename]


@pytest.mark.parametrize("case", SDISTS)
def test_hostile_source_archive_is_refused(case: str) -> None:
    code, make = SDISTS[case]
    problems = refusal(make(), f"{TOP}.tar.gz").problems
    assert code in {problem.code for problem in problems}, problems


def test_right_archives_are_accepted() -> None:
    facts = checked(Wheel(more="Requires-Python: >=3.11\nRequires-Dist: whet>=0.1\n").bytes())
    assert (facts.module, facts.requires_python, facts.requires_dist) == ("word_game", ">=3.11", ("whet>=0.1",))
    assert facts.readme.startswith("# A game")
    assert facts.readme_type == "text/markdown"
    package = Wheel(
        files={"word_game/__init__.py": b"", "word_game/data/a.txt": b"a" * 5000}, without=("word_game.py",)
    )
    assert checked(package.bytes(zipfile.ZIP_STORED)).module == "word_game"
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        long_name = "word_game/" + "d" * 90 + "/" + "f" * 40
        data = sdist(files={long_name: b"x"}, format=format)
        members = check_sdist(io.BytesIO(data), f"{TOP}.tar.gz", "word-game", "1.0.0")
        assert f"{TOP}/{long_name}" in {one.name for one in members}


def test_refusal_reads_no_more_than_it_needs() -> None:
    """A bomb is refused by what it declares: nothing of it is unpacked."""

    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            Counting.taken += len(data)
            return data

    data = bomb(8 << 20)
    with pytest.raises(ArchiveRefusedError, match="expands"):
        check_wheel(Counting(data), f"{TOP}-py3-none-any.whl", "word-game", "1.0.0")
    assert Counting.taken < 4096


def mutations(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        yield data[:at]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_damaged_archive_is_refused_without_another_error(kind: str) -> None:
    """Each byte in turn is changed or the end is cut off. What is still accepted has the same content."""
    refused = 0
    for data in mutations(Wheel().bytes() if kind == "wheel" else sdist()):
        try:
            if kind == "wheel":
                checked(data)
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    assert {name: archive.read(name) for name in archive.namelist()} == Wheel().contents()
            else:
                check_sdist(io.BytesIO(data), f"{TOP}.tar.gz", "word-game", "1.0.0")
        except ArchiveRefusedError:
            refused += 1
    assert refused > 50
