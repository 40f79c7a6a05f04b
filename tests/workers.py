"""`--workers N`: the tests in N processes, forked from one that has imported and collected all of them.

Importing and collecting everything takes some twenty seconds of processor time, which worker processes that begin from
nothing spend once each. A worker takes a group of tests at a time (a file, or several, see `conftest.py`), in the order
in which they were collected, and tells the reports of its tests to the process that forked it, which prints them. A
worker that dies fails the test that it ran; another one runs what it had left.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import select
import selectors
import signal
import struct
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pytest

LENGTH = struct.Struct("<I")


class Workers:
    """Runs the tests of a session in `count` processes, those of which `group_of` says the same in one of them."""

    def __init__(self, config: pytest.Config, count: int, group_of: Callable[[str], str]) -> None:
        self._config, self._count, self._group_of = config, count, group_of
        self._made = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self._config.option.collectonly or (
            session.testsfailed and not self._config.option.continue_on_collection_errors
        ):
            return None
        groups: dict[str, list[int]] = {}
        for place, item in enumerate(session.items):
            groups.setdefault(self._group_of(item.nodeid), []).append(place)
        self._waiting = deque(groups.values())
        self._selector = selectors.DefaultSelector()
        try:
            for _ in range(min(self._count, len(self._waiting))):
                self._start(session)
            while keys := list(self._selector.get_map().values()):
                ready = self._selector.select(timeout=1)
                for key, _ in ready:
                    self._hear(session, key.data)
                if not ready:  # the pipe of one that died is open as long as any process that it left behind
                    for worker in [key.data for key in keys if key.data.has_ended()]:
                        self._bury(session, worker)
                self._stop_if_asked(session)
        finally:
            for key in list(self._selector.get_map().values()):
                key.data.end()
            self._selector.close()
        self._stop_if_asked(session)
        return True

    def _start(self, session: pytest.Session, first: Iterable[int] = ()) -> None:
        """Another worker, which begins with these tests."""
        self._made += 1
        worker = Worker(session, self._made, list(first))
        self._selector.register(worker.hears, selectors.EVENT_READ, worker)

    def _hear(self, session: pytest.Session, worker: Worker) -> None:
        said = worker.read()
        if said is None or "done" in said:
            self._bury(session, worker)
        elif "broke" in said:
            raise RuntimeError(said["broke"])
        elif "next" in said:
            worker.give(self._waiting.popleft() if self._waiting and not session.shouldstop else [])
        elif "began" in said:
            worker.running = said["began"]
            item = session.items[said["began"]]
            self._config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif "ended" in said:
            worker.running = None
            worker.left.remove(said["ended"])
            item = session.items[said["ended"]]
            self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif "report" in said:
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=said["report"])
            self._config.hook.pytest_runtest_logreport(report=report)
        else:
            self._warn(said)

    def _bury(self, session: pytest.Session, worker: Worker) -> None:
        """Fail what a worker that died was running, and let another do the rest."""
        self._selector.unregister(worker.hears)
        status = worker.end()
        if status == 0 or session.shouldstop or session.shouldfail:
            return
        if worker.running is not None:
            item = session.items[worker.running]
            worker.left.remove(worker.running)
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            words = f"the worker that ran this test ended with {how}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
            self._config.hook.pytest_runtest_logreport(report=report)
        elif not worker.left:
            raise RuntimeError(f"a worker ended with status {status} outside of any test")
        if worker.left or self._waiting:
            self._start(session, worker.left)

    def _warn(self, said: dict[str, Any]) -> None:
        kind = type(said["kind"], (Warning,), {})
        message = warnings.WarningMessage(kind(said["warning"]), kind, said["file"], said["line"])
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": message,
                "when": said["when"],
                "nodeid": said["test"],
                "location": said["location"],
            }
        )

    def _stop_if_asked(self, session: pytest.Session) -> None:
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


class Worker:
    """One process, seen from the one that forked it; `left` are places in the session of tests yet to run."""

    def __init__(self, session: pytest.Session, number: int, first: list[int]) -> None:
        self.left, self.running = list(first), None
        self.hears, tells = os.pipe()
        takes, self._gives = os.pipe()
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.hears)
            os.close(self._gives)
            Inside(session, takes, tells).run(number, first)
        os.close(tells)
        os.close(takes)

    def read(self) -> dict[str, Any] | None:
        """The next that it says; None once nothing more can come."""
        return _read(self.hears)

    def give(self, places: list[int]) -> None:
        self.left += places
        _write(self._gives, places)

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def end(self) -> int:
        """Its exit status; one that runs a test is interrupted, and cleans up first, whatever it still has to say."""
        if not self.has_ended():
            with contextlib.suppress(BrokenPipeError):
                _write(self._gives, [])
            if self.running is not None:
                os.kill(self._pid, signal.SIGINT)
            while not self.has_ended():
                if select.select([self.hears], [], [], 0.05)[0]:
                    os.read(self.hears, 1 << 16)
        os.close(self._gives)
        os.close(self.hears)
        assert self._status is not None
        return self._status


class Inside:
    """The worker itself."""

    def __init__(self, session: pytest.Session, takes: int, tells: int) -> None:
        self._session, self._config, self._takes, self._tells = session, session.config, takes, tells

    def run(self, number: int, first: list[int]) -> NoReturn:
        """All tests that there are, then the end of the process: nothing returns to what the fork came from."""
        status = 1
        try:
            self._become(number)
            self._run_all(first)
            status = 0
        except (KeyboardInterrupt, pytest.exit.Exception):
            self._session._setupstate.teardown_exact(None)
            status = 2
        except BaseException:
            self._tell(broke=traceback.format_exc())
        finally:
            try:
                atexit._run_exitfuncs()
                self._tell(done=True)
            finally:
                os._exit(status)

    def _become(self, number: int) -> None:
        """What the processes must not share: temporary directories, captured output, and the terminal."""
        factory = self._config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / f"worker{number}"
        factory._basetemp.mkdir(mode=0o700)
        capture = self._config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        self._config.pluginmanager.getplugin("terminalreporter")._tw._file = io.StringIO()
        self._config.pluginmanager.register(self)

    def _run_all(self, first: list[int]) -> None:
        places = self._places(first)
        place = next(places, None)
        while place is not None:
            after = next(places, None)
            item = self._session.items[place]
            following = None if after is None else self._session.items[after]
            self._tell(began=place)
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._tell(ended=place)
            place = after

    def _places(self, first: list[int]) -> Iterator[int]:
        given = first
        while given or (given := self._next()):
            yield from given
            given = []

    def _next(self) -> list[int]:
        self._tell(next=True)
        return _read(self._takes) or []

    def _tell(self, **said: Any) -> None:
        _write(self._tells, said)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        self._tell(
            warning=str(warning_message.message),
            kind=warning_message.category.__name__,
            file=warning_message.filename,
            line=warning_message.lineno,
            when=when,
            test=nodeid,
            location=location,
        )


def _write(descriptor: int, said: Any) -> None:
    data = pickle.dumps(said)
    left = memoryview(LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(descriptor, left) :]


def _read(descriptor: int) -> Any:
    """What was written at the other end; None where that end is closed."""
    size = _exactly(descriptor, LENGTH.size)
    data = size and _exactly(descriptor, *LENGTH.unpack(size))
    return pickle.loads(data) if data else None


def _exactly(descriptor: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = os.read(descriptor, count - len(data))
        if not part:
            return None
        data += part
    return data
