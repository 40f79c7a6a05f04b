"""The index against a plain reading of the files, while they grow, are cut, replaced, and read by several."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whet.records.store as store_module
from whet.errors import RunError
from whet.records.files import RolloutFiles
from whet.records.heads import HEAD, Head
from whet.records.index import Index, cached_index_path, index_path
from whet.records.indexing import Indexer
from whet.records.store import Store, open_store

Listed = list[tuple[int, int, Any]]
"""(line, bytes, example id, or "damaged") of every rollout."""


def plain(path: Path) -> Listed:
    """What a reader of the whole file finds: whole lines that are not blank, and an object at the end of the file."""
    lines = path.read_bytes().split(b"\n")
    rest = lines.pop()
    listed = [(number, len(line), expected(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    if rest.strip() and expected(rest) != "damaged":
        listed.append((len(lines) + 1, len(rest), expected(rest)))
    return listed


def expected(line: bytes) -> Any:
    try:
        row = json.loads(line)
    except ValueError:
        return "damaged"
    return row.get("example_id") if isinstance(row, dict) else "damaged"


def listed_by(index: Index) -> Listed:
    count = index.stamp().rollouts
    heads = [Head(*index.select(HEAD, {"number": number, "default": None})[0]) for number in range(count)]
    return [(head.line, head.size, "damaged" if head.problem else head.example_id) for head in heads]


def listed_in(store: Store) -> Listed:
    return [(head.line, head.size, "damaged" if head.problem else head.example_id) for head in store.heads()]


def lines(first: int, count: int, size: int = 20) -> bytes:
    return b"".join(b'{"example_id": %d, "answer": "%s"}\n' % (first + n, b"x" * size) for n in range(count))


ROWS = st.builds(
    lambda number, text, ascii: json.dumps({"example_id": number, "t": text}, ensure_ascii=ascii).encode("utf-8"),
    st.integers(0, 5),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
    st.booleans(),
)
ODD = st.sampled_from(
    [
        b"[1, 2]",
        b"null",
        b"3",
        b"\0\0",
        b"\xff",
        b"{",
        b'{"example_id": 1, "reward": NaN}',
        b"{}",
        b"  ",
        b"\r",
        b'{"a": 1}{"b": 2}',
    ]
)
TEXTS = st.lists(st.one_of(ROWS, ROWS, ODD, st.just(b"\n"), st.just(b"\n")), max_size=6).map(b"".join)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "replace", "rewrite"]), TEXTS),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=8,
)


def change(path: Path, what: str, value: Any) -> None:
    if what == "append":
        with path.open("ab") as file:
            file.write(value)
    elif what == "rewrite":
        path.write_bytes(value)
    elif what == "replace":
        partial = path.with_suffix(".part")
        partial.write_bytes(value)
        os.replace(partial, path)
    elif what == "cut":
        os.truncate(path, int(path.stat().st_size * value))


@settings(max_examples=70, deadline=None, derandomize=True)
@given(start=TEXTS, changes=CHANGES, piece=st.integers(1, 64))
def test_after_every_change_the_index_says_what_the_file_says(
    start: bytes, changes: list[tuple[str, Any]], piece: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        path.write_bytes(start)
        index = Index(None)
        indexer = Indexer(RolloutFiles(path), index, piece)
        for moment, (what, value) in enumerate([("reopen", None), *changes], start=1):
            change(path, what, value)
            os.utime(path, ns=(moment, moment))  # clocks of file systems are too coarse for a test
            if what == "reopen":
                indexer = Indexer(RolloutFiles(path), index, piece)
            indexer.check()
            indexer.index_some(float("inf"))
            assert listed_by(index) == plain(path)
            assert indexer.torn == max(0, path.stat().st_size - sum(s.mark.position for s in index.files().values()))


def test_appended_rollouts_get_the_next_numbers(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 3) + b'{"example')
    with open_store(path) as store:
        before = store.poll()
        assert (before.rollouts, before.torn, before.complete) == (3, 9, True)
        with path.open("ab") as file:
            file.write(b'_id": 3}\n')
        after = store.poll()
        assert (after.rollouts, after.torn, after.generation) == (4, 0, before.generation)
        assert store.row(3) == {"example_id": 3}
        assert store.head(3).line == 4


@pytest.mark.parametrize(
    "replace",
    [
        lambda path: change(path, "replace", lines(7, 3)),
        lambda path: change(path, "rewrite", lines(7, 3)),
        lambda path: change(path, "cut", 0.5),
        lambda path: change(path, "rewrite", lines(7, 5)),
        lambda path: path.unlink(),
    ],
    ids=["replaced", "rewritten", "cut", "rewritten longer", "gone"],
)
def test_replaced_file_is_detected_while_open(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 3))
    os.utime(path, ns=(1, 1))
    with open_store(path) as store:
        generation = store.poll().generation
        replace(path)
        assert store.poll().generation > generation
        assert listed_in(store) == (plain(path) if path.exists() else [])


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of small files, too, are kept next to them and built by a separate process."""
    monkeypatch.setattr(store_module, "IN_MEMORY", 0)


@pytest.mark.usefixtures("on_disk")
def test_index_is_kept_next_to_the_file_and_reused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 50))
    with open_store(path) as store:
        store.poll(float("inf"))
    made = index_path(path).stat()
    with open_store(path) as store:
        assert listed_in(store) == plain(path)
    assert index_path(path).stat().st_mtime_ns == made.st_mtime_ns


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("changed", [lines(9, 50), lines(0, 20), lines(0, 70), lines(0, 49) + lines(9, 1)])
def test_index_of_an_older_file_is_not_used(tmp_path: Path, changed: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 50))
    os.utime(path, ns=(1, 1))
    with open_store(path) as store:
        store.poll(float("inf"))
    path.write_bytes(changed)
    with open_store(path) as store:
        store.poll(float("inf"))
        assert listed_in(store) == plain(path)


def cut_in_half(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def overwrite_pages(index: Path) -> None:
    with index.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (index.stat().st_size - 4096))


def of_another_version(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA user_version = 1000")
    connection.close()


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("damage", [cut_in_half, overwrite_pages, of_another_version])
def test_an_index_that_cannot_be_used_is_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 2000))
    with open_store(path) as store:
        store.poll(float("inf"))
    damage(index_path(path))
    with open_store(path) as store:
        store.poll(float("inf"))
        assert listed_in(store) == plain(path)


@pytest.mark.usefixtures("on_disk")
def test_foreign_file_at_the_path_of_the_index_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 5))
    index_path(path).write_text("notes")
    with open_store(path) as store:
        assert listed_in(store) == plain(path)
    assert index_path(path).read_text() == "notes"
    assert cached_index_path(path).exists()


@pytest.mark.usefixtures("on_disk")
def test_where_no_index_can_be_kept_there_is_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 5))
    index_path(path).mkdir()
    with open_store(path) as store:
        assert listed_in(store) == plain(path)


@pytest.mark.usefixtures("on_disk")
def test_a_process_of_its_own_indexes_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 12_000, size=1000))
    with open_store(path) as store:
        first = store.poll(0).rollouts
        store.start()
        while not (progress := store.poll()).complete and progress.failure is None:
            pass
        assert progress.failure is None
        assert first < progress.rollouts == 12_000
        assert listed_in(store) == plain(path)


@pytest.mark.usefixtures("on_disk")
def test_killed_indexer_is_reported_and_its_work_continued(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 12_000, size=1000))
    with open_store(path) as store:
        store.start()
        first = store.poll().rollouts
        while store.poll().rollouts == first:
            pass
        assert store.process is not None
        os.kill(store.process.pid, signal.SIGKILL)
        store.process.wait()
        progress = store.poll()
        assert progress.failure == "indexing stopped: its process ended with -9"
        assert first < progress.rollouts < 12_000
        assert store.row(progress.rollouts - 1)["example_id"] == progress.rollouts - 1
    with open_store(path) as store:
        assert store.poll(0).rollouts >= progress.rollouts
        store.poll(float("inf"))
        assert listed_in(store) == plain(path)


def test_two_at_work_on_one_index_add_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 200))
    indexers = [Indexer(RolloutFiles(path), Index(tmp_path / "index"), piece=500) for _ in range(2)]
    for indexer in indexers:
        indexer.check()
    while indexers[0].index_some(0) | indexers[1].index_some(0):
        pass
    assert listed_by(indexers[0].index) == plain(path)
    with path.open("ab") as file:
        file.write(lines(200, 10))
    for indexer in indexers:
        indexer.check()
        indexer.index_some(0)
    assert listed_by(indexers[1].index) == plain(path)


@pytest.mark.usefixtures("on_disk")
def test_index_damaged_during_use_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(lines(0, 5000))
    with open_store(path) as store:
        store.poll(float("inf"))
        overwrite_pages(index_path(path))
        with index_path(path).open("r+b") as file:  # as any writer would: its change counter makes SQLite read again
            file.seek(24)
            file.write(b"\x7f\xff\xff\xff")
        with pytest.raises(RunError, match=r"results\.jsonl\.index: the index cannot be used .*Remove this file"):
            store.heads()
        assert "Remove this file" in str(store.poll().failure)  # which a timer calls: it never raises
