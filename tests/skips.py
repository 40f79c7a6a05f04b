"""Under continuous integration a skip that `skips.toml` does not list fails the run; elsewhere it is only named."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("skips.toml")
KEYS = {"test", "says", "because"}


def read_list(path: Path = LIST) -> list[dict[str, str]]:
    """Which tests may be skipped with which words, both as patterns with `*`, and why that is right."""
    entries: list[dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))["skip"]
    for entry in entries:
        if set(entry) != KEYS or not all(isinstance(value, str) and value.strip() for value in entry.values()):
            raise pytest.UsageError(f"{path}: {entry} should have {', '.join(sorted(KEYS))}, each a text.")
    return entries


def is_listed(entries: Sequence[dict[str, str]], test: str, words: str) -> bool:
    return any(fnmatchcase(test, entry["test"]) and fnmatchcase(words, entry["says"]) for entry in entries)


class Skips:
    """A plugin of the process that prints the results; with pytest-xdist that is the one that runs no test itself."""

    def __init__(self, path: Path = LIST) -> None:
        self._entries = read_list(path)
        self._list = path
        self._unlisted: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        words = words.removeprefix("Skipped: ")
        if not is_listed(self._entries, report.nodeid, words):
            self._unlisted[report.nodeid] = words

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unlisted and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._unlisted:
            return
        fails = "which fails continuous integration" if os.environ.get("CI") else "which would fail under CI"
        terminalreporter.section(f"skips that {self._list.name} does not list, {fails}", red=True)
        for test, words in sorted(self._unlisted.items()):
            terminalreporter.line(f"{test}: {words}")
