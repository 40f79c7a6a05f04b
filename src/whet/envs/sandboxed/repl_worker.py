"""The Python REPL inside a sandbox: an interpreter that keeps its variables, and a supervisor that keeps it honest.

Runs *inside*, as `python3 -I -c SOURCE`, on any Python 3.9 or newer; imports nothing of whet. The supervisor talks to
the host over stdin and stdout, forks the interpreter, collects what it and its children write, interrupts it when a
limit is reached, kills it when it does not react, and starts another when it has ended. Code in the interpreter can
do with the interpreter what it likes, and can end the supervisor, which the host notices; what it cannot do is reach
the supervisor's channel to the host: the supervisor is not dumpable, so its descriptors are closed to everyone else.

A message is four bytes of length and that much JSON. Host to supervisor: `{code, timeout_s, output_bytes}`. Back:
`{ready}` once, then for each request `{status, stdout, stderr, result, execution_count, limit, exit, signal, fresh,
restarted, forged}`. Supervisor and interpreter use the same framing and a nonce for each request.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import io
import json
import linecache
import os
import secrets
import select
import signal
import struct
import sys
import time
import traceback
import types
from typing import Any

GRACE_S = 2.0  # from the first interrupt to the kill
STRIKES = 5  # interrupts in that time: one that comes while a program is waited for is lost
ROOM = 1 << 16  # of a reply, on top of what the output limit allows
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4


def supervise(search_path: list[str]) -> None:
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    prctl(PR_SET_DUMPABLE, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    interpreter = Interpreter(search_path, wake_read)
    send(replies, {"ready": list(sys.version_info[:3])})
    fresh = False
    while True:
        request = receive(requests)
        if request is None:
            interpreter.kill()
            return
        if interpreter.ended() is not None:
            interpreter.close()
            interpreter = Interpreter(search_path, wake_read)
            fresh = True
        reply = interpreter.run(request["code"], request["timeout_s"], request["output_bytes"])
        reply["fresh"] = fresh
        fresh = False
        if reply["restarted"]:
            interpreter.kill()
            interpreter.close()
            interpreter = Interpreter(search_path, wake_read)
        send(replies, reply)


class Interpreter:
    """The forked process that runs cells, as the supervisor sees it."""

    def __init__(self, search_path: list[str], wake: int) -> None:
        self.count = 0
        self.wake = wake
        self.status: int | None = None
        tasks, self.tasks = os.pipe()
        self.control, control = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                prctl(PR_SET_DUMPABLE, 1)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the supervisor, whatever ended that
                os.setpgid(0, 0)
                for fd in range(3, 256):  # the channel to the host above all
                    if fd not in (tasks, control, out, err):
                        with contextlib.suppress(OSError):
                            os.close(fd)
                interpret(tasks, control, out, err, search_path)
            finally:
                os._exit(70)
        for fd in (tasks, control, out, err):
            os.close(fd)
        for fd in (self.tasks, self.control, self.out, self.err):
            os.set_blocking(fd, False)

    def run(self, code: str, timeout_s: float, output_bytes: int) -> dict[str, object]:
        """One cell, to its end or to the interpreter's."""
        self.count += 1
        nonce = secrets.token_hex(16)
        pending = framed({"code": code, "nonce": nonce, "count": self.count, "limit": output_bytes})
        output = CellOutput(output_bytes, (self.out, self.err))
        answer = bytearray()
        limit: str | None = None
        done: dict[str, object] | None = None
        forged = False
        strikes = 0
        deadline = time.monotonic() + timeout_s
        listening = {self.control, self.out, self.err, self.wake}
        while done is None and not forged and self.ended() is None:
            left = max(0.0, deadline - time.monotonic())
            readable, writable, _ = select.select(listening, [self.tasks] if pending else [], [], left)
            if writable:
                try:
                    pending = pending[os.write(self.tasks, pending[:4096]) :]
                except OSError:
                    pending = b""
            if self.wake in readable:
                os.read(self.wake, 4096)
            for fd in output.kept:
                if fd in readable and not output.read(fd):
                    listening.discard(fd)
            if self.control in readable:
                data, more = drained(self.control)
                answer += data
                if not more:
                    listening.discard(self.control)
                done, forged = parsed(answer, nonce, output_bytes)
            if limit is None and output.full:
                limit, deadline = "output", 0.0
            if done is None and time.monotonic() >= deadline:
                limit = limit or "time"
                strikes += 1
                deadline = time.monotonic() + GRACE_S / STRIKES
                if strikes <= STRIKES:
                    self.interrupt()
                elif strikes == STRIKES + 1:
                    self.kill()
                elif strikes > 2 * STRIKES:
                    break
        for fd in output.kept:
            output.read(fd)
        ended = self.ended() if done is None and not forged and strikes <= STRIKES else None
        result = done or {}
        return {
            "status": "ok" if result.get("status") == "ok" else "error",
            "result": as_text(result.get("result"), output_bytes),
            "stdout": output.text(self.out),
            "stderr": output.text(self.err),
            "execution_count": self.count,
            "limit": limit or ("output" if output.full else None),
            "exit": ended if ended is not None and ended >= 0 else None,
            "signal": -ended if ended is not None and ended < 0 else None,
            "restarted": done is None,
            "forged": forged,
        }

    def interrupt(self) -> None:
        """As Ctrl-C does: the interpreter, and the programs that it has started."""
        with contextlib.suppress(OSError):
            os.kill(-self.pid, signal.SIGINT)

    def ended(self) -> int | None:
        """The exit code, minus the signal, or None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def kill(self) -> None:
        if self.ended() is None:
            for victim in (-self.pid, self.pid):
                with contextlib.suppress(OSError):
                    os.kill(victim, signal.SIGKILL)

    def close(self) -> None:
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for fd in (self.tasks, self.control, self.out, self.err):
            os.close(fd)


class CellOutput:
    """What a cell writes, up to a number of bytes; the rest is read and forgotten."""

    def __init__(self, room: int, fds: tuple[int, ...]) -> None:
        self.kept = {fd: bytearray() for fd in fds}
        self.room = room
        self.full = False

    def read(self, fd: int) -> bool:
        """Whether the other end is still open."""
        data, more = drained(fd)
        self.kept[fd] += data[: self.room]
        self.full = self.full or len(data) > self.room
        self.room = max(0, self.room - len(data))
        return more

    def text(self, fd: int) -> str:
        return self.kept[fd].decode("utf-8", "replace")


def parsed(answer: bytearray, nonce: str, output_bytes: int) -> tuple[dict[str, object] | None, bool]:
    """(the reply or None, whether what came is no reply of this interpreter to this request)."""
    if len(answer) < 4:
        return None, False
    size = struct.unpack(">I", answer[:4])[0]
    if size > 12 * output_bytes + ROOM:  # JSON writes one character in up to twelve bytes
        return None, True
    if len(answer) < 4 + size:
        return None, False
    try:
        reply = json.loads(bytes(answer[4 : 4 + size]))
    except (ValueError, RecursionError):
        return None, True
    if not isinstance(reply, dict) or reply.get("nonce") != nonce or len(answer) > 4 + size:
        return None, True
    return reply, False


def interpret(tasks: int, control: int, out: int, err: int, search_path: list[str]) -> None:
    """The interpreter's own loop: one cell after the other, all in one namespace."""
    myself = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:0] = ["", *search_path]
    sys.argv = [""]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    null = os.open(os.devnull, os.O_RDONLY)
    mine: list[io.TextIOWrapper] = []
    while True:
        for target, fd in enumerate((null, out, err)):  # a cell may have closed or moved them
            os.dup2(fd, target)
        if not mine or mine != [sys.stdin, sys.stdout, sys.stderr] or any(stream.closed for stream in mine):
            mine = [stream(0, "r"), stream(1, "w"), stream(2, "w")]
            sys.stdin, sys.stdout, sys.stderr = mine
        request = receive(tasks)
        if request is None:
            os._exit(0)
        reply = run_cell(request["code"], f"<cell {request['count']}>", main.__dict__, request["limit"])
        if os.getpid() != myself:
            os._exit(0)  # a fork that a cell made has come to the cell's end
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                file.flush()
        reply["nonce"] = request["nonce"]
        send(control, reply)


def stream(fd: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    buffer: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def run_cell(code: str, name: str, namespace: dict[str, Any], limit: int) -> dict[str, object]:
    """Run the code; the value of a last line that is an expression is shown as a notebook does."""
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            value = run_code(code, name, namespace)
            shown = None
            if value is not None:
                namespace["_"] = value
                shown = cut(repr(value), limit)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return {"status": "ok", "result": shown}
    except BaseException as error:
        try:
            return {"status": "error", "result": cut(error_text(error, name), limit)}
        except BaseException as other:
            return {"status": "error", "result": f"{type(error)} (and telling of it raised {type(other)})"}


def run_code(code: str, name: str, namespace: dict[str, Any]) -> Any:
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)  # so that tracebacks show the line
    body = ast.parse(code, name).body
    last = body[-1] if body else None
    if isinstance(last, ast.Expr):
        body.pop()
    if body:
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace) if isinstance(last, ast.Expr) else None


def error_text(error: BaseException, name: str) -> str:
    """The traceback from the cell's own first line on."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename != name:
        where = where.tb_next
    if where is None:
        error.__traceback__ = None
    return "".join(traceback.format_exception(type(error), error, where)).rstrip()


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} characters more)"


def as_text(value: object, limit: int) -> str | None:
    return None if value is None else cut(str(value), limit + 100)


def framed(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode("ascii")
    return struct.pack(">I", len(data)) + data


def send(fd: int, message: dict[str, Any]) -> None:
    data = framed(message)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """The next message, or None at the end."""
    header = exactly(fd, 4)
    data = header and exactly(fd, struct.unpack(">I", header)[0])
    return json.loads(data) if data else None


def exactly(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def drained(fd: int, most: int = 1 << 20) -> tuple[bytearray, bool]:
    """(what lies in a pipe, whether its other end is still open), without waiting for more."""
    data = bytearray()
    while len(data) < most:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not chunk:
            return data, False
        data += chunk
    return data, True


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    supervise(json.loads(sys.argv[1]))
