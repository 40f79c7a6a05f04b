"""report.html of a search, made from its directory alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import RunError
from whet.gepa.report import ancestors, best_so_far, lineage, write_report
from whet.gepa.types import CandidateRecord

Make = Callable[..., CandidateRecord]
Searched = Callable[..., Path]
ReadPage = Callable[[Path], Any]


def reflection(record: CandidateRecord, answer: str | None, **reply: Any) -> dict[str, Any]:
    said = {"answer": answer, "failure": None, "said": "", "finish_reason": "stop", **reply}
    usage = {"prompt_tokens": 900, "completion_tokens": 100}
    reply = {**said, "usage": usage}
    return {"key": "k", "number": 0, "component": "system_prompt", "candidate": record.id, "reply": reply}


def test_the_page_needs_nothing_but_itself(searched: Searched, read_page: ReadPage) -> None:
    directory = searched()
    path = write_report(directory)
    assert path == directory / "report.html"
    read_page(path).check()


def test_it_begins_with_what_was_found_and_what_it_took(searched: Searched, read_page: ReadPage) -> None:
    text = read_page(write_report(searched(cost=0.125))).text
    for said in (
        "Prompts for reverse-text with whet/tiny",
        "proposals from big, 10 training, 4 validation, 10 held-out examples",
        "It ended because the budget is spent.",
        "best prompt on validation, the seed 0.250 0.750",
        "calls spent, of 100 80",
        "proposals accepted, 1 rejected 2",
        "cost, of all calls and reflections $0.1250",
        "Candidate 3 is better than the seed on examples that the search has never seen.",
        "over 10 examples the best prompt earned 0.800 and the seed 0.500: a difference of +0.300, "
        "95 % interval +0.100 to +0.500, which is above 0.",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("confirmation", "said"),
    [
        ({"low": -0.1, "real": False}, "which includes 0: this is not a difference."),
        ({"low": -0.9, "high": -0.1, "difference": -0.5, "real": False}, "Candidate 3 is worse than the seed"),
        (None, "Not confirmed: candidate 3 was better on the examples it was chosen by."),
    ],
)
def test_what_is_no_improvement_is_not_called_one(
    searched: Searched, read_page: ReadPage, confirmation: dict[str, Any] | None, said: str
) -> None:
    known = {"pairs": 10, "seed_mean": 0.5, "best_mean": 0.6, "difference": 0.1, "low": 0.0, "high": 0.3}
    text = read_page(write_report(searched(confirmation=confirmation and {**known, **confirmation}))).text
    assert said in text
    assert "is better than the seed" not in text


def test_a_seed_that_nothing_was_better_than_stays(searched: Searched, candidate: Make, read_page: ReadPage) -> None:
    directory = searched(candidates=[candidate(0, text="Reverse.")], confirmation=None, reason="the seed is perfect")
    text = read_page(write_report(directory)).text
    assert "The seed prompt stays: no proposal was shown to be better." in text
    assert "The seed prompt, still the best Reverse." in text


def test_every_candidate_is_shown_with_its_reason_and_what_it_changed(searched: Searched, read_page: ReadPage) -> None:
    text = read_page(write_report(searched())).text
    for said in (
        "candidate 2 from 0, 0.500 on validation: it is better on validation",
        "- Reverse the text. + Reverse every letter of the text.",
        "candidate 3 from 2, 0.750 on validation",
        "candidate 1 from 0: not better",
        "on its minibatch 0.667, its parent 0.333",
        "p = 0.01 against its parent",
        "- Reverse the text. + Do nothing.",
    ):
        assert said in text


def test_changed_words_are_marked_in_their_lines(searched: Searched, candidate: Make, read_page: ReadPage) -> None:
    seed = candidate(0, text="Answer with the reversed text.")
    best = candidate(1, parent=seed, rewards=[1.0], text="Answer with the whole reversed text.")
    page = read_page(write_report(searched(candidates=[seed, best])))
    assert len(page.named("ins")) == 2  # against the seed, and against its parent
    assert not page.named("del")
    assert "whole" in [text.strip() for text in page.texts]


def test_the_command_that_evaluates_the_best_prompt_is_there_to_be_copied(
    searched: Searched, read_page: ReadPage
) -> None:
    command = 'whet eval run reverse-text -a \'{"system_prompt": "x"}\''
    assert command in read_page(write_report(searched(evaluate=[command]))).texts


def test_each_validation_example_has_a_line_that_can_be_sorted(
    searched: Searched, candidate: Make, rollout: Callable[..., Any], read_page: ReadPage
) -> None:
    page = read_page(write_report(searched(rollouts=[rollout(candidate(0), 3, 0.0)])))
    assert len(page.named("button")) == 6
    cells = [one["data-value"] for tag, one in page.tags if tag == "td" and "data-value" in one]
    lines = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    assert lines == [["0", "3", "0", "0"], ["1", "3", "1", "1"], ["1", "2", "0", "1"], ["1", "1", "0", "1"]]
    assert "reverse-text/3 text 3 0.000 0, 2, 3 0.000 0.000" in page.text


def test_answers_of_no_use_failed_calls_and_tokens_are_counted(
    searched: Searched, candidate: Make, rollout: Callable[..., Any], read_page: ReadPage
) -> None:
    seed = candidate(0, text="Reverse.")
    asked = [
        reflection(seed, "<new_text>Reverse.</new_text>"),
        reflection(seed, "<new_text>Reverse all.</new_text>"),
        reflection(seed, None, failure="refused", said="no"),
        reflection(seed, None, failure="too long", said="too much"),
    ]
    rows = [rollout(seed, 0, 1.0), rollout(seed, 1, "ModelError"), rollout(seed, 2, "ModelError")]
    text = read_page(write_report(searched(candidates=[seed], rollouts=rows, reflections=asked))).text
    assert "answers of no use, of the reflection model 2" in text
    assert "0 system_prompt it is the current text, unchanged" in text
    assert "0 system_prompt it was refused (no) no" in text
    assert "calls failed, and count as reward 0 2" in text
    assert "rollouts: whet/tiny 3 60 15 -" in text
    assert "reflection: big 4 3,600 400 -" in text
    assert "ModelError 2" in text


def test_a_search_that_did_not_end_is_reported_as_far_as_it_came(
    searched: Searched, candidate: Make, read_page: ReadPage
) -> None:
    directory = searched(candidates=[candidate(0)], state="interrupted", reason="Ctrl-C", confirmation=None)
    text = read_page(write_report(directory)).text
    assert f"It has not ended: interrupted (Ctrl-C). To go on: whet gepa run --resume {directory}" in text
    with (directory / "rollouts" / "results.jsonl").open("a") as file:
        file.write('{"example": "torn')
    write_report(directory)


def test_a_search_that_has_decided_on_nothing_has_a_page_too(searched: Searched, read_page: ReadPage) -> None:
    page = read_page(write_report(searched(candidates=[], state="running", confirmation=None, plan=None)))
    page.check()
    assert "Nothing is known yet: the seed prompt has not been validated." in page.text


def test_whatever_models_and_environments_write_stays_text(
    searched: Searched, candidate: Make, rollout: Callable[..., Any], read_page: ReadPage, hostile: tuple[str, str]
) -> None:
    said, shown = hostile
    seed = candidate(0, text=said)
    other = candidate(1, parent=seed, text=f"{said}\n{said}", rewards=[1.0], reason=said)
    rejected = candidate(2, parent=seed, text=f"{said} x", verdict="rejected", reason=said)
    failed = rollout(seed, 0, "Error")
    failed["error"] = {"error": said}
    failed["prompt"] = [{"role": "user", "content": said}]
    directory = searched(
        candidates=[seed, other, rejected],
        rollouts=[failed],
        reflections=[reflection(seed, None, failure="refused", said=said)],
        config={"model": said, "reflection_model": said, "env": [{"id": said, "name": said}]},
        reason=said,
        evaluate=[said],
    )
    page = read_page(write_report(directory))
    page.check()
    assert page.text.count(shown) >= 12


def test_the_lineage_has_each_candidate_beside_its_parent(candidate: Make) -> None:
    seed = candidate(0)
    one, two = candidate(1, parent=seed), candidate(2, parent=seed)
    three = candidate(3, parent=two)
    records = [seed, one, two, three, candidate(4, parent=two, verdict="rejected")]
    nodes = {node.record.number: node for node in lineage(records)}
    assert {number: node.column for number, node in nodes.items()} == {0: 0, 1: 1, 2: 1, 3: 2}
    assert nodes[2].row == nodes[3].row
    assert nodes[0].row == nodes[1].row
    assert nodes[2].rejected == 1
    assert ancestors(records, three) == {0, 2, 3}


def test_a_lineage_of_any_length_can_be_drawn(candidate: Make, searched: Searched, read_page: ReadPage) -> None:
    records = [candidate(0)]
    for number in range(1, 1500):
        records.append(candidate(number, parent=records[-1], text=f"prompt {number}"))
    assert max(node.column for node in lineage(records)) == 1499


def test_lineage_is_drawn_despite_candidates_that_are_their_own_parents(candidate: Make) -> None:
    seed = candidate(0)
    odd = candidate(1, parent=seed, text="odd")
    odd.parents = [odd.id, "unknown"]
    twice = candidate(2, parent=seed, text="odd")
    assert sorted(node.record.number for node in lineage([seed, odd, twice])) == [0, 1, 2]
    assert ancestors([seed, odd], odd) == {1}


def test_the_best_so_far_rises_in_steps(candidate: Make) -> None:
    seed = candidate(0, rewards=[0.5])
    records = [
        seed,
        candidate(1, parent=seed, rewards=[0.4]),
        candidate(2, parent=seed, rewards=[0.9], verdict="rejected"),
        candidate(3, parent=seed, rewards=[0.7]),
    ]
    assert best_so_far(records) == [(10, 0.5), (40, 0.7)]


@pytest.mark.parametrize("name", ["metadata.json", "candidates.jsonl", "rollouts/results.jsonl", "reflections.jsonl"])
def test_a_damaged_file_is_named(searched: Searched, name: str) -> None:
    directory = searched()
    (directory / name).write_text("{]\n")
    with pytest.raises(RunError, match=name):
        write_report(directory)


def test_a_confirmation_that_is_none_is_named(searched: Searched) -> None:
    with pytest.raises(RunError, match=r"metadata\.json: confirmation\.pairs: .*whet gepa run --resume"):
        write_report(searched(confirmation={"pairs": "many"}))


def test_a_folder_that_is_no_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no search .*whet gepa list"):
        write_report(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt", "example", "error", "token_usage", "reward"), JSON))
REPLY = st.fixed_dictionaries({}, optional=dict.fromkeys(("answer", "failure", "usage", "finish_reason", "said"), JSON))
ASKED = st.fixed_dictionaries({}, optional={"reply": REPLY | JSON, "component": JSON, "candidate": JSON})
TOLD = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("config", "plan", "state", "reason", "spent", "cost", "confirmation", "date", "evaluate"), JSON
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=ROW, asked=ASKED, told=TOLD)
def test_whatever_its_files_hold_there_is_a_page_or_one_clear_message(
    row: dict[str, Any], asked: dict[str, Any], told: dict[str, Any], tmp_path: Path, candidate: Make
) -> None:
    (tmp_path / "rollouts").mkdir(exist_ok=True)
    (tmp_path / "rollouts" / "results.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "reflections.jsonl").write_text(json.dumps(asked) + "\n")
    (tmp_path / "metadata.json").write_text(json.dumps(told))
    (tmp_path / "candidates.jsonl").write_text(json.dumps(asdict(candidate(0))) + "\n")
    with contextlib.suppress(RunError):
        write_report(tmp_path)
