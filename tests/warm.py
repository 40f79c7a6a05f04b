"""`whet` commands in processes of their own that start at once.

Importing torch and transformers costs seconds, and tests that kill, stop and resume runs start many processes. Here one
server imports them and loads whet/tiny once (`warm_server.py`), and forks itself for every command: a process of its
own, with its own streams or terminal, that takes signals and dies like any other. What a fork cannot show (imports, the
console script, another hash seed) is shown by tests that start `whet` from nothing.

    process = warm.start("train", "run", str(config), "--resume")
    for line in process.stdout: ...
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

SERVER = Path(__file__).with_name("warm_server.py")
MODULES = (
    "httpx",
    "openai",
    "peft",
    "PIL.ImageDraw",
    "PIL.PngImagePlugin",
    "renderers.default",
    "renderers.parsers",
    "rich.progress",
    "transformers.models.qwen3.modeling_qwen3",
    "whet.cli.eval",
    "whet.cli.main",
    "whet.cli.train",
    "whet.compat.alias",
    "whet.evals.live.view",
    "whet.evals.printing",
    "whet.evals.sessions.session",
    "whet.inference.decoding.decoder",
    "whet.inference.embedded",
    "whet.inference.loading",
    "whet.inference.policy_client",
    "whet.inference.rendering.chat_renderer",
    "whet.rl.learner.torch_learner",
    "whet.rl.monitors.console",
    "whet.rl.report.page",
    "whet.rl.run",
    "whet.viewer.app",
)
DEADLINE = 200.0
"""Seconds after which a process that was waited for is taken for hung."""


class Warm:
    """The server, started with the first command of the first who wants one in `folder`: workers share it.

    `modules` are what it imports first.
    """

    def __init__(self, folder: Path, modules: Sequence[str] = MODULES) -> None:
        self._folder = folder
        self._modules = modules
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
        given = {name: value for name, value in environment.items() if value is not None}
        output, written = os.pipe()
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), written, written]
            status = self._launch(["whet", *arguments], streams, given, cwd, largest_file=largest_file)
        os.close(written)
        process = Process(status, os.fdopen(output, encoding="utf-8"))
        self._started.append(process)
        return process

    def start_in_terminal(
        self, command: Sequence[str | Path], terminal: int, env: Mapping[str, str], cwd: Path | None = None
    ) -> Process:
        """`whet` or a Python file with its arguments, in a session of its own whose terminal is this descriptor.

        `env` is the whole of its environment.
        """
        process = Process(self._launch(command, [terminal] * 3, env, cwd, terminal=True))
        self._started.append(process)
        return process

    def _launch(
        self,
        command: Sequence[str | Path],
        streams: Sequence[int],
        environment: Mapping[str, str],
        directory: Path | None,
        *,
        terminal: bool = False,
        largest_file: int | None = None,
    ) -> IO[bytes]:
        """The pipe on which the command's process id and exit status are told."""
        request = {
            "command": [str(word) for word in command],
            "environment": dict(environment),
            "directory": str(directory or Path.cwd()),
            "largest_file": largest_file,
            "terminal": terminal,
        }
        status, told = os.pipe()
        message = json.dumps(request).encode() + b"\n"
        self.begin()
        assert self._socket is not None
        sent = socket.send_fds(self._socket, [message], [*streams, told])
        self._socket.sendall(message[sent:])
        os.close(told)
        return os.fdopen(status, "rb", buffering=0)

    def run(self, *arguments: str | Path, expected: int = 0, **options: object) -> str:
        """The output of a command that ends with the exit status `expected`."""
        process = self.start(*arguments, **options)
        return process.finish(expected)

    def clean(self) -> None:
        """End what a test started and left running."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            process.close()
        self._started.clear()

    def begin(self) -> None:
        """Start the server, unless it has been started: it imports, and nothing waits for it yet."""
        if self._socket is not None:
            return
        address = self._folder / "warm.socket"
        self._socket = socket.socket(socket.AF_UNIX)
        with open(self._folder / "warm.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._socket.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):  # nobody has started it, or all have left it
                address.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX) as listening:
                    listening.bind(str(address))
                    listening.listen()
                    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                    command = [sys.executable, str(SERVER), *self._modules]
                    self._server = subprocess.Popen(command, stdin=listening, env=environment)
                self._socket.connect(str(address))

    def close(self) -> None:
        """Leave the server, which ends once all have left it."""
        self.clean()
        if self._socket is not None:
            self._socket.close()


class Process:
    """One command. What of `subprocess.Popen` tests use, for a process that is not this one's child."""

    def __init__(self, status: IO[bytes], stdout: IO[str] | None = None) -> None:
        self._status, self._stdout = status, stdout
        self.pid = int(self._line(DEADLINE))
        self.returncode: int | None = None

    @property
    def stdout(self) -> IO[str]:
        assert self._stdout is not None, "its output goes to a terminal"
        return self._stdout

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        if self.returncode is None and self._told(0):
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

    def finish(self, expected: int = 0) -> str:
        """The output that is still to be read, of a command that ends with the exit status `expected`."""
        output = self.communicate()
        assert self.returncode == expected, output
        return output

    def after_step(self, step: int, act: Callable[[], None]) -> None:
        """Call `act` once a training run has said that `step` is done."""
        for line in self.stdout:
            if line.startswith(f"step {step}/"):
                act()
                return
        raise AssertionError(f"the run ended before step {step}")

    def signal_after_step(self, step: int, number: int) -> None:
        self.after_step(step, lambda: self.send_signal(number))

    def close(self) -> None:
        if self._stdout is not None:
            self._stdout.close()
        self._status.close()

    def _line(self, timeout: float) -> bytes:
        if not self._told(timeout):
            raise AssertionError(f"nothing was heard of the process within {timeout:g} s")
        line = self._status.readline()
        assert line.endswith(b"\n"), "the server that starts processes has ended"
        return line

    def _told(self, timeout: float) -> bool:
        """Whether the server has something to say of the process within so many seconds."""
        told = select.poll()  # unlike `select` it takes any descriptor, however many are open
        told.register(self._status, select.POLLIN)
        return bool(told.poll(timeout * 1000))
