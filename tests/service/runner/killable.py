"""`killable.py DATA URL SCRIPT`: a runner whose runs are a shell script, until it is killed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from whet.hub.domain.cipher import Cipher
from whet.hub.storage.database import Database
from whet.hub.storage.store import FileStore
from whet.service.runner import runner
from whet.service.runner.isolation import NONE, choose
from whet.service.runner.machine import Machine
from whet.service.runner.preparing import Workshop

if __name__ == "__main__":
    data, url, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    whet_itself = script == "whet"
    workshop = Workshop(
        data,
        FileStore(str(data / "blobs")),
        FileStore(str(data / "files")),
        choose("auto") if whet_itself else NONE,
        command=None if whet_itself else lambda python, job, folder: ["/bin/sh", "-c", script],
    )
    runner.TICK_S = 0.05
    found = runner.RunRunner(Database(url), Cipher(b"k" * 32), workshop, Machine("box", "boot", 8.0, 1 << 36, ()))
    found.begin()
    print(found.id, flush=True)
    found.run(threading.Event())
