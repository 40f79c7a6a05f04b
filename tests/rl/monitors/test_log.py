"""`logs/run.log`: lines of the run and warnings of the process, without secrets, and never larger than it should be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from whet.rl.monitors import MonitorGroup
from whet.rl.monitors import log as module
from whet.rl.monitors.log import LOG, run_log
from whet.rl.monitors.protocol import Outcome, RunPlan, StepReport
from whet.system.redaction import Redactor

PLAN = RunPlan("r", Path("runs/r"), "whet/tiny", ["a"], 8, 4, 10)
NOTHING = Redactor({})


def test_lines_of_the_run_and_warnings_are_in_it_and_nothing_less(tmp_path: Path) -> None:
    with run_log(tmp_path, NOTHING) as log:
        log.start(PLAN)
        log.step(StepReport(1, {"reward/mean": 0.25}))
        logging.getLogger("whet.clients").warning("the endpoint is busy")
        logging.getLogger("somebody.else").error("the disk is old")
        logging.getLogger("whet.clients").info("asked again")
        log.ended(Outcome("finished", 1, "done"))
    text = (tmp_path / LOG).read_text()
    assert "INFO step 1/10  reward 0.250" in text
    assert "WARNING whet.clients: the endpoint is busy" in text
    assert "ERROR somebody.else: the disk is old" in text
    assert "asked again" not in text
    assert "INFO finished after 1 step" in text


def test_a_resumed_run_writes_on_and_nobody_writes_after_the_end(tmp_path: Path) -> None:
    for message in ("first", "second"):
        with run_log(tmp_path, NOTHING) as log:
            log.note(message)
    logging.getLogger("whet").warning("too late")
    text = (tmp_path / LOG).read_text()
    assert text.index("first") < text.index("second")
    assert "too late" not in text


def test_known_secrets_and_control_characters_are_taken_out(tmp_path: Path) -> None:
    redactor = Redactor({"JUDGE": "hunter2hunter2", "SHORT": "1"})
    redactor.add_environment({"SOME_API_KEY": "sk-12345678", "HOME": "/home/somebody"})
    with run_log(tmp_path, redactor) as log:
        log.note("1 call with sk-12345678 from /home/somebody")
        logging.getLogger("whet").warning("refused: %s\x1b[2J", "hunter2hunter2")
    text = (tmp_path / LOG).read_text()
    assert "1 call with [SOME_API_KEY] from /home/somebody" in text
    assert "refused: [JUDGE]" in text
    assert "\x1b" not in text


def test_a_full_log_begins_a_new_file_and_forgets_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with run_log(tmp_path, NOTHING) as log:
        for number in range(100):
            log.note(f"line {number}")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [LOG, f"{LOG}.1", f"{LOG}.2", f"{LOG}.3"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 99" in (tmp_path / LOG).read_text()


def test_a_log_that_cannot_be_written_is_named_and_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    with run_log(tmp_path / "logs", NOTHING) as log:
        group = MonitorGroup([log])
        group.note("written")
        (tmp_path / "logs" / f"{LOG}.1").mkdir()  # nothing can be renamed to a directory
        (tmp_path / "logs" / f"{LOG}.1" / "in the way").touch()
        for _ in range(5):
            group.note("a line that is long enough for the file to be full after a few of its kind")
    assert group.monitors == []
    assert sum("LogMonitor failed and is off" in record.message for record in caplog.records) == 1
