"""Servers of other libraries' environments: the address of one, and one as a child process of another Python."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import urlsplit

import httpx

from whet.errors import ConfigError, InfraError
from whet.system import children

WRONG_VERSION = 3
"""Exit code of a server whose interpreter lacks the library, or has another version of it."""
SHOWN = 400
_PROGRAM = """
import importlib, importlib.metadata as metadata, os, socket, sys, threading
number, names, low, high, works, *arguments = sys.argv[1:]
version = next((d.version for d in metadata.distributions() if d.name in names.split()), None)
if version is None or not low <= "%03d.%03d" % tuple(map(int, version.split(".")[:2])) < high:
    name = names.split()[0]
    print(f"{name + ' is not installed' if version is None else name + ' ' + version} in {sys.executable}; "
             f"whet works with {works}")
    sys.exit(3)
def end():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
LOAD
import uvicorn
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[socket.socket(fileno=int(number))])
"""
"""Serves on a socket that it inherits, and ends with its standard input."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started.

    Args:
        what: the server, in words of an error.
        library: names of the distribution that its interpreter must have.
        works: the versions that work, in words, and `versions`: from the first on, before the second.
        load: Python that makes `app`, an ASGI application, of the list `arguments`.
        variables: of its process environment, unless they are set.
    """

    what: str
    library: tuple[str, ...]
    works: str
    versions: tuple[tuple[int, int], tuple[int, int]]
    load: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, python: str, number: int) -> list[str]:
        low, high = (f"{major:03}.{minor:03}" for major, minor in self.versions)
        program = _PROGRAM.replace("LOAD", self.load)
        return [python, "-c", program, str(number), " ".join(self.library), low, high, self.works, *self.arguments]


class ChildServer:
    """Started on first use, and again where it has ended."""

    def __init__(self, launch: Launch, python: str | None, timeout: float) -> None:
        self._launch, self._python, self._timeout = launch, python or sys.executable, timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._url = ""

    def url(self) -> str:
        """The address of the server, which runs and responds. Raises `InfraError`."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._stop()
                self._start()
            return self._url

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            number = listener.fileno()
            command, variables = self._launch.command(self._python, number), {**self._launch.variables, **os.environ}
            try:
                self._process = children.start(
                    command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, pass_fds=[number], env=variables
                )
            except OSError as error:
                raise InfraError(f"{self._python} cannot be started: {error.strerror}") from error
        until = time.monotonic() + self._timeout
        while True:
            with contextlib.suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=self._timeout) as client:
                client.get(f"{self._url}/health")
                return
            if self._process.poll() is not None:
                kind = ConfigError if self._process.returncode == WRONG_VERSION else InfraError
                raise kind(f"{self._launch.what} did not start: {self._last_words()}")
            if time.monotonic() > until:
                self._stop()
                raise InfraError(f"{self._launch.what} did not respond in {self._timeout:g} s")
            time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is not None:
            children.kill_group(self._process.pid)
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_words(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-SHOWN:] if lines else "it printed nothing"


def server_at(contract: str, url: str, python: str | None) -> str:
    """The address of a running server in an id. Raises `ConfigError` for what is none."""
    parts = urlsplit(re.sub(r"^ws", "http", url))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"'{contract}:{url}' should be {contract}:http://HOST:PORT, or what is to be started.")
    if python is not None:
        raise ConfigError(f"'{contract}:{url}' is a running server, so it takes no python.")
    return parts.geturl().rstrip("/")


def is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
