"""A process that has imported what commands need, and forks itself for each command it is asked for.

    python warm_server.py MODULE...

Started by `warm.py`, which explains why. The socket on descriptor 0 listens; a request comes over a connection to it:
a line of JSON with `command`, `environment`, `directory`, `largest_file` and `terminal`, together with four
descriptors: the command's stdin, stdout and stderr, and a pipe that is told the command's process id and, in the end,
its exit status, a line each. The command is `whet` or a Python file, each with its arguments.
"""

import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import termios
import threading
from typing import IO

CHUNK = 1 << 16


def serve(listening: socket.socket) -> None:
    """Fork for every request until all have left. Returns in the children that are to run a command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    connections = [listening.accept()[0]]
    while connections:
        ready, _, _ = select.select([listening, *connections], [], [])
        if listening in ready:
            connections.append(listening.accept()[0])
        for requests in set(ready) - {listening}:
            message, descriptors, _, _ = socket.recv_fds(requests, CHUNK, 4)
            if not message:
                connections.remove(requests)
                requests.close()
                continue
            while not message.endswith(b"\n"):
                message += requests.recv(CHUNK)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listening, *connections):
                    one.close()
                supervise(json.loads(message), descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)


def supervise(request: dict[str, object], descriptors: list[int]) -> None:
    """Fork once more and wait for that process. Returns in the fork, which is ready to run the command."""
    *streams, status = descriptors
    child = os.fork()
    if child == 0:
        os.close(status)
        become(request, streams)
        return
    for stream in streams:
        os.close(stream)
    os.write(status, f"{child}\n".encode())
    _, code = os.waitpid(child, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(code)}\n".encode())
    os._exit(0)


def become(request: dict[str, object], streams: list[int]) -> None:
    """Take on the streams, environment, directory and arguments of the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if request["largest_file"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = request["command"]
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = _output(1)
    sys.stderr = sys.__stderr__ = _output(2)


def prepare() -> None:
    """What the first model and the first page cost every process: mappings of transformers, compiled templates."""
    import torch

    from whet.display.page.rendering import templates
    from whet.inference.model_names import resolve_model
    from whet.inference.plain.weights import load_transformers

    pages = templates()
    for name in pages.list_templates(["html"]):
        pages.get_template(name)
    load_transformers(resolve_model("whet/tiny"), torch.float32)
    for thread in threading.enumerate():  # transformers leaves those that read weights
        if thread is not threading.current_thread():
            thread.join()


def _output(number: int) -> IO[str]:
    """Buffered as Python does it: by the line on a terminal, where PYTHONUNBUFFERED is set, and for errors."""
    by_line = number == 2 or os.isatty(number) or bool(os.environ.get("PYTHONUNBUFFERED"))
    return os.fdopen(number, "w", encoding="utf-8", closefd=False, buffering=1 if by_line else -1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    prepare()
    os.fsync = lambda descriptor: None  # as in conftest.py
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    serve(listener)
    if "whet.system.children" in sys.modules:  # the processes of a run need not import everything again either
        sys.modules["whet.system.children"].START_METHOD = "fork"
    if sys.argv[0] != "whet":
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    from whet.cli.main import main

    sys.exit(main())
