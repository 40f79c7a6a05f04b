"""What is known of a run besides curves and rollouts: evaluations, findings, what it does now, its config."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from whet.dashboard.data.files import Cutter, directory_of, open_inside, read_object, read_text
from whet.dashboard.data.machine import ProcessUse
from whet.dashboard.data.stores import results_directory
from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import LibraryRun
from whet.errors import WhetError
from whet.parsing import parse_json, parse_toml
from whet.records.directory import ERRORS, EVALS, METADATA, METRICS, REPORT, RESULTS, RUN_CONFIG, STATUS
from whet.records.files import read_at
from whet.records.lock import LOCK
from whet.records.tail import file_stamp
from whet.system.redaction import redacted

MOST_EVALUATIONS = 1_000
MOST_TASKS = 200
EVALS_BYTES, REPORT_BYTES = 64 << 20, 32 << 20
MOST_KEPT = 64
EXAMINED_SECONDS, EXAMINED_SHARE = 10.0, 0.02
"""Least time between two examinations of a run in progress, and the share of the time that they may take."""
METRICS_ENDS = 2 << 20
"""Bytes at both ends of long metrics that are examined: hundreds of steps each, of which rules see 55."""
MOST_REWARD = 1e300
"""A number of a file may be one that no float can hold."""


def evaluations(run: LibraryRun) -> list[dict[str, Any]]:
    """The held-out evaluations of a run, or the one that the run is; rewards by task of at most 200 tasks."""
    directory = directory_of(run)
    if run.kind in ("evaluation", "search"):
        metadata = read_object(results_directory(directory), METADATA)
        cutter = Cutter(longest=2_000)
        return [cutter.value({key: value for key, value in metadata.items() if key != "tasks"})] if metadata else []
    try:
        with open_inside(directory, EVALS) as file:
            data = read_at(file, 0, EVALS_BYTES)
    except FileNotFoundError:
        return []
    by_moment: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            key = (str(row.get("moment")), _whole(row.get("step")), _whole(row.get("version")))
            item = by_moment.setdefault(key, {"moment": key[0], "step": key[1], "version": key[2], "scores": []})
            if len(item["scores"]) < 100:
                item["scores"].append(_score(row))
    return list(by_moment.values())[-MOST_EVALUATIONS:]


def _score(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of evals.jsonl without what its evaluation says."""
    cutter = Cutter(100_000, longest=1_000)
    score = {
        key: cutter.value(value) for key, value in row.items() if key not in ("moment", "step", "version", "tasks")
    }
    reward = row.get("reward")
    known = isinstance(reward, int | float) and not isinstance(reward, bool) and abs(reward) < MOST_REWARD
    score["reward"] = reward if known else None
    for name in ("environment", "sampling"):
        score[name] = str(row.get(name) or "")[:1_000]
    tasks = row.get("tasks")
    if isinstance(tasks, Mapping):
        score["tasks"] = {str(task)[:200]: tasks[task] for task in list(tasks)[:MOST_TASKS]}
        score["num_tasks"] = len(tasks)
    return score


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 53 else 0


class Findings:
    """The doctor's findings, examined again when a file that they follow from has changed; of a run that writes all the
    time, from time to time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Examined] = OrderedDict()
        self._under: dict[str, Future[_Examined]] = {}

    def of(
        self, run: LibraryRun, checkpoint_faults: Callable[[], list[str]], patience: float | None = None
    ) -> list[dict[str, Any]] | None:
        """Most urgent first; after `patience` seconds those of the examination before, None where there was none.

        `checkpoint_faults` gives those of the newest checkpoint, which the doctor would hash.
        """
        directory = directory_of(run)
        if run.kind == "search":
            return []
        faults = checkpoint_faults()
        names = (RUN_CONFIG, STATUS, METRICS, EVALS, ERRORS, METADATA, RESULTS)
        base = results_directory(directory) if run.kind == "evaluation" else directory
        stamps = (tuple(file_stamp(base / name) for name in names), tuple(faults))
        with self._lock:
            known = self._kept.get(run.id)
        if known is None or (known.stamps != stamps and (known.state != run.state or time.monotonic() >= known.due)):
            with suppress(TimeoutError):
                known = self._examination(base, run, faults, stamps).result(patience)
        return None if known is None else known.findings

    def _examination(self, base: Path, run: LibraryRun, faults: list[str], stamps: Any) -> Future[_Examined]:
        """The one of this run that is in progress, or a new one, in a thread of its own."""
        with self._lock:
            if (known := self._under.get(run.id)) is not None:
                return known
            made = self._under[run.id] = Future()

        def examine() -> None:
            began = time.monotonic()
            try:
                findings = _examined(base, run, faults)
                ended = time.monotonic()
                due = ended + max(EXAMINED_SECONDS, (ended - began) / EXAMINED_SHARE)
                known = _Examined(stamps, run.state, due, findings)
            except BaseException as error:
                self._end(run.id, None)
                made.set_exception(error)
            else:
                self._end(run.id, known)
                made.set_result(known)

        threading.Thread(target=examine, name="whet-examine", daemon=True).start()
        return made

    def _end(self, id: str, known: _Examined | None) -> None:
        """Keep what an examination found, where it ended with a result."""
        with self._lock:
            del self._under[id]
            if known is not None:
                self._kept[id] = known
                self._kept.move_to_end(id)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)


class _Examined(NamedTuple):
    stamps: Any  # of the files
    state: str
    due: float  # when a change is examined
    findings: list[dict[str, Any]]


def _examined(directory: Path, run: LibraryRun, faults: list[str]) -> list[dict[str, Any]]:
    from whet.rl.doctor import DoctorFinding, diagnose, examine, read_record

    try:
        if run.kind == "evaluation":
            findings = examine(directory).findings
        else:
            _check_files(directory)
            record = read_record(directory, verify=False, ends=METRICS_ENDS)
            findings = diagnose(replace(record, life=replace(record.life, faults=faults)))
    except (WhetError, OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        # Files may say anything; what rules do not expect there is a finding about the files.
        what = f"the run's files cannot be examined: {error}"
        findings = [DoctorFinding("unreadable", "warning", what[:500], (), ())]
    return [one.view for one in findings[:50]]


def _check_files(directory: Path) -> None:
    """Raises `DashboardError` for a link, a pipe or a folder where the doctor reads a file."""
    steps = (directory / "rollouts").glob("step_*.jsonl") if file_stamp(directory / "rollouts") is not None else ()
    for path in (*(directory / name for name in (LOCK, RUN_CONFIG, STATUS, METRICS, EVALS, ERRORS)), *steps):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise DashboardError("forbidden", f"{path.name} is not a regular file; links are not followed.")
    if (directory / "rollouts").is_symlink() or (directory / "checkpoints").is_symlink():
        raise DashboardError("forbidden", "links are not followed.")


def progress(run: LibraryRun, use: ProcessUse) -> dict[str, Any]:
    """What a run does now: its status, what it waits for, what its processes use of this machine."""
    now: dict[str, Any] = {"state": run.state, "reason": run.reason, "step": run.step, "max_steps": run.max_steps}
    status = read_object(run.directory, STATUS) if run.directory is not None and run.kind in ("training", "sft") else {}
    cutter = Cutter(100_000, longest=4_000)
    now["status"] = cutter.value(status)
    stalled = status.get("stalled")
    waits = [str(one) for one in stalled] if isinstance(stalled, list) else []
    now["waits_for"] = cutter.value(waits)
    now["processes"] = None if run.ended or run.process is None else use.of(*run.process, run.devices)
    return now


def config_text(run: LibraryRun) -> str:
    """The TOML that a run was started with, without secrets. Raises `DashboardError` where it cannot be read."""
    return tomli_w.dumps(config_of(run))


def config_of(run: LibraryRun) -> dict[str, Any]:
    """The values of the config, without secrets."""
    path = run.config_file
    if path is None:
        raise no_such("config of this run")
    text = read_text(path.parent, path.name)
    try:
        value = redacted(parse_toml(text))
        return dict(parse_json(json.dumps(value, default=str)))
    except ValueError as error:
        raise DashboardError("unreadable", f"{path.name}: not TOML ({error}).") from None


def changed_settings(run: LibraryRun) -> dict[str, Any]:
    """What the config of a training run sets to another value than its default."""
    if run.kind not in ("training", "sft"):
        return {}
    from whet.rl.stored.compare import changed

    return changed(config_of(run))


def report(run: LibraryRun) -> bytes:
    """The page that `whet train report`, `eval report` or `gepa report` wrote."""
    directory = directory_of(run)
    directory = results_directory(directory) if run.kind == "evaluation" else directory
    group = {"evaluation": "eval", "search": "gepa"}.get(run.kind, "train")
    try:
        with open_inside(directory, REPORT) as file:
            data = read_at(file, 0, REPORT_BYTES + 1)
    except FileNotFoundError:
        made = f"whet {group} report {directory}"
        raise DashboardError("not_found", f"no report was written of {run.name}. On its machine: {made}") from None
    if len(data) > REPORT_BYTES:
        raise DashboardError("too_large", f"{REPORT}: larger than {REPORT_BYTES:,} bytes.")
    return data


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
