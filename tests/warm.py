"""`whet` commands in processes of their own that start at once.

Importing torch and transformers costs seconds, and tests that kill, stop and resume runs start many processes. Here one
server imports them once (`warm_server.py`) and forks itself for every command: a process of its own, with its own
streams, that takes signals and dies like any other. What a fork cannot show (imports, the console script, another hash
seed) is shown by tests that start `whet` from nothing.

    process = warm.start("train", "run", str(config), "--resume")
    for line in process.stdout: ...
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

SERVER = Path(__file__).with_name("warm_server.py")
DEADLINE = 120.0
"""Seconds after which a process that was waited for is taken for hung."""


class Warm:
    """The server, started with the first command."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._started: list[Process] = []

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        largest_file: int | None = None,
    ) -> Process:
        """`whet ARGUMENTS`, its stdout and stderr together in `.stdout`.

        `env` goes on top of the tests' environment (None takes a variable away); writing more than `largest_file` bytes
        into one file fails, as it does on a disk that is full.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": {name: value for name, value in environment.items() if value is not None},
            "directory": str(cwd or Path.cwd()),
            "largest_file": largest_file,
        }
        output, written = os.pipe()
        status, told = os.pipe()
        with open(os.devnull) as nothing:
            given = [nothing.fileno(), written, written, told]
            message = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._connection(), [message], given)
            self._connection().sendall(message[sent:])
        os.close(written)
        os.close(told)
        process = Process(os.fdopen(output, encoding="utf-8"), os.fdopen(status, "rb", buffering=0))
        self._started.append(process)
        return process

    def run(self, *arguments: str | Path, expected: int = 0, **options: object) -> str:
        """The output of a command that ends with the exit status `expected`."""
        process = self.start(*arguments, **options)
        output = process.communicate()
        assert process.returncode == expected, output
        return output

    def clean(self) -> None:
        """End what a test started and left running."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            process.close()
        self._started.clear()

    def close(self) -> None:
        self.clean()
        if self._socket is not None and self._server is not None:
            self._socket.close()
            self._server.wait(timeout=DEADLINE)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._server = subprocess.Popen([sys.executable, str(SERVER)], stdin=theirs, env=environment)
            theirs.close()
        return self._socket


class Process:
    """One command. What of `subprocess.Popen` tests use, for a process that is not this one's child."""

    def __init__(self, stdout: IO[str], status: IO[bytes]) -> None:
        self.stdout, self._status = stdout, status
        self.pid = int(self._line(DEADLINE))
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._line(DEADLINE))
        return self.returncode

    def wait(self, timeout: float = DEADLINE) -> int:
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
        return self.returncode

    def communicate(self, timeout: float = DEADLINE) -> str:
        """All that is still to be read, once the command has ended."""
        output = self.stdout.read()
        self.wait(timeout)
        return output

    def close(self) -> None:
        self.stdout.close()
        self._status.close()

    def _line(self, timeout: float) -> bytes:
        if not select.select([self._status], [], [], timeout)[0]:
            raise AssertionError(f"nothing was heard of the process within {timeout:g} s")
        line = self._status.readline()
        assert line.endswith(b"\n"), "the server that starts processes has ended"
        return line
