"""The runner's loop: claim what fits, start each run behind a shim, follow all of them, adopt what others left.

    claim ─▶ preparing (a thread) ─▶ shim ─▶ running ─▶ exit.json ─▶ ending (a thread: why it failed) ─▶ finish

What is in the folders decides: `exit.json` says how an attempt ended, a held `shim.lock` that it is guarded, a held
`life.lock` that its processes live. The loop can be killed anywhere, and the next one continues from those. Where the
queue refuses a write (the fence has changed) the runner leaves that run alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from whet import __version__
from whet.errors import WhetError
from whet.hub.domain.cipher import Cipher
from whet.hub.errors import HubError
from whet.hub.storage.database import Database, database_now
from whet.records.lock import is_held, take, taken
from whet.service.domain import queue, runners
from whet.service.domain.queue import Held, Unattended
from whet.service.domain.secrets import secrets_of_run
from whet.service.runner import isolation as isolating
from whet.service.runner.ends import End, end_of
from whet.service.runner.environments import packages_of
from whet.service.runner.folders import AttemptFolder, RunFolder, read_object
from whet.service.runner.limits import RunLimits
from whet.service.runner.machine import Machine
from whet.service.runner.preparing import PreparedRun, Workshop, tidy
from whet.service.runner.progress import Seen, Watch
from whet.service.runner.shim import ShimPlan
from whet.service.storage.tables import RunRow
from whet.system.children import began, kill, start
from whet.system.files import write_whole

_log = logging.getLogger(__name__)
TICK_S = 1.0
PREPARING_AT_ONCE = 2
REBOOTED = "its machine was started again"
KILLED = "its processes were killed"


@dataclass(slots=True)
class Following:
    """One attempt that this runner holds."""

    held: Held
    job: PreparedRun
    needs_devices: int
    folder: AttemptFolder
    watch: Watch
    started: bool = False
    stopping: bool = False
    renewed_at: float = float("-inf")
    preparing: Future[ShimPlan] | None = None
    ending: Future[End] | None = None
    shim: subprocess.Popen[bytes] | None = None
    devices: tuple[str, ...] = ()


@dataclass(slots=True)
class RunRunner:
    """One process that starts runs. `begin`, then `tick` again and again, then `leave`."""

    database: Database
    cipher: Cipher
    workshop: Workshop
    machine: Machine
    prices: dict[str, float] = field(default_factory=dict)
    renew_s: float = 2.0
    """Seconds between renewals of a lease: each is a write of the database."""
    id: str = ""
    following: dict[str, Following] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(PREPARING_AT_ONCE, "preparing"))
    _lock: int = -1
    _shims: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # Begin and end

    def begin(self) -> str:
        """Enter this runner; its id. A lock says to other runners of this machine that it lives."""
        with self._writing() as (session, now):
            self.id = runners.announce(
                session,
                now,
                host=self.machine.host,
                boot_id=self.machine.boot,
                pid=os.getpid(),
                process_began=began(os.getpid()),
                version=__version__,
                capacity={**self.machine.capacity(), **self.prices},
            )
            path = self._lock_of(self.id)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = take(path) or -1  # inside: no one sees the row before the lock
        return self.id

    def leave(self) -> None:
        """Take no more runs; those in progress live on, for the next runner to adopt."""
        self.workshop.leaving.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(HubError, SQLAlchemyError), self._writing() as (session, now):
            runners.leave(session, self.id, now)
        with contextlib.suppress(OSError):
            os.close(self._lock)
            self._lock_of(self.id).unlink()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. What fails for the database's sake is tried again."""
        while not stop.is_set():
            try:
                self.tick()
            except (HubError, SQLAlchemyError, OSError) as error:
                _log.warning("the next look comes in a moment: %s", " ".join(str(error).split())[:300])
            stop.wait(TICK_S)

    def tick(self) -> None:
        """One look at everything."""
        with self._writing() as (session, now):
            runners.heartbeat(session, self.id, now)
            left = queue.unattended(session, self.id, now)
            requested = queue.stops_requested(session, self.following)
        for one in left:
            self._consider(one)
        for following in list(self.following.values()):
            following.stopping = following.stopping or following.held.run in requested
            try:
                self._attend(following)
            except (HubError, SQLAlchemyError, OSError):
                raise
            except Exception:  # a fault of whet's, which must not keep the other runs from being followed
                _log.exception("run %s could not be looked at", following.held.run)
        while self._claim():
            pass
        self._shims = [one for one in self._shims if one.poll() is None]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Session, float]]:
        with self.database.write() as session:
            yield session, database_now(session)

    def _lock_of(self, runner: str) -> Path:
        return self.workshop.data / "runners" / f"{runner}.lock"

    # Claims

    def _claim(self) -> bool:
        with self._writing() as (session, now):
            claim = queue.claim(session, self.id, now)
            if claim is None:
                return False
            following = self._follow(claim.held, claim.run)
        self._begin(following)
        return True

    def _begin(self, following: Following) -> None:
        following.devices = self._free_devices(following.needs_devices)
        following.preparing = self._pool.submit(self._prepare, following)

    def _follow(self, held: Held, row: RunRow) -> Following:
        folder = RunFolder.of(self.workshop.data, held.run)
        job = PreparedRun(
            run=held.run,
            kind=row.kind,
            config=row.config,
            files=dict(row.files),
            resume=row.resume,
            resume_step=row.resume_step,
            number=held.attempt,
            fence=held.fence,
            needs=dict(row.needs or {}),
        )
        watch = Watch(folder.run, row.kind)
        needs = int((row.needs or {}).get("devices") or 0)
        following = Following(held, job, needs, folder.attempt(held.attempt), watch)
        self.following[held.run] = following
        return following

    def _free_devices(self, count: int) -> tuple[str, ...]:
        """Devices that no run here has; fewer than `count` never happens where the queue counts right."""
        taken_ones = {index for one in self.following.values() for index in one.devices}
        free = [device.index for device in self.machine.devices if device.index not in taken_ones]
        return tuple(free[:count])

    def _prepare(self, following: Following) -> ShimPlan:
        with self.database.read() as session:
            row = session.get_one(RunRow, following.held.run)
            values = secrets_of_run(session, self.cipher, row)
            packages = packages_of(session, row.environments, row.owner, row.user)
        devices = following.devices if self.machine.devices else None
        return self.workshop.plan(following.job, packages, values, devices)

    # One attempt

    def _attend(self, following: Following) -> None:
        if following.ending is not None:
            self._await_end(following)
        elif following.preparing is not None:
            self._await_plan(following, following.preparing)
        elif (ended := read_object(following.folder.exit)) or following.folder.exit.exists():
            self._ended(following, ended)
        elif is_held(following.folder.shim_lock):
            self._guarded(following)
        elif following.shim is not None and following.shim.poll() is None:
            self._renew(following)  # it has not taken its lock yet
        elif following.folder.exit.exists():
            return  # between the two looks it has ended; the next look finds that
        elif is_held(following.folder.life_lock):
            self._guard_again(following)
        else:
            self._give_up(following, KILLED)

    def _await_plan(self, following: Following, preparing: Future[ShimPlan]) -> None:
        if self._renew(following) is None or not preparing.done():
            return
        following.preparing = None
        if following.stopping:
            self._finish(following, End("stopped"))
            return
        try:
            plan = preparing.result()
        except (WhetError, OSError) as error:
            self._finish(following, End("failed", str(error)))
            return
        except Exception as error:
            _log.exception("run %s could not be prepared", following.held.run)
            self._finish(following, End("failed", f"it could not be prepared: {type(error).__name__}: {error}"))
            return
        self._start_shim(following, plan)

    def _start_shim(self, following: Following, plan: ShimPlan) -> None:
        following.folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (following.folder.path / "shim.log").open("ab") as errors:
            command = [sys.executable, "-m", "whet.service.runner.shim", str(following.folder.path)]
            environment = isolating.environment(str(Path.home()))
            shim = start(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment, cwd="/")
        assert shim.stdin is not None
        with contextlib.suppress(BrokenPipeError), shim.stdin as stdin:
            stdin.write(plan.dumps())
        following.shim = shim
        self._shims.append(shim)

    def _guarded(self, following: Following) -> None:
        """The shim lives: say how far the run is, and pass a stop on."""
        identity = read_object(following.folder.identity)
        shim = identity.get("shim") or {}
        if not following.started and identity.get("run"):
            with self._writing() as (session, now):
                pid, since = int(shim["pid"]), shim.get("process_began")
                following.started = queue.started(session, following.held, now, pid=pid, process_began=since)
        following.devices = tuple(identity.get("devices") or following.devices)
        self._renew(following, following.watch.look())
        if following.stopping and shim.get("pid") and began(shim["pid"]) == shim.get("process_began"):
            kill(shim["pid"], signal.SIGTERM)

    def _renew(self, following: Following, seen: Seen | None = None) -> bool | None:
        """Extend the lease; None where the fence has changed, and then the run is another runner's."""
        if time.monotonic() - following.renewed_at < self.renew_s:
            return following.stopping
        seen = seen or Seen()
        with self._writing() as (session, now):
            renewal = queue.renew(
                session, following.held, now, step=seen.step, max_steps=seen.max_steps, tokens=seen.tokens
            )
        if renewal is None:
            self.following.pop(following.held.run, None)
            return None
        following.renewed_at = time.monotonic()
        following.stopping = following.stopping or renewal.stop
        return following.stopping

    def _guard_again(self, following: Following) -> None:
        """The shim was killed and the run lives: another shim takes its place, for the same process."""
        with self.database.read() as session:
            values = secrets_of_run(session, self.cipher, session.get_one(RunRow, following.held.run))
        isolated = self.workshop.isolation.bubblewrap is not None
        patience = self.workshop.patience_s
        limits = RunLimits.of(following.job.needs).as_dict()
        plan = ShimPlan([], "/", {}, secrets=values, sweep=not isolated, patience_s=patience, limits=limits)
        self._start_shim(following, plan)
        self._renew(following)

    def _give_up(self, following: Following, reason: str) -> None:
        """There is evidence: nothing of the attempt lives. What it says on disk keeps a late shim from starting."""
        following.folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with taken(following.folder.shim_lock) as free:
            if not free or following.folder.exit.exists():
                return
            ended = {"code": None, "signal": None, "gone": reason, "ended_at": time.time()}
            write_whole(following.folder.exit, json.dumps(ended) + "\n")
        self._ended(following, ended)

    # The end

    def _ended(self, following: Following, ended: dict[str, Any]) -> None:
        identity = read_object(following.folder.identity)
        following.watch.before = identity.get("before")
        seen = following.watch.look()
        if not identity.get("run"):  # it was never let through: its files are of attempts before
            seen = replace(seen, state=None, error=None)
        following.renewed_at = float("-inf")
        end = end_of(following.job.kind, ended, seen, stopping=bool(self._renew(following, seen)))
        if following.held.run not in self.following:
            return
        if end.state == "failed" and not ended.get("exceeded"):
            run = RunFolder.of(self.workshop.data, following.held.run)
            following.ending = self._pool.submit(end.explained, run, following.folder, self.workshop.isolation)
        else:
            self._finish(following, end)

    def _await_end(self, following: Following) -> None:
        assert following.ending is not None
        if self._renew(following) is not None and following.ending.done():
            self._finish(following, following.ending.result())

    def _finish(self, following: Following, end: End) -> None:
        seen = following.watch.look()
        with self._writing() as (session, now):
            if end.state == "lost":
                queue.lost(session, following.held, end.reason, now)
                keeps = True
            else:
                keeps = not queue.finish(
                    session,
                    following.held,
                    end.state,
                    end.reason,
                    now,
                    exit_code=end.code,
                    step=seen.step,
                    tokens=seen.tokens,
                )
        if not keeps:
            tidy(RunFolder.of(self.workshop.data, following.held.run))
        self.following.pop(following.held.run, None)

    # What others left

    def _consider(self, left: Unattended) -> None:
        """Take over what a runner of this machine left; of other machines only say that nothing is known."""
        attempt = left.attempt
        if attempt.boot_id == self.machine.boot:
            if not is_held(self._lock_of(attempt.runner_id)):
                following = self._adopt(left)
                if following is not None and attempt.pid is None and not following.folder.identity.exists():
                    self._begin(following)  # it was killed before a shim began; of two shims one gets the lock
        elif attempt.host == self.machine.host:
            following = self._adopt(left)
            if following is not None and not following.folder.exit.exists():
                self._give_up(following, REBOOTED)
        elif left.expired:
            since = datetime.fromtimestamp(attempt.lease_until, UTC).isoformat(timespec="seconds")
            reason = f"unknown since {since}: {attempt.host} does not answer"
            if left.run.reason != reason:
                with self._writing() as (session, _):
                    queue.say(session, left.held, reason)

    def _adopt(self, left: Unattended) -> Following | None:
        with self._writing() as (session, now):
            held = queue.adopt(session, left.held, self.id, now)
            if held is None:
                return None
            row = session.get_one(RunRow, held.run)
            following = self._follow(held, row)
            following.started = row.state == "running"
        following.devices = tuple(read_object(following.folder.identity).get("devices") or ())
        return following
