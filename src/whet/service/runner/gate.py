"""`python -I -S gate.py PORT COMMAND...`: what a run's process does before it becomes the run's command.

Its standard input is a socket to the shim. It says that it is there, with a socket that listens on PORT of the run's
own loopback address (0: none), which the shim's proxy serves. It waits to be let through, and ends where the shim is
gone. Then it limits itself, writes its secrets to `WHET_SECRETS_FILE`, and becomes the command. It imports nothing but
the standard library: a run that is isolated may see no more of this Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def main(port: int, command: list[str]) -> None:
    with socket.socket(fileno=os.dup(0)) as channel:
        listening = [socket.create_server(("127.0.0.1", port))] if port else []
        if listening:
            socket.send_fds(channel, [b"\n"], [one.fileno() for one in listening])
        else:
            channel.sendall(b"\n")
        text = b""
        while piece := channel.recv(1 << 16):
            text += piece
    if not text.endswith(b"\n"):
        sys.exit(1)
    for one in listening:
        one.close()
    limit_and_write(json.loads(text))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and a command that it becomes would as well
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def limit_and_write(given: dict[str, Any]) -> None:
    """`rlimits` by name, `filter` of system calls in hexadecimal, `secrets` for the file."""
    for name, value in given["rlimits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    path = os.environ.get("WHET_SECRETS_FILE")
    if path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(given["secrets"], file)
    if given["filter"]:
        set_filter(bytes.fromhex(given["filter"]))


def set_filter(code: bytes) -> None:
    """Install a seccomp filter, an array of `struct sock_filter`. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p).value)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the filter of system calls cannot be set")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
