"""Tries one pushed version after the other: `whet env check` on the wheel's files, in a process of its own.

That process reviews the package in bubblewrap without a network; nothing of the package runs here. It has no
environment variables of the hub's but a few names, and its folder is removed in the end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from sqlalchemy.orm import Session

from whet.hub.archive.names import module_of
from whet.hub.archive.sdists import list_contents, read_content
from whet.hub.archive.zips import StrictZip
from whet.hub.domain import actions
from whet.hub.domain.environments import secret_values
from whet.hub.domain.hub import Hub
from whet.hub.errors import HubError
from whet.hub.storage.tables import ActionRow, StoredFile
from whet.system.children import kill_group, start, wait_or_kill
from whet.system.redaction import MARK

PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
TIMEOUT_S = 300.0
MARGIN_S = 60.0
IDLE_S = 5.0
FOLDER = "trials"
SUMMARY = 300
DESCRIBING = ("README.MD", "LICENSE", "LICENSE.TXT")
TEST = re.compile(r"tests/test_\w+\.py", re.ASCII)
"""That a source archive has one is all that a review asks of its tests."""


class Worker:
    """A thread that tries what is queued, until it is stopped."""

    def __init__(self, hub: Hub, timeout_s: float = TIMEOUT_S) -> None:
        self._hub = hub
        self._timeout_s = timeout_s
        self._name = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hub-actions", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = hub.uploads.parent / FOLDER

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        """End the running trial; it is queued again at the next start."""
        self._ended.set()
        self._hub.new_action.set()
        self._kill()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            self._hub.new_action.clear()
            try:
                busy = self.try_next()
            except HubError:  # the database is busy or the disk is full: later, perhaps not
                busy = False
            if not busy:
                self._hub.new_action.wait(IDLE_S)

    def try_next(self) -> bool:
        """Try the oldest queued action; whether there was one."""
        row = actions.claim(self._hub, self._name)
        if row is None:
            return False
        with self._hub.database.read() as session:
            row = session.get_one(ActionRow, row.id)
            secrets = secret_values(self._hub, session, row.version.environment)
            passed, summary, log = self._trial(session, row)
        if self._ended.is_set():
            return False
        for secret in secrets:
            summary, log = summary.replace(secret, MARK), log.replace(secret, MARK)
        actions.finish(self._hub, row.id, self._name, passed, summary[:SUMMARY], log)
        return True

    def _trial(self, session: Session, row: ActionRow) -> tuple[bool, str, str]:
        """Whether the version passed, a line about it, and the log."""
        package = self._folder / row.id / module_of(row.version.environment.name)
        try:
            package.mkdir(parents=True)
            for file in row.version.files:
                self._unpack(file, package)
            return self._check(package)
        except HubError as error:  # a file that the storage lost, or a version deleted since
            return False, str(error), ""
        except OSError as error:
            return False, f"the hub could not unpack it: {error.strerror or error}", ""
        finally:
            shutil.rmtree(package.parent, ignore_errors=True)

    def _unpack(self, file: StoredFile, package: Path) -> None:
        """The modules of the wheel, and what describes the package in the source archive, with a test.

        Both passed the static checks: names are relative and plain, and sizes are bounded.
        """
        with self._hub.store.open(file.sha256) as stream:
            if file.kind == "wheel":
                archive = StrictZip(stream, file.filename)
                for entry in archive.entries:
                    if entry.name.endswith("/") or entry.name.partition("/")[0].endswith(".dist-info"):
                        continue
                    path = package / entry.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb") as target:
                        target.writelines(archive.pieces(entry))
                return
            top = file.filename.removesuffix(".tar.gz")
            inner = [name.removeprefix(f"{top}/") for name, _ in list_contents(stream, file.filename)]
            wanted = [name for name in inner if name == "pyproject.toml" or name.upper() in DESCRIBING]
            for inside in [*wanted, *filter(TEST.fullmatch, inner)][: len(wanted) + 1]:  # one test: it is not run
                content = read_content(stream, file.filename, f"{top}/{inside}")
                if content is not None and not (package / inside).exists():
                    (package / inside).parent.mkdir(exist_ok=True)
                    (package / inside).write_bytes(content)

    def _check(self, package: Path) -> tuple[bool, str, str]:
        command = [sys.executable, "-P", "-m", "whet.cli.main", "env", "check", str(package)]
        command += ["--timeout", f"{self._timeout_s:g}"]
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        env |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
        log = package.parent / "log"
        with log.open("wb") as output:
            self._process = start(command, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=package.parent)
            code = wait_or_kill(self._process, 0 if self._ended.is_set() else self._timeout_s + MARGIN_S)
        text = log.read_bytes()[-actions.LOG_BYTES :].decode("utf-8", "replace")
        text = text.replace("\0", "").replace(str(package), package.name)
        lines = [line for line in text.splitlines() if line.strip()]
        summary = lines[-1] if lines else f"it ended with code {code}"
        return code == 0, "it took too long" if code is None else summary, text

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            kill_group(process.pid)
