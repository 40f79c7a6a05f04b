"""What other processes of the same user may learn of this one."""

from __future__ import annotations

import ctypes
import sys

PR_SET_DUMPABLE = 4


def undumpable() -> None:
    """No process without further rights reads this one's memory, variables or descriptors, and it leaves no core dump.

    A run's code may have the same user as the service: `/proc/PID/environ` and ptrace are closed to it by this, where
    it is not isolated at all. Only Linux has it.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
