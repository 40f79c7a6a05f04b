"""The process that plays a taskset of verifiers 0.4: a virtual environment of its own, `v1_program.py`, and requests.

verifiers 0.4 pins packages to other versions than whet has, so its environment is made in the cache, once for each set
of requirements: what the taskset's own `pyproject.toml` requires, and what the user names. Nothing else is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from whet.errors import ConfigError, EnvError, InfraError
from whet.integrations import v1_program
from whet.parsing import parse_json, parse_toml
from whet.records.lock import taken
from whet.system import children
from whet.system.files import user_cache

VERSION = "0.4.0"
"""Of verifiers: the one version whose interfaces `v1_program.py` uses."""
KEY_VAR = "WHET_V1_API_KEY"
"""Variable with the key of the gateway. verifiers passes no variable with API_KEY in its name on to what it runs."""
END_S = 10.0
"""Time to end boxes and tool servers in."""
SHOWN, PAUSE_S = 600, 0.5
logger = logging.getLogger(__name__)


def read_target(target: str) -> tuple[str, Path | None]:
    """The id of a taskset, and the folder of its package where a path was given. Raises `ConfigError`."""
    path = Path(target).expanduser()
    if path.is_dir() or target.startswith((".", "/", "~")):
        name = path.resolve().name.replace("-", "_")
        if not any((path / inner).exists() for inner in (name, f"{name}.py")):
            raise ConfigError(f"'v1:{target}': {path} has no package {name}; give the folder of a taskset's package.")
        return name, path.resolve()
    if not re.sub(r"[-.]+", "_", target).isidentifier():
        raise ConfigError(f"'v1:{target}' should be v1: and the name of a taskset's package, or its folder.")
    return target, None


def requirements_of(folder: Path | None, further: Sequence[str]) -> list[str]:
    """What is installed beside verifiers: the dependencies of the folder's project, and what the user named.

    Raises `ConfigError` for a project that cannot be read, and for one that needs another version of verifiers.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    declared: list[str] = []
    file = None if folder is None else folder / "pyproject.toml"
    if file is not None and file.is_file():
        try:
            declared = [str(one) for one in parse_toml(file.read_text("utf-8"))["project"].get("dependencies", ())]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}.") from error
    extras: set[str] = set()
    others: list[str] = []
    for line in [*declared, *further]:
        try:
            one = Requirement(line)
        except InvalidRequirement as error:
            raise ConfigError(f"{file if line in declared else 'requirements'}: {line!r}: {error}.") from error
        if canonicalize_name(one.name) != "verifiers":
            others.append(line)
        elif one.url is not None or not one.specifier.contains(VERSION):
            raise ConfigError(f"{file or 'requirements'}: the taskset needs {line}; whet works with {VERSION}.")
        else:
            extras |= one.extras
    own = f"verifiers[{','.join(sorted(extras))}]" if extras else "verifiers"
    return [f"{own}=={VERSION}", "uv", *others]


def make_venv(requirements: Sequence[str], cache: Path) -> str:
    """The interpreter of a virtual environment with these packages, which is made unless the cache has it.

    Raises `ConfigError` with pip's words where they cannot be installed.
    """
    key = hashlib.sha256(json.dumps([sys.version_info[:2], sys.prefix, sorted(requirements)]).encode()).hexdigest()[:16]
    folder, whole = cache / key, cache / key / "whole"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        while not whole.exists():
            with taken(cache / f"{key}.lock") as free:  # or another process is making it
                if free and not whole.exists():
                    logger.warning("installing %s into %s, once", ", ".join(requirements), folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    _run(sys.executable, "-m", "venv", str(folder))
                    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-input", *requirements)
                    whole.touch()
            time.sleep(0 if free else PAUSE_S)
    except OSError as error:
        raise ConfigError(f"the environment of the taskset cannot be made in {folder}: {error}.") from error
    return str(folder / "bin" / "python")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        words = _text((done.stderr or done.stdout).strip()[-SHOWN:])
        raise ConfigError(f"the environment of the taskset cannot be made: {' '.join(command)}: {words}")


class V1Process:
    """The process of one taskset; started by the first request, and again where it has ended. Safe in threads."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path | None,
        python: str | None,
        requirements: Sequence[str],
        key: str,
        start_timeout: float,
    ) -> None:
        """`config` is that of verifiers' environment; `key` is what its clients show to the gateway."""
        self._config, self._folder, self._python, self._key = dict(config), folder, python, key
        self._start_timeout = start_timeout
        self._requirements = requirements_of(folder, requirements)
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._waiting: dict[int, Future[dict[str, Any]]] = {}

    def request(self, do: str, **fields: Any) -> tuple[int, Future[dict[str, Any]]]:
        """The number of a request, and its reply to come. Raises `ConfigError` and `InfraError` at the start."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            number, reply = next(self._numbers), Future[dict[str, Any]]()
            reply.set_running_or_notify_cancel()  # who waits may be cancelled, the reply is not
            self._waiting[number] = reply
            self._send({"do": do, "number": number, **fields})
            return number, reply

    def cancel(self, number: int) -> None:
        """End what a request began; there is no reply."""
        with self._lock:
            if self._waiting.pop(number, None) is not None and self._process is not None:
                with contextlib.suppress(InfraError):
                    self._send({"do": "cancel", "number": number})

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> None:
        python = self._python or make_venv(self._requirements, user_cache("v1"))
        paths = [str(self._folder)] if self._folder is not None else []
        variables = {
            **os.environ,
            KEY_VAR: self._key,
            "PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(paths),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), f"127.0.0.1,{os.environ.get('NO_PROXY', '')}"),
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [python, "-P", v1_program.__file__, VERSION, KEY_VAR]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        try:
            self._process = children.start(command, env=variables, **pipes)
        except OSError as error:
            raise ConfigError(f"{python} cannot be started: {error.strerror}.") from error
        process = self._process
        assert process.stdout is not None
        with contextlib.suppress(InfraError):  # it has ended, and says why
            self._send(self._config)
        late = threading.Timer(self._start_timeout, children.kill_group, [process.pid])
        late.start()
        reply = _reply(process.stdout.readline(v1_program.LONGEST_LINE))
        late.cancel()
        if reply is None or "failed" in reply:
            code = children.wait_or_kill(process, END_S)
            words = self._last_words() if reply is None else _text(reply["failed"])
            if code == -signal.SIGKILL:
                words = f"it was killed, at the latest after start_timeout ({self._start_timeout:g} s)"
            self._end()
            kind = InfraError if reply is None and code != v1_program.WRONG_VERSION else ConfigError
            raise kind(f"the taskset {self._config['taskset']['id']} cannot be loaded: {words}")
        threading.Thread(target=self._read, args=[self._process, self._waiting], daemon=True).start()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise InfraError(f"the process of the taskset has ended: {self._last_words()}") from error

    def _read(self, process: subprocess.Popen[bytes], waiting: dict[int, Future[dict[str, Any]]]) -> None:
        """In a thread, while the process runs: replies go to those who wait for them."""
        assert process.stdout is not None
        while (reply := _reply(process.stdout.readline(v1_program.LONGEST_LINE))) is not None:
            future = waiting.pop(reply["number"], None) if isinstance(reply.get("number"), int) else None
            if future is None:
                continue
            if "failed" in reply:
                future.set_exception(EnvError(f"the taskset failed: {_text(reply['failed'])}"))
            else:
                future.set_result(reply)
        children.kill_group(process.pid)  # it has ended, or sends what is no reply
        for future in [waiting.pop(number) for number in list(waiting)]:
            future.set_exception(InfraError(f"the process of the taskset has ended: {self._last_words()}"))

    def _end(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            children.wait_or_kill(self._process, END_S)
            self._process, self._waiting = None, {}
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_words(self) -> str:
        lines: list[str] = []
        with contextlib.suppress(ValueError, AttributeError):  # closed meanwhile
            self._log.seek(0)  # type: ignore[union-attr]
            lines = self._log.read().decode(errors="replace").strip().splitlines()  # type: ignore[union-attr]
        return lines[-1][-SHOWN:] if lines else "it printed nothing"


def _reply(line: bytes) -> dict[str, Any] | None:
    """None for the end, and for what is no reply."""
    try:
        reply = parse_json(line, v1_program.LONGEST_LINE)
    except ValueError:
        return None
    return reply if isinstance(reply, dict) else None


def _text(value: Any) -> str:
    return " ".join(str(value).split())[:SHOWN]
