"""What other processes of the same user may learn of this one."""

from __future__ import annotations

import ctypes
import sys

PR_SET_DUMPABLE = 4


def undumpable() -> None:
    """No process without further rights reads this one's memory, variables or descriptors, and it leaves no core dump.

    Runs that are not isolated have the user of the service: `/proc/PID/environ` and ptrace are closed to them by this.
    Only Linux has it. What this process starts is not concerned.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
