"""What is read of a run's directory while its code may write there: never more than its own regular files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from whet.records.lock import is_held, take
from whet.service.runner.ends import End, end_of
from whet.service.runner.progress import Seen, Watch
from whet.system.untrusted import read_object


def test_steps_and_tokens_grow_with_the_files(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "training")
    assert watch.look() == Seen(tokens=0)
    (tmp_path / "status.json").write_text('{"state": "running", "step": 2, "max_steps": 9, "last_error": null}')
    row = '{"perf/tokens_per_s": 10, "time/step": 2}\n'
    (tmp_path / "metrics.jsonl").write_text(row * 2 + '{"perf/tok')
    assert watch.look() == Seen(2, 9, 40, "running")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('ens_per_s": 10, "time/step": 2}\nnot JSON\n[1]\n')
    assert watch.look().tokens == 60
    (tmp_path / "metrics.jsonl").write_text(row)  # a resume has cut it
    assert watch.look().tokens == 20


def test_hostile_files_are_passed_over(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (outside / "status.json").write_text('{"state": "finished", "step": 7}')
    (run / "status.json").symlink_to(outside / "status.json")
    assert read_object(run, "status.json") == {}
    (run / "folder").symlink_to(outside)
    assert read_object(run, "folder/status.json") == {}
    os.mkfifo(run / "metrics.jsonl")
    assert Watch(run, "training").look() == Seen(tokens=0)
    (run / "status.json").unlink()
    for content in (
        "[" * 100_000,
        '{"state": 7, "step": -1, "max_steps": 1e99, "last_error": []}',
        "\0",
        "9" * 2_000_000,
    ):
        (run / "status.json").write_text(content)
        assert Watch(run, "training").look() == Seen(tokens=0)
    (run / "results.jsonl").write_text('{"token_usage": {"input_tokens": 1e999, "output_tokens": "many"}}\n')
    assert Watch(run, "evaluation").look().tokens == 0
    tmp_path.joinpath("run2").symlink_to(outside)
    assert read_object(tmp_path, "run2/status.json") == {}


def test_a_state_of_an_earlier_attempt_is_none_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "finished", "step": 4}')
    before = Watch(tmp_path, "training").mark()
    assert Watch(tmp_path, "training", before).look() == Seen(step=4, tokens=0)
    aside = tmp_path / "aside"
    aside.write_text('{"state": "finished", "step": 4}')
    aside.replace(tmp_path / "status.json")
    assert Watch(tmp_path, "training", before).look().state == "finished"


def test_evaluations_are_finished_when_all_are(tmp_path: Path) -> None:
    for name, state in (("a", "finished"), ("b", "running")):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({"state": state}))
        (folder / "results.jsonl").write_text('{"token_usage": {"input_tokens": 3, "output_tokens": 4}}\n')
    assert Watch(tmp_path, "evaluation").look() == Seen(step=2, tokens=14, state="running")
    (tmp_path / "b" / "1" / "metadata.json").write_text('{"state": "finished"}')
    assert Watch(tmp_path, "evaluation").look().state == "finished"


def test_a_search_counts_its_calls(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"state": "failed", "spent": 7, "max_calls": 24, "reason": "too small"}')
    assert Watch(tmp_path, "search").look() == Seen(7, 24, 0, "failed", "too small")


def test_how_an_attempt_ended() -> None:
    def end(
        code: int | None, state: str | None, *, stopping: bool = False, kind: str = "training", **more: object
    ) -> End:
        return end_of(kind, {"code": code, "signal": None, **more}, Seen(state=state, error="why"), stopping=stopping)

    assert end(0, "finished").state == "finished"
    assert end(0, None).state == "finished"
    assert end(1, "failed") == End("failed", "why", 1)
    assert end(2, None) == End("failed", "why", 2)
    assert end(130, "interrupted", stopping=True).state == "stopped"
    assert end(143, None, stopping=True).state == "stopped"
    assert end(130, "interrupted").state == "lost"  # by a signal of another: it continues
    assert end(137, "running", signal=9).state == "failed"
    assert end(137, "running", signal=9, stopping=True).state == "stopped"
    assert end(139, "running", signal=11).reason == "it was killed by signal 11"
    assert end(None, "running", gone="its machine was started again") == End("lost", "its machine was started again")
    assert end(None, "finished").state == "finished"
    assert end(None, "failed").state == "failed"
    assert end(1, "running", kind="evaluation").state == "failed"
    assert end(0, None, kind="evaluation").state == "finished"


def test_a_lock_is_held_by_one_and_free_after_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    descriptor = take(path)
    assert descriptor is not None
    assert is_held(path)
    assert take(path) is None
    os.close(descriptor)
    assert not is_held(path)
