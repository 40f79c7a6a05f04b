"""`[wandb]` and `[trackio]` with the real libraries, without a network."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, MissingExtraError
from whet.rl.config import RunConfig
from whet.rl.monitors import MonitorGroup
from whet.rl.monitors.protocol import EvalReport, Outcome, RunPlan, StepReport
from whet.rl.monitors.trackers import trackers
from whet.rollouts.totals import EvalScore
from whet.system.redaction import Redactor

KEY = "0123456789" * 4
SECRET = "hunter2hunter2"


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "env": [{"id": "a", "args": {"judge": SECRET}}], **sections})


ODD = {
    f"reward/a/{name}": 0.25 + number for number, name in enumerate(("step", "metric_mean", "<lambda>", "<lambda>_2"))
}
"""Of reward functions with the names of what stands beside them."""


def told(made: RunConfig, directory: Path, *, first: int, steps: int) -> None:
    """One start of a run, watched: `steps` steps from `first`, then an evaluation."""
    plan = RunPlan("r", directory, "whet/tiny", ["a"], 8, 4, 10, first_step=first)
    sample = {"environment": "a", "prompt": "2 + 2", "completion": [{"role": "assistant", "content": "4"}], "reward": 1}
    group = MonitorGroup(trackers(made, Redactor({"JUDGE": SECRET})))
    watching = len(group.monitors)
    group.start(plan)
    for step in range(first, first + steps):
        group.step(StepReport(step, {"reward/mean": step / 10, "policy/kl": 0.5, **ODD}, sample))
    scores = [EvalScore("a", "temperature 1", 0.75, {}, 4, pass_at_k={"2": 1.0})]
    group.evaluation(EvalReport("after", first + steps - 1, first + steps - 1, scores))
    group.ended(Outcome("finished", first + steps - 1, "done"))
    assert len(group.monitors) == watching, "a tracker failed"


def wandb_records(run: Path) -> list[Any]:
    """What the library wrote for `wandb sync`."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service may still be writing; a process that ends waits for it in the same way
    records = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for data in leveldb_log(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            records.append(record)
    return records


def leveldb_log(data: bytes, header: int = 7, block: int = 32768) -> Iterator[bytes]:
    """The records of a log in the format of LevelDB, which W&B's files have after a header of their own."""
    place, begun = header, b""
    while place + 7 <= len(data):
        room = block - place % block
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        begun += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield begun
            begun = b""


def test_wandb_offline_has_every_metric_and_a_resumed_run_goes_on_with_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs the 'wandb' extra")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    made = config(wandb={"project": "p", "tags": ["t"], "offline": True, "samples_every": 2})
    before, after = tmp_path / "before", tmp_path / "after"
    told(made, before, first=1, steps=2)
    # Moved before it goes on: the library names its files by the second, and a test takes less.
    (after / "wandb").mkdir(parents=True)
    shutil.copy(before / "wandb" / "run_id", after / "wandb")
    told(made, after, first=3, steps=1)

    records = [*wandb_records(before), *wandb_records(after)]
    runs = [record.run for record in records if record.HasField("run")]
    assert {run.run_id for run in runs} == {(before / "wandb" / "run_id").read_text().strip()}
    assert (runs[0].project, runs[0].display_name, list(runs[0].tags)) == ("p", "r", ["t"])
    rows = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert all(row.items() >= ODD.items() for row in rows if "reward/mean" in row)
    assert [row["step"] for row in rows if "samples" in str(row)] == [2]
    evaluated = [row for row in rows if "eval/version" in row]
    assert [(row["eval/version"], row["eval/a/reward"], row["eval/a/pass@2"]) for row in evaluated] == [
        (2, 0.75, 1.0),
        (3, 0.75, 1.0),
    ]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in data or SECRET.encode() in data for data in files)


def test_wandb_online_without_a_key_is_refused_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the 'wandb' extra")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ConfigError, match=r"WANDB_API_KEY.*wandb\.offline = true"):
        trackers(config(wandb={}), Redactor({}))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, name, None)  # what Python does where a module is not there
    with pytest.raises(MissingExtraError, match=rf"whet\[{name}\]"):
        trackers(config(**{name: {}}), Redactor({}))


def test_trackio_keeps_every_metric_here_and_a_resumed_run_goes_on_with_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio", reason="needs the 'trackio' extra")
    made = config(trackio={"project": "p"})
    told(made, tmp_path, first=1, steps=2)
    told(made, tmp_path, first=3, steps=1)
    told(made, tmp_path / "another", first=1, steps=1)  # of the same name: a run of its own

    with sqlite3.connect(tmp_path / "kept" / "p.db") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("select * from metrics order by id").fetchall()
    mine = json.loads((tmp_path / "trackio.json").read_text())["id"]
    other = json.loads((tmp_path / "another" / "trackio.json").read_text())["id"]
    assert mine != other
    seen = [(row["step"], json.loads(row["metrics"])) for row in rows if row["run_id"] == mine]
    assert [(step, values["reward/mean"]) for step, values in seen if "reward/mean" in values] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    assert all(values.items() >= ODD.items() for _, values in seen if "reward/mean" in values)
    assert [(step, values["eval/a/pass@2"]) for step, values in seen if "eval/version" in values] == [(2, 1), (3, 1)]
    assert capsys.readouterr().out == ""
