"""How an attempt ended, from `exit.json` and from what the run says of itself; and why it failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.parsing import parse_json
from whet.service.runner import isolation as isolating
from whet.service.runner.folders import RUN, AttemptFolder, RunFolder
from whet.service.runner.isolation import Isolation, View
from whet.service.runner.progress import Seen
from whet.system import untrusted

DOCTOR_S = 120.0
DOCTOR_BYTES = 4 << 20
TAIL_BYTES = 8192
FAILURES = ("error: ", "failed: ")
"""What commands begin the line with that says why they end (cli/main.py, gepa)."""
MOST = 1000
"""Characters of a reason."""
INTERRUPTED_CODES = (130, 143)
KILLED = "its processes were killed"
OUTSIDE = "it was interrupted by a signal that was not the service's"


@dataclass(frozen=True, slots=True)
class End:
    """`finished`, `failed`, `stopped`, or `lost`: to be continued."""

    state: str
    reason: str = ""
    code: int | None = None

    def explained(self, run: RunFolder, attempt: AttemptFolder, isolation: Isolation) -> End:
        """With the reason of a failure: the doctor's first finding, else what the run said last."""
        reason = _diagnosed(run, isolation) or self.reason or _last_line(attempt.output)
        words = (reason or "it ended without a word").removeprefix("failed: ").removeprefix("error: ")
        return replace(self, reason=words[:MOST])


def end_of(kind: str, ended: Mapping[str, Any], seen: Seen, *, stopping: bool) -> End:
    """The end of an attempt. `stopping`: it had been requested to stop.

    Args:
        ended: what exit.json has. Without a code (its shim was killed) the run's own files decide.
        seen: the run's own files.
    """
    code, number = ended.get("code"), ended.get("signal")
    if exceeded := ended.get("exceeded"):
        return End("failed", str(exceeded)[:MOST], code)
    state = seen.state
    if kind == "evaluation" and code is not None:
        state = "finished" if code == 0 else "interrupted" if code in INTERRUPTED_CODES else "failed"
    if number == signal.SIGKILL:
        if stopping:
            return End("stopped", "it did not stop in time and was killed", code)
        return End("failed", "it was killed by signal 9; a machine that is out of memory does that", code)
    if state == "finished" and code in (0, None):
        return End("finished", "", code)
    if state == "interrupted" or code in INTERRUPTED_CODES:
        return End("stopped", "", code) if stopping else End("lost", OUTSIDE, code)
    if code is None and state != "failed":
        return End("lost", str(ended.get("gone") or KILLED))
    if code == 0:
        return End("finished", "", code)
    if number is not None:
        return End("failed", f"it was killed by signal {number}", code)
    return End("failed", seen.error or "", code)


def _diagnosed(run: RunFolder, isolation: Isolation) -> str | None:
    """The doctor's first finding that explains a failure. It reads files of the run, so it sees no others."""
    if not untrusted.is_file(run.path, f"{RUN}/config.toml"):
        return None
    view = View(
        readable=[run.run], hidden=[run.path.parents[1]], user=isolation.user_of(run.path.name), own_network=True
    )
    words = [sys.executable, "-m", "whet.cli.main", "doctor", str(run.run), "--json"]
    try:
        done = subprocess.run(
            isolation.command(view, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOCTOR_S,
            cwd="/",
            env=isolating.environment(isolating.HOME) | {"OMP_NUM_THREADS": "1"},
        )
        findings = parse_json(done.stdout[:DOCTOR_BYTES])["findings"]
        worst = next(one for one in findings if one["severity"] == "error")
        evidence = " ".join(str(line) for line in worst["evidence"])
        return f"{worst['what']}. {evidence}".strip()
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, StopIteration):
        return None


def _last_line(output: Path) -> str:
    """The last line that the run printed, or the last one that says how it failed."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in reversed(lines) if line.strip()]
    failure = next((line for line in said if line.startswith(FAILURES)), None)
    return failure or next(iter(said), "")
