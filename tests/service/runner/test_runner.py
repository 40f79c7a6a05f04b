"""Runs of trivial commands through the real queue, runner and shim: ends, stops, kills, adoption."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from whet.system.children import began


@pytest.fixture
def database_url() -> None:
    """SQLite: the kind of the database plays no part here; `test_kills.py` has both."""


def alive(process: dict[str, Any]) -> bool:
    return began(process["pid"]) == process["process_began"]


UNTIL_STOPPED = "trap 'echo stopped; exit 143' TERM; echo ready; while :; do sleep 0.05; done"


def test_a_run_that_ends_well_is_finished(working: Any) -> None:
    run = working.queue.submit()
    row = working.end(working.runner("echo hello; pwd; cat config.toml"), run)
    assert (row.state, row.reason, row.attempt) == ("finished", "", 1)
    assert working.output(run).splitlines() == ["hello", str(working.folder(run).submission), "max_steps = 4"]


def test_a_run_that_fails_has_the_reason_that_it_printed(working: Any) -> None:
    run = working.queue.submit()
    row = working.end(working.runner("echo all is well; echo no such model >&2; exit 3"), run)
    assert (row.state, row.reason) == ("failed", "no such model")
    again = working.queue.submit()
    row = working.end(working.runner("echo failed: no such model; echo continue with: this; exit 1"), again)
    assert (row.state, row.reason) == ("failed", "no such model")


def test_a_run_that_is_stopped_gets_the_signal_once(working: Any) -> None:
    from whet.service.domain import runs

    run = working.queue.submit()
    runner = working.runner("trap 'echo got it' TERM; echo ready; while ! [ -e ../go ]; do sleep 0.05; done; exit 143")
    working.running(runner, run)
    working.until(runner, lambda: "ready" in working.output(run))
    with working.queue.database.write() as session:
        runs.request_stop(session, session.get_one(type(working.queue.run(run)), run), "ann", 0.0)
    working.until(runner, lambda: "got it" in working.output(run))
    for _ in range(5):
        runner.tick()
    (working.folder(run).path / "go").touch()
    row = working.end(runner, run)
    assert (row.state, row.reason) == ("stopped", "stopped by ann")
    assert working.output(run) == "ready\ngot it\n"


def test_a_runner_that_was_killed_is_followed_by_one_that_adopts_the_same_process(working: Any) -> None:
    run = working.queue.submit()
    script = "while ! [ -e ../go ]; do sleep 0.05; done"
    first = working.runner(script)
    before = working.running(first, run)
    working.abandon(first)
    second = working.runner(script)
    working.until(second, lambda: run in second.following)
    working.until(second, lambda: working.queue.run(run).fence == 2)
    (working.folder(run).path / "go").touch()
    row = working.end(second, run)
    assert (row.state, row.attempt) == ("finished", 1)
    assert not alive(before["run"])


def test_a_run_whose_runner_was_killed_before_it_began_is_begun_by_the_next_in_the_same_attempt(working: Any) -> None:
    run = working.queue.submit()
    first = working.runner()
    assert working.queue.claim(first.id) is not None
    working.abandon(first)
    row = working.end(working.runner("echo begun"), run)
    assert (row.state, row.attempt, row.fence) == ("finished", 1, 2)
    assert working.output(run) == "begun\n"


def test_a_run_that_ended_while_no_runner_lived_is_finished_by_the_next(working: Any) -> None:
    run = working.queue.submit()
    first = working.runner("while ! [ -e ../go ]; do sleep 0.05; done; exit 5")
    working.running(first, run)
    working.abandon(first)
    (working.folder(run).path / "go").touch()
    row = working.end(working.runner(), run)
    assert (row.state, row.attempt) == ("failed", 1)


def test_a_killed_shim_is_replaced_and_the_run_not_started_again(working: Any) -> None:
    run = working.queue.submit()
    runner = working.runner(UNTIL_STOPPED)
    before = working.running(runner, run)
    working.until(runner, lambda: "ready" in working.output(run))
    os.kill(before["shim"]["pid"], signal.SIGKILL)
    read = lambda: __import__("json").loads(working.attempt(run).identity.read_text())  # noqa: E731
    working.until(runner, lambda: read()["shim"] != before["shim"])
    assert read()["run"] == before["run"]
    assert alive(before["run"])
    os.kill(before["run"]["pid"], signal.SIGTERM)
    working.until(runner, lambda: working.queue.run(run).attempt == 2)  # no code is known: evidence of an end alone
    assert working.attempt(run, 1).output.read_text() == "ready\nstopped\n"


def test_a_run_whose_processes_were_all_killed_is_queued_again(working: Any) -> None:
    run = working.queue.submit()
    runner = working.runner(UNTIL_STOPPED)
    before = working.running(runner, run)
    for one in ("shim", "run"):
        os.kill(before[one]["pid"], signal.SIGKILL)
    working.until(runner, lambda: working.queue.run(run).attempt == 2)
    after = working.running(runner, run)
    assert after["run"] != before["run"]
    row = working.queue.run(run)
    assert row.resume


def test_what_a_run_left_behind_ends_with_it(working: Any) -> None:
    run = working.queue.submit()
    row = working.end(working.runner("sleep 1000 & echo $!; exit 0"), run)
    assert row.state == "finished"
    assert began(int(working.output(run))) is None


def test_a_run_of_a_machine_that_was_started_again_is_queued_again(working: Any) -> None:
    from whet.service.runner.machine import Machine

    run = working.queue.submit()
    first = working.runner(UNTIL_STOPPED)
    before = working.running(first, run)
    for one in ("shim", "run"):
        os.kill(before[one]["pid"], signal.SIGKILL)
    working.abandon(first)
    second = working.runner("true", Machine("box", "another boot", 4.0, 1 << 36, ()))
    row = working.end(second, run)
    assert (row.state, row.attempt) == ("finished", 2)


def test_an_expired_lease_of_another_machine_is_no_evidence(working: Any) -> None:
    from whet.service.runner.machine import Machine

    run = working.queue.submit()
    first = working.runner("while ! [ -e ../go ]; do sleep 0.05; done")
    working.running(first, run)

    def expire(session: Any) -> None:
        from whet.service.storage.tables import AttemptRow

        session.get_one(AttemptRow, (run, 1)).lease_until = 1.0

    working.queue.change(expire)
    other = working.runner("true", Machine("elsewhere", "its boot", 4.0, 1 << 36, ()))
    other.tick()
    row = working.queue.run(run)
    assert (row.state, row.attempt, row.fence) == ("running", 1, 1)
    assert row.reason == "unknown since 1970-01-01T00:00:01+00:00: box does not answer"
    (working.folder(run).path / "go").touch()
    assert working.end(first, run).state == "finished"


@pytest.mark.parametrize("count", [100_000_000, pytest.param(3_000_000_000, marks=pytest.mark.parts)])
def test_output_without_end_is_bounded(working: Any, count: int) -> None:
    from whet.service.runner.output import FILE_BYTES

    run = working.queue.submit()
    row = working.end(working.runner(f"yes | head -c {count}; echo the end"), run)
    assert row.state == "finished"
    files = list(working.attempt(run).path.glob("output.log*"))
    assert sum(file.stat().st_size for file in files) <= 2 * FILE_BYTES
    assert working.output(run).endswith("y\nthe end\n")


def test_files_of_a_submission_are_verified(working: Any, tmp_path: Path) -> None:
    import hashlib

    from whet.hub.storage.store import FileStore

    source = tmp_path / "source"
    source.write_text("right")
    sha256 = hashlib.sha256(b"right").hexdigest()
    store = FileStore(str(tmp_path / "blobs"))
    store.add(source, sha256)
    runner = working.runner("cat data/rows.txt")
    good = working.queue.submit(files={"data/rows.txt": sha256})
    assert working.end(runner, good).state == "finished"
    assert working.output(good) == "right"
    Path(store.path(sha256)).write_text("wrong")
    damaged = working.queue.submit(files={"data/rows.txt": sha256})
    row = working.end(runner, damaged)
    assert (row.state, row.attempt) == ("failed", 1)
    assert "'data/rows.txt' of the submission is damaged" in row.reason
    outside = working.queue.submit(files={"../../escape": sha256})
    assert "no path inside of it" in working.end(runner, outside).reason


def test_what_an_earlier_attempt_said_is_no_end_of_a_killed_one(working: Any) -> None:
    run = working.queue.submit()
    said = 'echo \'{"state": "finished"}\' > ../run/status.json'
    again = "[ -e ../run/status.json ] && sleep 1000"
    runner = working.runner(f"mkdir -p ../run; touch ../run/config.toml; {again}; {said}")
    assert working.end(runner, run).state == "finished"
    working.queue.change(lambda session: restart(session, run))
    second = working.running(runner, run)
    for one in ("shim", "run"):
        os.kill(second[one]["pid"], signal.SIGKILL)
    working.until(runner, lambda: working.queue.run(run).attempt == 3)


def test_a_database_that_is_locked_for_a_while_keeps_no_run_from_its_end(
    working: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from whet.hub.storage.database import Database
    from whet.service.runner import runner as module

    run = working.queue.submit()
    runner = working.runner("while ! [ -e ../go ]; do sleep 0.05; done")
    working.running(runner, run)
    monkeypatch.setattr("whet.hub.storage.database.BUSY_MS", 50)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    database, stop = working.queue.database, threading.Event()
    other = Database(database.url.render_as_string(hide_password=False))
    looking = threading.Thread(target=runner.run, args=(stop,))
    try:
        with other.write():
            database.engine.dispose()
            looking.start()
            wait_for(lambda: "the next look comes in a moment: the hub's database is busy" in caplog.text)
            (working.folder(run).path / "go").touch()
            wait_for(working.attempt(run, 1).exit.exists)
        wait_for(lambda: working.queue.run(run).ended_at)
    finally:
        stop.set()
        looking.join()
        other.close()
    row = working.queue.run(run)
    assert (row.state, row.attempt) == ("finished", 1)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 250.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def restart(session: Any, run: str) -> None:
    from whet.service.domain import runs
    from whet.service.storage.tables import RunRow

    runs.restart(session, session.get_one(RunRow, run), "ann", None, 0.0)


def test_a_cap_stops_a_run_with_its_reason(working: Any) -> None:
    run = working.queue.submit(caps={"seconds": 0.01})
    row = working.end(working.runner(UNTIL_STOPPED), run)
    assert (row.state, row.reason) == ("stopped", "stopped: its cap of 0.01 seconds was reached")


def test_clocks_that_are_an_hour_off_change_no_end(working: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of a runner's machine goes back and forth; leases and ends do not depend on it."""
    from whet.service.runner import runner as module

    run = working.queue.submit()
    first = working.runner("while ! [ -e ../go ]; do sleep 0.05; done")
    second = working.runner("true")
    working.running(first, run)
    real = time.time
    for hours in (1, -1):
        monkeypatch.setattr(module.time, "time", lambda hours=hours: real() + 3600 * hours)
        for one in (first, second, first):
            one.tick()
        row = working.queue.run(run)
        assert (row.state, row.attempt, row.fence) == ("running", 1, 1)
    working.queue.ahead = 3600.0  # the database's clock: the lease has expired, and the run still is the first runner's
    second.tick()
    assert working.queue.run(run).fence == 1
    (working.folder(run).path / "go").touch()
    assert working.end(first, run).state == "finished"


def test_a_restart_whose_runner_was_killed_while_it_prepared_is_not_taken_for_finished(working: Any) -> None:
    run = working.queue.submit()
    first = working.runner(
        'mkdir -p ../run; touch ../run/config.toml; echo \'{"state": "finished"}\' > ../run/status.json'
    )
    assert working.end(first, run).state == "finished"
    working.queue.change(lambda session: restart(session, run))
    assert working.queue.claim(first.id) is not None  # and then it was killed
    working.abandon(first)
    second = working.runner("echo again")
    row = working.end(second, run)
    assert (row.state, row.attempt) == ("finished", 2)
    assert working.output(run) == "again\n"


def test_a_run_that_cannot_be_looked_at_keeps_no_other_from_its_end(
    working: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = working.runner("while ! [ -e ../go ]; do sleep 0.05; done")
    broken, whole = working.queue.submit(), working.queue.submit()
    working.running(runner, broken)
    working.running(runner, whole)

    def fail() -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(runner.following[broken], "watch", type("Watch", (), {"look": staticmethod(fail)}))
    (working.folder(whole).path / "go").touch()
    assert working.end(runner, whole).state == "finished"
    assert f"run {broken} could not be looked at" in caplog.text
