"""Searches on disk: listed, shown, and written up again, by `whet gepa list`, `show` and `report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from whet.cli.main import main
from whet.errors import RunError
from whet.gepa.records.stored import find_searches, open_search
from whet.gepa.types import CandidateRecord
from whet.records.lock import DirectoryLock

Searched = Callable[..., Path]
Make = Callable[..., CandidateRecord]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_search_is_found_by_its_directory_and_by_its_name(searched: Searched) -> None:
    directory = searched("reverse")
    assert open_search("reverse").candidates == open_search(directory).candidates
    assert open_search("reverse").best is not None


def test_a_name_that_is_nearly_right_is_guessed(searched: Searched) -> None:
    searched("reverse")
    with pytest.raises(RunError, match=r"there is no search 'reversed'.*Did you mean 'reverse'\?"):
        open_search("reversed")


def test_what_is_no_search_is_not_listed(searched: Searched) -> None:
    searched("reverse")
    training = Path("runs/training")
    training.mkdir()
    (training / "config.toml").write_text("")
    assert [one.name for one in find_searches()] == ["reverse"]


def test_a_running_search_without_a_lock_has_died(searched: Searched) -> None:
    directory = searched(state="running")
    died = open_search(directory)
    assert (died.state, died.resume) == ("died", f"whet gepa run --resume {directory}")
    lock = DirectoryLock(directory)
    try:
        running = open_search(directory)
    finally:
        lock.release()
    assert (running.state, running.resume) == ("running", None)


def test_the_list_has_a_line_for_each_and_the_command_that_continues_it(
    searched: Searched, capsys: pytest.CaptureFixture[str]
) -> None:
    searched("older", date="2026-11-20T10:00:00")
    stopped = searched("stopped", state="interrupted", confirmation=None)
    assert main(["gepa", "list"]) == 0
    head, first, second, command = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("date", "name", "environment", "model", "state"),
        *("calls", "proposals", "accepted", "seed", "best", "held-out"),
    ]
    assert first.split()[2:] == [
        *("stopped", "reverse-text", "whet/tiny", "interrupted"),
        *("80/100", "3", "2", "0.250", "0.750"),
    ]
    assert second.endswith("0.250  0.750  +0.300 (+0.100 to +0.500)")
    assert command == f"continue   whet gepa run --resume {stopped.relative_to(Path.cwd())}"


def test_a_damaged_search_is_listed_with_what_is_wrong(searched: Searched, capsys: pytest.CaptureFixture[str]) -> None:
    (searched() / "candidates.jsonl").write_text("{]\n")
    assert main(["gepa", "list"]) == 0
    assert "damaged    runs/reverse/candidates.jsonl, line 1: not JSON" in capsys.readouterr().out


def test_show_says_what_was_found_every_candidate_and_what_the_best_changed(
    searched: Searched, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(evaluate=["whet eval run reverse-text"], cost=0.5)
    assert main(["gepa", "show", "reverse"]) == 0
    out = capsys.readouterr().out
    for line in (
        "search     Prompts for reverse-text with whet/tiny, proposals from big",
        "state      finished: the budget is spent",
        "calls      80 of 100, $0.5000",
        "found      Candidate 3 is better than the seed on examples that the search has never seen.",
        "evaluate   whet eval run reverse-text",
        "*       3  2     accepted",
        "candidate  3, accepted: it is better on validation",
        "           against candidate 2, which it was made from:",
        "- Reverse every letter of the text.",
        "+ Reverse every letter, slowly.",
    ):
        assert line in out


def test_another_candidate_is_shown_where_it_is_asked_for(
    searched: Searched, capsys: pytest.CaptureFixture[str]
) -> None:
    searched()
    assert main(["gepa", "show", "reverse", "--candidate", "1"]) == 0
    assert "candidate  1, rejected: not better" in capsys.readouterr().out
    assert main(["gepa", "show", "reverse", "--candidate", "9"]) == 2
    assert "there is no candidate 9; there are 0 to 3" in capsys.readouterr().err


def test_whatever_models_write_is_harmless_in_a_terminal(
    searched: Searched, candidate: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = candidate(0)
    hostile = "\x1b]0;owned\x07\x1b[31mred\u202e"
    other = candidate(1, parent=seed, text=hostile, reason=hostile, rewards=[1.0])
    searched(candidates=[seed, other], reason=hostile, config={"model": hostile}, evaluate=[hostile])
    for arguments in (["show", "reverse"], ["list"]):
        assert main(["gepa", *arguments]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_programs_get_everything_as_json(searched: Searched, capsys: pytest.CaptureFixture[str]) -> None:
    searched()
    assert main(["gepa", "list", "--json"]) == 0
    (head,) = json.loads(capsys.readouterr().out)["searches"]
    assert (head["best"], head["best_validation"], head["accepted"]) == (3, 0.75, 2)
    assert main(["gepa", "show", "reverse", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["number"] for one in shown["candidates"]] == [0, 1, 2, 3]
    assert shown["confirmation"]["real"] is True


def test_the_report_can_be_written_again(searched: Searched, capsys: pytest.CaptureFixture[str]) -> None:
    directory = searched()
    assert main(["gepa", "report", "reverse"]) == 0
    assert "runs/reverse/report.html" in capsys.readouterr().out
    assert (directory / "report.html").is_file()
