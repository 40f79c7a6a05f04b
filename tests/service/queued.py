"""The queue's operations on a database, each in a transaction of its own, with runs and runners in few words."""

from __future__ import annotations

import secrets
from typing import Any

from whet.hub.domain.cipher import Cipher
from whet.hub.storage.database import Database, database_now
from whet.service.domain import queue, runners, runs
from whet.service.storage.tables import AttemptRow, RunRow

GIB = 1 << 30


class Queued:
    """`ahead` moves the time that operations are given, as if the database's clock went on."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.cipher = Cipher(b"k" * 32)
        self.ahead = 0.0

    def do(self, operation: Any, *arguments: Any, **more: Any) -> Any:
        """An operation that takes a session, its arguments, and `now`."""
        with self.database.write() as session:
            return operation(session, *arguments, now=database_now(session) + self.ahead, **more)

    def submit(self, owner: str = "ann", user: str | None = None, **more: Any) -> str:
        """A new run's id; `cores` and `devices` are what it needs."""
        needs = {"cores": more.pop("cores", 1), "memory": more.pop("memory", 0), "devices": more.pop("devices", 0)}
        values: dict[str, Any] = {
            "key": secrets.token_hex(8),
            "owner": owner,
            "name": "run",
            "kind": "training",
            "model": "whet/tiny",
            "config": "max_steps = 4",
            "files": {},
            "environments": [],
            "labels": [],
            "needs": needs,
            "caps": {},
            "max_steps": 4,
            **more,
        }
        row, _ = self.do(runs.submit, self.cipher, user or owner, runs.NewRun(**values))
        return str(row.id)

    def runner(self, host: str = "box", cores: float = 4, memory: int = 64 * GIB, **capacity: Any) -> str:
        """A new runner's id."""
        found = {"cores": cores, "memory": memory, "devices": 0, "device_memory": 0, **capacity}
        identity = {"host": host, "boot_id": f"boot of {host}", "pid": 1, "process_began": "1", "version": "0"}
        return str(self.do(runners.announce, capacity=found, **identity))

    def claim(self, runner: str) -> Any:
        return self.do(queue.claim, runner)

    def start(self, runner: str) -> Any:
        """Claim the next run and say that it runs; its `Held`."""
        claim = self.claim(runner)
        assert claim is not None
        assert self.do(queue.started, claim.held, pid=7, process_began="7")
        return claim.held

    def run(self, run: str) -> RunRow:
        with self.database.read() as session:
            return session.get_one(RunRow, run)

    def attempt(self, held: Any) -> AttemptRow:
        with self.database.read() as session:
            return session.get_one(AttemptRow, (held.run, held.attempt))

    def change(self, function: Any) -> None:
        with self.database.write() as session:
            function(session)
