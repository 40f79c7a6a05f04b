"""`status.json`: what a run is doing, for programs that look at it from outside.

    {"state": "running", "step": 12, "max_steps": 100, "phase": "generate", "heartbeat": "2026-...", "pid": 4711, ...}

`state` is starting, running, finished, interrupted or failed. A run whose state says running while no process holds the
lock of its directory was killed: `whet train list` calls it died. `stalled` is what the run waits for too long,
until its next step. Every write replaces the whole file. Nothing reads it to decide anything about training: `--resume`
goes by the checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from whet.rl.monitors.protocol import EvalReport, Monitor, Outcome, RunPlan, StepReport
from whet.rl.supervision.watchdog import STALLED
from whet.system.children import this_process
from whet.system.files import json_line, write_whole

HEARTBEAT_SECONDS = 2.0
"""Least time between two writes whose only news is that the run is alive."""
MOST_STALLS = 3
"""Reports of a wait that are kept: what waits for what, and what that waits for."""


class Status(Monitor):
    """A monitor that keeps `status.json` up to date, from its making to `close`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._lock = (
            threading.RLock()
        )  # the watchdog's thread, or a signal's handler, may close it while the run writes
        self._written = float("-inf")
        self._fields: dict[str, Any] = {"state": "starting", "step": 0, "last_error": None} | this_process()
        self._write()

    def start(self, plan: RunPlan) -> None:
        self._fields |= {
            "state": "running",
            "name": plan.name,
            "model": plan.model,
            "step": plan.first_step - 1,
            "max_steps": plan.max_steps,
            "started": _now(),
        }
        self._write()

    def phase(self, name: str, done: int, total: int) -> None:
        self._fields |= {"phase": name, "phase_done": done, "phase_total": total}
        self._beat()

    def step(self, report: StepReport) -> None:
        self._fields |= {"step": report.step, "failures": report.failures}
        self._stalled_no_more()

    def rewound(self, step: int) -> None:
        self._fields["step"] = step
        self._write()

    def evaluation(self, report: EvalReport) -> None:
        self._stalled_no_more()

    def note(self, text: str) -> None:
        self._fields["last_note"] = text
        if text.startswith(STALLED):
            lines = [*self._fields.get("stalled", ()), text.removeprefix(STALLED)]
            self._fields["stalled"] = lines[-MOST_STALLS:]
            self._write()
        else:
            self._beat()

    def ended(self, outcome: Outcome) -> None:
        for name in ("phase", "phase_done", "phase_total", "stalled"):
            self._fields.pop(name, None)
        self._fields |= {
            "state": outcome.state,
            "step": outcome.step,
            "last_error": outcome.message if outcome.state == "failed" else None,
            "ended": _now(),
        }
        self._write()

    def _stalled_no_more(self) -> None:
        """There is progress again."""
        if self._fields.pop("stalled", None) is not None:
            self._write()
        else:
            self._beat()

    def _beat(self) -> None:
        if self._clock() - self._written >= HEARTBEAT_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        with self._lock:
            write_whole(self.path, json_line({**self._fields, "heartbeat": _now()}), durable=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
