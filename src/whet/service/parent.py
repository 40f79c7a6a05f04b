"""A part of `whet service up` ends with it, however that ends."""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "WHET_SERVICE_PARENT"
"""The number of an open descriptor: a pipe that only the parent can write to, and that it never does."""
GRACE_S = 15.0


def end_with_parent() -> None:
    """Where `whet service up` started this process: end as by SIGTERM when it is gone. Else nothing."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def watch() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="whet parent watch", daemon=True).start()
