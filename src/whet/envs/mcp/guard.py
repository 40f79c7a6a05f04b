"""Runs one MCP server, and ends it and its children when whet requests it or has ended.

    python -I -S guard.py LIFELINE PARENT GRACE COMMAND [ARG ...]

The server has this process's stdin, stdout and stderr and a process group of its own. LIFELINE is the read end of a
pipe whose other end only the whet process PARENT holds: when it closes, even because PARENT was killed, the group gets
SIGTERM, and GRACE seconds later SIGKILL. Exits with the server's exit code, or with 128 + the signal that ended it.

Imports little of the standard library: one guard runs for every server, and should start in milliseconds.
"""

import contextlib
import os
import select
import signal
import sys
import threading

PARENT_POLL_SECONDS = 1.0  # a child of PARENT may hold its end of the pipe open after its death


def main(lifeline: int, parent: int, grace: float, command: list[str]) -> int:
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only the lifeline ends this
    server = os.fork()
    if server == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            sys.stderr.flush()
        os._exit(127)
    with contextlib.suppress(OSError):  # done by parent or child, whichever is first
        os.setpgid(server, server)
    ended = threading.Event()
    threading.Thread(target=end_with_parent, args=(lifeline, parent, grace, server, ended), daemon=True).start()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # only the server holds its pipes, so that they close when it ends
    os.dup2(null, 1)
    _, status = os.waitpid(server, 0)
    ended.set()
    signal_group(server, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def end_with_parent(lifeline: int, parent: int, grace: float, server: int, ended: threading.Event) -> None:
    while os.getppid() == parent and not select.select([lifeline], [], [], PARENT_POLL_SECONDS)[0]:
        pass
    signal_group(server, signal.SIGTERM)
    if not ended.wait(grace):
        signal_group(server, signal.SIGKILL)


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
