"""A persistent Python interpreter in a sandbox, seen from the host: start it, send it code, read what came of it.

`repl_worker.py` is what runs inside. Whatever comes from there is bounded in size and in time, and nothing of it is
believed beyond being text for the model: the code in the sandbox may have written it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Sequence
from importlib import resources
from typing import Any, TypedDict

from whet.sandboxes.protocol import Process, Sandbox
from whet.system.children import signal_name

_RESTARTED = "Note: the interpreter was restarted before this call; earlier variables are lost."
INTERPRETER = "python3"
CUT_MARK = 200  # characters in which the supervisor says how much of a value it left out
MARGIN_S = 10.0  # for the supervisor inside to interrupt, kill and answer, before the host ends it


class ReplStartError(Exception):
    """The interpreter did not start; the text says why."""


class Reply(TypedDict):
    """What came of one cell. `result` is the shown value, or the traceback where `status` is "error"."""

    status: str
    result: str | None
    stdout: str
    stderr: str
    execution_count: int
    note: str  # which limit it ran into and what that means for the variables; empty for most


class PythonRepl:
    """One interpreter. After `start`, `run` always gives an answer, also when the interpreter has ended."""

    def __init__(self, sandbox: Sandbox, search_path: Sequence[str] = (), output_bytes: int = 1 << 20) -> None:
        self._sandbox = sandbox
        self._search_path = list(search_path)
        self._output_bytes = output_bytes
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._count = 0

    async def start(self, timeout_s: float) -> None:
        """Raises ReplStartError where there is no Python, or it is not ready in time."""
        source = resources.files("whet.envs.sandboxed").joinpath("repl_worker.py").read_text()
        process = await self._sandbox.start([INTERPRETER, "-I", "-B", "-c", source, json.dumps(self._search_path)])
        try:
            async with asyncio.timeout(timeout_s):
                await self._receive(process)
        except (TimeoutError, _BrokenError) as error:
            said = await self._last_words(process)
            await self._end(process)
            late = f"it was not ready in {timeout_s:g} s" if isinstance(error, TimeoutError) else "it ended at once"
            raise ReplStartError(f"{late}: {said or 'it said nothing'}") from error
        except BaseException:
            process.kill()
            process.close()
            raise
        self._process = process

    async def run(self, code: str, timeout_s: float) -> Reply:
        """Run one cell. A cell that fails is a reply, not an exception; SandboxError where the sandbox is gone."""
        async with self._lock:
            note = ""
            if self._process is None:
                try:
                    await self.start(MARGIN_S)
                except ReplStartError as error:
                    return self._failed(f"the interpreter has ended and could not be started again ({error}).")
                note = _RESTARTED
            process = self._process
            assert process is not None
            kills = self._sandbox.memory_kills
            try:
                async with asyncio.timeout(timeout_s + MARGIN_S):
                    await self._send(
                        process, {"code": code, "timeout_s": timeout_s, "output_bytes": self._output_bytes}
                    )
                    reply = await self._receive(process)
            except (TimeoutError, _BrokenError) as error:
                self._process = None
                await self._end(process)
                why = "did not answer any more" if isinstance(error, TimeoutError) else "was ended from inside"
                return self._failed(f"the interpreter {why}; its variables are lost.")
            except BaseException:  # a late answer belongs to no call
                self._process = None
                process.kill()
                process.close()
                raise
            out_of_memory = self._sandbox.memory_kills > kills
            return self._read(reply, _joined(note, _note(reply, timeout_s, self._output_bytes, out_of_memory)))

    def _read(self, reply: dict[str, Any], note: str) -> Reply:
        count = reply.get("execution_count")
        self._count = count if isinstance(count, int) else self._count + 1
        most = self._output_bytes + CUT_MARK
        result = reply.get("result")
        return Reply(
            status="ok" if reply.get("status") == "ok" else "error",
            result=None if result is None else str(result)[:most],
            stdout=str(reply.get("stdout") or "")[:most],
            stderr=str(reply.get("stderr") or "")[:most],
            execution_count=self._count,
            note=note,
        )

    def _failed(self, why: str) -> Reply:
        self._count += 1
        count = self._count
        return Reply(status="error", result=None, stdout="", stderr="", execution_count=count, note=f"Error: {why}")

    async def _send(self, process: Process, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            process.stdin.write(struct.pack(">I", len(data)) + data)
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _BrokenError from error

    async def _receive(self, process: Process) -> dict[str, Any]:
        """One message, of no more bytes than an honest supervisor would send."""
        most = 18 * self._output_bytes + (1 << 20)
        try:
            size = struct.unpack(">I", await process.stdout.readexactly(4))[0]
            if size > most:
                raise _BrokenError
            message = json.loads(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ValueError, RecursionError) as error:
            raise _BrokenError from error
        if not isinstance(message, dict):
            raise _BrokenError
        return message

    async def _last_words(self, process: Process) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                return (await process.stderr.read(2000)).decode(errors="replace").strip()
        return ""

    async def _end(self, process: Process) -> None:
        process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARGIN_S):
                await process.wait()
        process.close()


class _BrokenError(Exception):
    """The process has ended, or what it sends is no message."""


def _note(reply: dict[str, Any], timeout_s: float, output_bytes: int, out_of_memory: bool) -> str:
    """Why a cell was ended, and whether the variables are still there."""
    restarted = bool(reply.get("restarted"))
    outcome = "the interpreter was restarted and its variables are lost" if restarted else "variables are kept"
    limit, number = reply.get("limit"), reply.get("signal")
    if limit == "time":
        why = f"Command timed out after {timeout_s:g}s"
    elif limit == "output":
        why = f"Command was stopped: it wrote more than {output_bytes} bytes of output"
    elif reply.get("forged"):
        why = "Command wrote to the interpreter's own channel"
    elif out_of_memory:
        why = "Command ran out of memory"
    elif isinstance(number, int):
        why = f"Command ended the interpreter (killed by {signal_name(number)})"
    elif restarted:
        why = f"Command ended the interpreter (exit code {reply.get('exit')})"
    else:
        why = ""
    return _joined(_RESTARTED if reply.get("fresh") else "", f"Error: {why}; {outcome}." if why else "")


def _joined(*notes: str) -> str:
    return "\n".join(note for note in notes if note)
