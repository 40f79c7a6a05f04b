"""Folders as bytes: what goes through, and what hostile bytes cannot do to the host."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.sandboxes.transfer import FolderError, pack, unpack

MIB = 1 << 20
Entry = tuple[tarfile.TarInfo, bytes]


def packed(folder: Path) -> bytes:
    out = io.BytesIO()
    pack(folder, out.write)
    return out.getvalue()


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object) -> Entry:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.size = len(content)
    for key, value in more.items():
        setattr(member, key, value)
    return member, content


def tar(*entries: Entry, format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for member, content in entries:
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def unpacked(data: bytes, folder: Path, max_bytes: int = MIB, max_files: int = 100) -> tuple[str, ...]:
    return unpack(io.BytesIO(data).read, folder, max_bytes, max_files)


def test_a_folder_comes_out_as_it_went_in(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep" / "er" / "ümlaut file").write_bytes(b"\0\xff" * 1000)
    (source / "run.sh").write_text("echo")
    (source / "run.sh").chmod(0o4777)
    os.link(source / "run.sh", source / "twin")
    copy.mkdir()
    assert unpacked(packed(source), copy) == ()
    assert (copy / "deep" / "er" / "ümlaut file").read_bytes() == b"\0\xff" * 1000
    assert (copy / "empty").is_dir()
    assert (copy / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (copy / "twin").read_text() == "echo"
    assert not (copy / "twin").samefile(copy / "run.sh")


def test_a_socket_cannot_be_packed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "door"))
        with pytest.raises(FolderError, match=r"door is neither a file, a folder nor a link"):
            packed(tmp_path)


@pytest.mark.parametrize(
    "name", ["/tmp/intruder", "../intruder", "a/../../intruder", "a/b/../../../intruder", "//x/intruder", "a/.."]
)
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(FolderError, match="leads outside"):
        unpacked(tar(entry(name, b"x")), inside)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    assert not Path("/tmp/intruder").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Z"]
)
def test_links_and_special_files_are_left_out_and_named(tmp_path: Path, kind: bytes) -> None:
    data = tar(entry("odd", kind=kind, linkname="/etc/passwd", devmajor=8), entry("file", b"x"))
    left_out = unpacked(data, tmp_path)
    if kind == tarfile.CONTTYPE:  # an old name for a regular file
        assert left_out == ()
    else:
        assert left_out == ("odd",)
        assert os.listdir(tmp_path) == ["file"]


def test_file_behind_a_link_is_unpacked_into_a_folder(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    data = tar(entry("way", kind=tarfile.SYMTYPE, linkname=str(outside)), entry("way/file", b"x"))
    assert unpacked(data, inside) == ("way",)
    assert os.listdir(outside) == []
    assert (inside / "way" / "file").read_bytes() == b"x"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "absent"])
def test_a_hard_link_to_what_was_not_in_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_text("secret")
    with pytest.raises(FolderError):
        unpacked(tar(entry("link", kind=tarfile.LNKTYPE, linkname=target)), inside)
    assert os.listdir(inside) == []


def test_a_file_is_never_written_twice(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="FileExistsError"):
        unpacked(tar(entry("a", b"1"), entry("a", b"2")), tmp_path)


def test_more_bytes_or_entries_than_allowed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="more than 10 bytes"):
        unpacked(tar(entry("a", b"x" * 6), entry("b", b"x" * 6)), tmp_path, max_bytes=10)
    with pytest.raises(FolderError, match="more than 5 entries"):
        unpacked(tar(*(entry(f"f{number}") for number in range(6))), tmp_path, max_files=5)


def test_copies_of_a_hard_linked_file_count(tmp_path: Path) -> None:
    links = [entry(f"l{number}", kind=tarfile.LNKTYPE, linkname="a") for number in range(10)]
    with pytest.raises(FolderError, match="more than 5000 bytes"):
        unpacked(tar(entry("a", b"x" * 1000), *links), tmp_path, max_bytes=5000)


def test_a_size_that_is_claimed_is_not_allocated(tmp_path: Path) -> None:
    member, _ = entry("bomb")
    member.size = 1 << 40
    with pytest.raises(FolderError, match="more than 1048576 bytes"):
        unpacked(member.tobuf(tarfile.GNU_FORMAT), tmp_path)


def test_a_sparse_file_counts_with_its_holes(tmp_path: Path) -> None:
    member, _ = entry(
        "sparse", kind=tarfile.REGTYPE, pax_headers={"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": ""}
    )
    with pytest.raises(FolderError):
        unpacked(tar((member, b""), format=tarfile.PAX_FORMAT), tmp_path)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_header_of_gigabytes_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    member, _ = entry("x", kind=kind)
    member.size = 1 << 32
    served = 0

    def endless(count: int) -> bytes:
        nonlocal served
        data = member.tobuf(tarfile.GNU_FORMAT) if served == 0 else b"\0" * count
        served += len(data)
        return data

    with pytest.raises(FolderError):
        unpack(endless, tmp_path, MIB, 100)
    assert served < 4 * MIB


def test_headers_within_headers_within_headers_are_refused(tmp_path: Path) -> None:
    header, _ = entry("x", kind=tarfile.XHDTYPE)
    header.size = 11
    one = header.tobuf(tarfile.USTAR_FORMAT) + b"11 path=ab\n".ljust(512, b"\0")
    with pytest.raises(FolderError):
        unpacked(one * 2000, tmp_path)


def test_bytes_that_end_early_are_refused(tmp_path: Path) -> None:
    data = tar(entry("a", b"x" * 5000))
    with pytest.raises(FolderError):
        unpacked(data[:2000], tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1535), st.binary(min_size=1, max_size=12)), max_size=6))
def test_no_change_of_bytes_breaks_out(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(tar(entry("a", b"x" * 10), entry("b", b"y")))
    for position, change in changes:
        data[position : position + len(change)] = change
    folder = tmp_path / "inside"
    for path in [*folder.glob("**/*")][::-1]:
        path.rmdir() if path.is_dir() else path.unlink()
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FolderError):
        unpacked(bytes(data), folder)
    assert os.listdir(tmp_path) == ["inside"]
    assert not any(path.is_symlink() for path in folder.glob("**/*"))
