"""`whet service up` in a process of its own, and its parts; and parts that are started apart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

OPTIONS = ("--port", "0", "--no-actions", "--isolation", "none", "--deployments-port", "0")
PATIENCE_S = 600.0


class Part:
    """A running `whet service PART`; `lines` are what it said."""

    def __init__(self, part: str, data: Path, *more: str) -> None:
        command = [sys.executable, "-m", "whet.cli.main", "service", part, "--data", str(data), *more]
        self.data = data
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def said(self, text: str, times: int = 1) -> str:
        """Wait for a line; returns it."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._with(text)) >= times, PATIENCE_S), self.lines
            return self._with(text)[times - 1]

    def _with(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]

    @property
    def address(self) -> str:
        return self.said("service at ").split()[2].rstrip(";")

    @property
    def token(self) -> str:
        return self.said("shown only now").split()[-1]

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, f"{self.address}/api/v1{path}", headers=headers, timeout=PATIENCE_S, **more)

    def until(self, condition: Callable[[], Any]) -> Any:
        """The value of a condition as soon as it has one."""
        tick = threading.Event()
        for _ in range(int(PATIENCE_S / 0.1)):
            if found := condition():
                return found
            tick.wait(0.1)
        raise AssertionError(f"it did not happen: {self.lines[-20:]}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Up(Part):
    """A running `whet service up`."""

    def __init__(self, data: Path, *more: str) -> None:
        super().__init__("up", data, *OPTIONS, *more)

    def parts(self) -> dict[str, int]:
        """The processes that it started, by name."""
        found: dict[str, int] = {}
        for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            words = _words(Path(f"/proc/{pid}"))
            if str(self.data) in words and "service" in words and "up" not in words:
                found.setdefault(words[words.index("service") + 1], pid)  # what it forks has its words at first
        return found

    def kill_all(self) -> None:
        """SIGKILL of it and of all of its parts, as close to each other as can be."""
        for pid in (self.process.pid, *self.parts().values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.end(signal.SIGKILL)
        self.until(lambda: not self.parts())


def _words(entry: Path) -> list[str]:
    try:
        return entry.joinpath("cmdline").read_text().split("\0")
    except OSError:
        return []
