"""Finding what there is to look at, without reading a rollout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.errors import RunError
from whet.records.lock import DirectoryLock
from whet.records.sources import candidate_names, find_sources, source_at


def evaluation(folder: Path, date: str = "2026-01-01T00:00:00", rows: str = "not read", **more: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text(rows)
    metadata = {
        "env_id": "echo", "model": "m", "date": date, "num_examples": 5, "rollouts_per_example": 3,
        "avg_reward": 0.5, "state": "finished", **more,
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def run(folder: Path, ended: str = "2026-01-02T00:00:00+00:00") -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.toml").write_text(
        'model = "whet/tiny"\n[[env]]\nid = "environments/echo"\n[[env]]\nid = "sums"\nname = "easy sums"\n'
    )
    (folder / "status.json").write_text(json.dumps({"state": "finished", "ended": ended}))
    return folder


def test_evaluations_and_runs_are_found_newest_first(tmp_path: Path) -> None:
    evaluation(tmp_path / "outputs" / "evals" / "echo--m" / "1", "2026-01-01T00:00:00")
    run(tmp_path / "runs" / "first", "2026-01-03T12:00:00+00:00")
    evaluation(tmp_path / "outputs" / "evals" / "echo--m" / "2", "2026-01-05T00:00:00")
    sources = find_sources(tmp_path)
    assert [(source.kind, source.path.name) for source in sources] == [
        ("evaluation", "2"), ("training", "first"), ("evaluation", "1"),
    ]  # fmt: skip
    assert [(source.environment, source.model, source.state) for source in sources[:2]] == [
        ("echo", "m", "finished"),
        ("echo, easy sums", "whet/tiny", "finished"),
    ]
    assert (sources[0].count, sources[0].reward) == (15, 0.5)


def search(folder: Path, state: str = "finished", candidates: str = "") -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "rollouts" / "results.jsonl").write_text("not read")
    (folder / "gepa.toml").write_text("")
    (folder / "candidates.jsonl").write_text(candidates)
    metadata = {
        "config": {"model": "m", "env": [{"id": "environments/echo"}]}, "state": state, "date": "2026-01-07T00:00:00",
        "spent": 80, "best": {"id": "b", "number": 3, "val_mean": 0.75},
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def test_search_is_found_with_its_model_and_best_score(tmp_path: Path) -> None:
    folder = search(tmp_path / "runs" / "gepa-echo")
    (source,) = find_sources(tmp_path)
    assert (source.kind, source.path, source.environment, source.model) == ("search", folder, "echo", "m")
    assert (source.state, source.count, source.reward) == ("finished", 80, 0.75)
    for place in (folder, folder / "rollouts", folder / "rollouts" / "results.jsonl"):
        assert (source_at(place).kind, source_at(place).rollouts) == ("search", folder / "rollouts" / "results.jsonl")


def test_running_and_killed_searches_differ(tmp_path: Path) -> None:
    folder = search(tmp_path / "a", state="running")
    assert source_at(folder).state == "unfinished"
    lock = DirectoryLock(folder)
    assert source_at(folder).state == "running"
    lock.release()


def test_candidate_names_have_number_and_verdict(tmp_path: Path) -> None:
    listed = [
        {"id": "s", "number": 0, "verdict": "seed"},
        {"id": "a", "number": 1, "verdict": "accepted"},
        {"id": "a", "number": 2, "verdict": "rejected"},
        {"id": "r", "number": 3, "verdict": "rejected"},
        {"id": "r", "number": 4, "verdict": "rejected"},
    ]
    lines = "".join(json.dumps(line) + "\n" for line in listed)
    source = source_at(search(tmp_path, candidates=lines + "{]\n"))
    assert candidate_names(source) == {"s": "0 seed", "a": "1 accepted", "r": "4 rejected"}
    assert candidate_names(source_at(evaluation(tmp_path / "e"))) == {}


def test_folders_that_hold_neither_are_not_entered(tmp_path: Path) -> None:
    for hidden in (".venv", "node_modules", "checkpoints"):
        evaluation(tmp_path / hidden / "x")
    run(tmp_path / "r")
    evaluation(tmp_path / "r" / "rollouts" / "x")
    assert [source.path.name for source in find_sources(tmp_path)] == ["r"]


def test_running_and_killed_evaluations_differ(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "a", state="running")
    assert source_at(folder).state == "unfinished"
    lock = DirectoryLock(folder)
    assert source_at(folder).state == "running"
    lock.release()


def test_an_evaluation_without_metadata_is_dated_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("")
    (source,) = find_sources(tmp_path)
    assert (source.environment, source.state, source.note) == ("", "", None)
    assert source.date.startswith("20")


@pytest.mark.parametrize(("file", "content"), [("metadata.json", "{"), ("config.toml", "a ="), ("status.json", "{")])
def test_what_cannot_be_read_is_said_and_hides_no_rollouts(tmp_path: Path, file: str, content: str) -> None:
    folder = evaluation(tmp_path / "x") if file == "metadata.json" else run(tmp_path / "x")
    (folder / file).write_text(content)
    (source,) = find_sources(tmp_path)
    assert source.note is not None
    assert "\n" not in source.note


@pytest.mark.parametrize("value", ["7", "[]", "null", '"x"', "{}"])
def test_odd_metadata_says_little_and_stops_nothing(tmp_path: Path, value: str) -> None:
    folder = evaluation(tmp_path / "x")
    names = ("env_id", "model", "date", "num_examples", "rollouts_per_example", "avg_reward", "state")
    (folder / "metadata.json").write_text("{" + ", ".join(f'"{name}": {value}' for name in names) + "}")
    assert find_sources(tmp_path)[0].path == folder


def test_a_file_or_directory_in_an_evaluation_or_a_run_names_it(tmp_path: Path) -> None:
    results = evaluation(tmp_path / "e") / "results.jsonl"
    assert source_at(results).environment == "echo"
    assert source_at(tmp_path / "e" / "metadata.json").path == tmp_path / "e"
    assert source_at(run(tmp_path / "r") / "rollouts").kind == "training"
    other = tmp_path / "e" / "copy.jsonl"
    other.write_text("")
    assert (source_at(other).rollouts, source_at(other).environment) == (other, "")


def test_a_folder_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere: there is no such folder"):
        find_sources(tmp_path / "nowhere")
