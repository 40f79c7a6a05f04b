"""What a child process warns of reaches the run, whoever else stops: nobody waits for a log, and no kill hangs one."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whet.system.children
from whet.rl.monitors.log import LOG, run_log
from whet.rl.supervision import child_log
from whet.rl.supervision.child_log import CHILD, MOST_WAITING, ChildLog, ChildProcess
from whet.system.redaction import Redactor

DEADLINE = 30.0
logger = logging.getLogger("somebody.else")


class Child:
    """A forked process that runs `work(handler)` and whose log the test reads."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self.log = ChildLog()
        self.messages: list[Any] = []
        self.child = ChildProcess("learner", self.log, self._run, (work,), self.messages.append)
        self.process = self.child.process

    def _run(self, handler: Any, work: Callable[[Any], None]) -> None:
        for taken in list(logging.root.handlers):  # pytest's own
            if taken is not handler:
                logging.root.removeHandler(taken)
        work(handler)

    def waits(self) -> None:
        """Until it has ended and all of it was read."""
        self.process.join(timeout=DEADLINE)
        self.child.status()

    def ends(self) -> list[logging.LogRecord]:
        """What was told until the child had ended."""
        heard: list[logging.LogRecord] = []
        with self.log.forwarded_to(heard.append):
            self.waits()
        return heard


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whet.system.children, "START_METHOD", "fork")


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[Any], None]], Child]]:
    started: list[Child] = []

    def start(work: Callable[[Any], None]) -> Child:
        started.append(Child(work))
        return started[-1]

    yield start
    for one in started:
        one.child.end()
        one.log.close()


def told(heard: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in heard]


def test_warnings_of_loggers_and_of_python_are_heard_and_nothing_less(child: Any) -> None:
    def work(_: Any) -> None:
        logger.info("all is well")
        logger.warning("the disk is %s", "old")
        warnings.warn("use something newer", UserWarning, stacklevel=1)
        try:
            raise ValueError("seven")
        except ValueError:
            logger.exception("it failed")

    first, second, third = child(work).ends()
    assert (first.name, first.levelname, first.getMessage()) == ("somebody.else", "WARNING", "the disk is old")
    assert getattr(first, CHILD) == "learner"
    assert second.name == "py.warnings"
    assert "UserWarning: use something newer" in second.getMessage()
    assert (third.levelname, third.exc_info) == ("ERROR", None)
    assert third.exc_text is not None
    assert third.exc_text.endswith("ValueError: seven")


def test_a_library_that_keeps_its_records_to_itself_is_heard_once_after_it_is_loaded(child: Any) -> None:
    def work(handler: Any) -> None:
        library = logging.getLogger("library")
        library.propagate = False
        library.addHandler(logging.NullHandler())
        handler.attach()
        handler.attach()
        logging.getLogger("library.part").warning("deprecated")
        logger.warning("from elsewhere")

    assert told(child(work).ends()) == ["deprecated", "from elsewhere"]


def test_what_was_said_before_the_log_was_open_waits_for_it(child: Any) -> None:
    one = child(lambda _: logger.warning("while the model was loaded"))
    one.waits()
    assert told(one.ends()) == ["while the model was loaded"]


def test_what_nobody_ever_hears_goes_to_standard_error(child: Any, capfd: pytest.CaptureFixture[str]) -> None:
    one = child(lambda _: logger.warning("no run came of it"))
    one.waits()
    one.log.close()
    one.log.close()
    assert capfd.readouterr().err == "no run came of it\n"


def test_a_flood_that_nobody_reads_keeps_no_child_waiting_and_says_what_is_missing(child: Any) -> None:
    sent = 20 * MOST_WAITING

    def flood(_: Any) -> None:
        for number in range(sent):
            logger.warning("record %d %s", number, "x" * 100)

    one = child(flood)
    one.waits()
    messages = told(one.ends())
    notices = [message for message in messages if "came too fast" in message]
    assert notices
    assert sum(int(notice.split()[0]) for notice in notices) + len(messages) - len(notices) == sent
    assert len(messages) <= MOST_WAITING + 1
    assert messages[0].startswith("record 0 ")


def test_a_message_passes_between_records(child: Any) -> None:
    def work(handler: Any) -> None:
        logger.warning("before")
        handler.send({"loss": 1.5})

    one = child(work)
    assert told(one.ends()) == ["before"]
    assert one.messages == [{"loss": 1.5}]


def test_a_record_of_any_size_is_cut_and_passes(child: Any) -> None:
    def work(_: Any) -> None:
        logger.warning("begins %s", "x" * 10_000_000)
        logger.warning("half a character \udc00, and the next")

    first, second = told(child(work).ends())
    assert first.startswith("begins x")
    assert len(first) == child_log.LONGEST + 1
    assert second == "half a character \udc00, and the next"


def test_a_message_whose_arguments_do_not_fit_harms_nobody(child: Any) -> None:
    def work(_: Any) -> None:
        sys.stderr = open(os.devnull, "w")  # logging complains there  # noqa: SIM115
        logger.warning("%d", "no number")
        logger.warning("and on")

    assert told(child(work).ends()) == ["and on"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_is_killed_while_it_writes_ends_its_log_and_nothing_else(child: Any) -> None:
    def for_ever(_: Any) -> None:
        while True:
            logger.warning("again %s", "x" * 5_000)

    heard: list[logging.LogRecord] = []
    one = child(for_ever)
    with one.log.forwarded_to(heard.append):
        wait_until(lambda: len(heard) > 100)
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.join(timeout=DEADLINE)
        wait_until(lambda: not any("whet messages" in thread.name for thread in threading.enumerate()))
    one.log.close()
    assert all(message.startswith("again ") or "came too fast" in message for message in told(heard))


def test_a_child_that_was_stopped_in_the_middle_of_a_record_is_not_waited_for(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_log, "FLUSH_S", 0.05)

    def half(handler: Any) -> None:
        os.write(handler.end.fileno(), (100).to_bytes(4, "big") + b"{")  # of a record of 100 bytes
        signal.pause()

    one = child(half)
    with one.log.forwarded_to(lambda record: None):
        wait_until(lambda: any("whet messages" in thread.name for thread in threading.enumerate()))
    one.child.end()
    one.log.close()


def test_the_log_of_a_run_names_the_process_and_takes_secrets_out(child: Any, tmp_path: Path) -> None:
    one = child(lambda _: logging.getLogger("hub").warning("refused: %s\x1b[2J", "hunter2hunter2"))
    with run_log(tmp_path, Redactor({"HUB_TOKEN": "hunter2hunter2"}), [one.log]):
        one.waits()
        warnings.warn("of the run itself", UserWarning, stacklevel=1)
    text = (tmp_path / LOG).read_text()
    assert "WARNING hub (learner): refused: [HUB_TOKEN]" in text
    assert "\x1b" not in text
    assert "WARNING py.warnings: " in text
    assert "UserWarning: of the run itself" in text


def test_python_shows_its_warnings_as_before_once_the_log_is_closed(tmp_path: Path) -> None:
    before = warnings.showwarning
    with run_log(tmp_path, Redactor({})):
        assert warnings.showwarning is not before
    assert warnings.showwarning is before


def test_every_pipe_is_closed_in_the_end() -> None:
    open_before = set(os.listdir("/proc/self/fd"))
    one = Child(lambda _: None)
    one.child.end()
    del one
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= open_before
