"""candidates.jsonl and pareto_frontier.jsonl: what a search leaves to be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunError
from whet.gepa.records.candidates import FRONTIER, CandidateWriter, by_id, frontier, read_candidates
from whet.gepa.types import CandidateRecord
from whet.records.directory import CANDIDATES

Make = Callable[..., CandidateRecord]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_decision_writes_a_line_with_parents(tmp_path: Path, candidate: Make) -> None:
    records = CandidateWriter(tmp_path)
    seed = candidate(0)
    records.decided(seed)
    assert [row["number"] for row in lines(tmp_path / CANDIDATES)] == [0]
    records.decided(candidate(1, parent=seed, verdict="rejected"))
    child = candidate(2, parent=seed)
    records.decided(child)
    records.decided(candidate(3, parent=child))
    assert [row["parents"] for row in lines(tmp_path / CANDIDATES)] == [[], [seed.id], [seed.id], [child.id]]
    assert read_candidates(tmp_path)[2] == child


def test_frontier_holds_the_best_accepted_candidates_of_each_example(candidate: Make) -> None:
    seed = candidate(0, rewards=[1.0, 0.0, 0.5])
    records = [
        seed,
        candidate(1, parent=seed, rewards=[0.0, 1.0, 0.5]),
        candidate(2, parent=seed, rewards=[1.0, 1.0, 1.0], verdict="rejected"),
    ]
    found = frontier(records)
    assert [(one.example, one.reward, one.numbers) for one in found] == [
        ("val/reverse-text/0", 1.0, [0]),
        ("val/reverse-text/1", 1.0, [1]),
        ("val/reverse-text/2", 0.5, [0, 1]),
    ]
    assert found[2].candidates == [records[0].id, records[1].id]


def test_examples_are_in_the_order_of_their_numbers(candidate: Make) -> None:
    keys = [one.example for one in frontier([candidate(0, rewards=[0.0] * 12)])]
    assert keys == [f"val/reverse-text/{number}" for number in range(12)]


def test_by_id_prefers_the_accepted_of_equal_texts(candidate: Make) -> None:
    seed = candidate(0)
    records = [
        seed,
        *(candidate(number, parent=seed, text="A", verdict="rejected") for number in (1, 2)),
        *(candidate(3, parent=seed, text="B"), candidate(4, parent=seed, text="B", verdict="rejected")),
    ]
    assert [by_id(records)[one.id].number for one in records] == [0, 2, 2, 3, 3]


def test_the_frontier_on_disk_is_that_of_the_candidates(tmp_path: Path, candidate: Make) -> None:
    records = CandidateWriter(tmp_path)
    seed = candidate(0, rewards=[1.0, 0.0])
    for record in (seed, candidate(1, parent=seed, rewards=[0.5, 0.5])):
        records.decided(record)
    assert [row["numbers"] for row in lines(tmp_path / FRONTIER)] == [[0], [1]]
    assert [one.numbers for one in frontier(read_candidates(tmp_path))] == [[0], [1]]


def test_replayed_decisions_neither_duplicate_nor_remove_lines(tmp_path: Path, candidate: Make) -> None:
    seed = candidate(0)
    told = [seed, *(candidate(number, parent=seed) for number in range(1, 4))]
    first = CandidateWriter(tmp_path)
    for record in told:
        first.decided(record)
    before = (tmp_path / CANDIDATES).read_text(), (tmp_path / FRONTIER).read_text()
    again = CandidateWriter(tmp_path)
    for record in told:
        again.decided(record)
        assert ((tmp_path / CANDIDATES).read_text(), (tmp_path / FRONTIER).read_text()) == before
    again.decided(candidate(4, parent=seed))
    assert [row["number"] for row in lines(tmp_path / CANDIDATES)] == [0, 1, 2, 3, 4]


def test_a_different_decision_replaces_later_lines(tmp_path: Path, candidate: Make) -> None:
    seed = candidate(0)
    first = CandidateWriter(tmp_path)
    for record in (seed, *(candidate(number, parent=seed) for number in range(1, 4))):
        first.decided(record)
    again = CandidateWriter(tmp_path)
    again.decided(seed)
    other = replace(candidate(1, parent=seed), reason="another reason")
    again.decided(other)
    assert read_candidates(tmp_path) == [seed, other]


def test_a_kill_between_the_two_files_is_mended(tmp_path: Path, candidate: Make) -> None:
    seed = candidate(0)
    CandidateWriter(tmp_path).decided(seed)
    whole = (tmp_path / FRONTIER).read_text()
    (tmp_path / FRONTIER).unlink()
    CandidateWriter(tmp_path).decided(seed)
    assert (tmp_path / FRONTIER).read_text() == whole


def test_what_cannot_be_written_ends_no_search_and_is_written_later(
    tmp_path: Path, candidate: Make, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / CANDIDATES
    in_the_way.mkdir()
    records = CandidateWriter(tmp_path)
    seed = candidate(0)
    told = [seed, candidate(1, parent=seed), candidate(2, parent=seed)]
    for record in told[:2]:
        records.decided(record)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("whet")]
    assert "candidates.jsonl: cannot write" in line
    in_the_way.rmdir()
    records.decided(told[2])
    assert read_candidates(tmp_path) == told


def test_a_record_that_is_changed_after_it_was_told_is_told_anew(tmp_path: Path, candidate: Make) -> None:
    records = CandidateWriter(tmp_path)
    record = candidate(0)
    records.decided(record)
    record.val_mean = 0.25
    records.decided(record)
    assert read_candidates(tmp_path)[0].val_mean == 0.25


def test_texts_of_any_kind_come_back_as_they_were(tmp_path: Path, candidate: Make, hostile: tuple[str, str]) -> None:
    said, _ = hostile
    record = candidate(0, text=f"{said}\n\u2028\r")
    CandidateWriter(tmp_path).decided(record)
    assert read_candidates(tmp_path) == [record]
    assert len((tmp_path / CANDIDATES).read_bytes().splitlines()) == 1


def test_a_directory_without_candidates_has_none(tmp_path: Path) -> None:
    assert read_candidates(tmp_path) == []
    assert frontier(read_candidates(tmp_path)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"candidates\.jsonl, line 2: not JSON"),
        ("[]", r"line 2: expected an object"),
        ('{"number": 1}', r"line 2: not a candidate \(id: field required\)"),
        ("verdict", r"line 2: not a candidate \(verdict: input should be 'seed', 'accepted' or 'rejected'\)"),
        ("twice", r"line 2: not a candidate \(candidate 0 is there twice\).*whet gepa run --resume"),
    ],
)
def test_a_damaged_line_is_named_and_a_search_that_is_resumed_mends_it(
    tmp_path: Path, candidate: Make, line: str, message: str
) -> None:
    seed = candidate(0)
    CandidateWriter(tmp_path).decided(seed)
    path = tmp_path / CANDIDATES
    whole = path.read_text()
    damaged = {"twice": whole.strip(), "verdict": whole.strip().replace('"seed"', '"good"')}.get(line, line)
    path.write_text(whole + damaged + "\n")
    with pytest.raises(RunError, match=message):
        read_candidates(tmp_path)
    CandidateWriter(tmp_path).decided(seed)
    assert path.read_text() == whole
