"""What a run prints: bounded files without secrets, also when it arrives in pieces or the disk is full."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.service.runner.output import BoundedLog, SecretFilter

SECRETS = {"KEY": "abcabcabd", "LONG": "first line\nsecond line", "SHORT": "abc"}


@given(st.lists(st.sampled_from(["abc", "abcabcabd", "ab", "d", "x", "first line", "\n", "second line"]), max_size=20))
def test_no_secret_is_left_however_the_text_is_cut(pieces: list[str]) -> None:
    stream = SecretFilter(SECRETS)
    found = b"".join(stream.feed(piece.encode()) for piece in pieces) + stream.rest()
    kept = re.sub(rb"\[KEY\]|\[LONG\]|\n", b"", found)
    assert kept == re.sub(rb"abcabcabd|first line|second line|\n", b"", "".join(pieces).encode())
    assert b"abcabcabd" not in found
    assert b"second line" not in found


@pytest.mark.parametrize("pieces", [["token-", "value-more"], ["token-value", "-more"], ["token-value-", "more"]])
def test_a_secret_that_another_begins_with_is_taken_out_whole(pieces: list[str]) -> None:
    stream = SecretFilter({"SHORT": "token-value", "LONG": "token-value-more"})
    assert b"".join(stream.feed(piece.encode()) for piece in pieces) + stream.rest() == b"[LONG]"
    stream.feed(b"token-value")
    assert stream.rest() == b"[SHORT]"


def test_text_without_the_beginning_of_a_secret_is_not_held_back() -> None:
    stream = SecretFilter(SECRETS)
    assert stream.feed(b"loss 0.1\n") == b"loss 0.1\n"
    assert stream.feed(b"key abcab") == b"key "
    assert stream.feed(b"c") == b""
    assert stream.feed(b"!") == b"abcabc!"


def test_two_files_of_bounded_size_keep_the_end(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "output.log", {}, limit=100)
    for number in range(200):
        log.write(b"%09d\n" % number)
    log.close()
    assert (tmp_path / "output.log").read_bytes().splitlines()[-1] == b"000000199"
    assert (tmp_path / "output.log.1").read_bytes().splitlines()[-1] == b"000000189"
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [100, 100]


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        log = BoundedLog(tmp_path / "output.log", {})
        log.write(text)
        log.close()
    assert (tmp_path / "output.log").read_bytes() == b"one two"


def test_a_full_disk_drops_output_and_raises_nothing(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    (tmp_path / "output.log").symlink_to(full)
    log = BoundedLog(tmp_path / "output.log", {})
    log.write(b"lost")
    log.close()
    assert log.dropped == 4
