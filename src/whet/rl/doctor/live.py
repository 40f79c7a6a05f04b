"""The doctor's line in the live view: the most urgent finding, from the numbers of the last steps alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whet.errors import WhetError
from whet.rl.doctor import diagnose
from whet.rl.doctor.record import KEPT_FIRST, KEPT_LAST, RunRecord
from whet.rl.report.data import RunData, read_run

EVERY = 5
"""Steps between two looks: a look costs about a millisecond."""


class LiveDoctor:
    """Fed with a run's metrics step by step; `line` is the finding to show, or None, and `name` the rule it is of."""

    def __init__(self, config: Mapping[str, Any], before: Iterable[Mapping[str, Any]] = ()) -> None:
        """`before` are the steps on record when the run is resumed."""
        self.line: str | None = None
        self.name: str | None = None
        self._config = dict(config)
        self._first: list[dict[str, Any]] = []
        self._last: list[dict[str, Any]] = []
        for row in before:
            self._keep(dict(row))

    @classmethod
    def of(cls, directory: Path, first_step: int = 1) -> LiveDoctor | None:
        """Of a run that begins; None where its files cannot be read, for then there is nothing to look at."""
        try:
            run = read_run(directory)
        except (OSError, WhetError):
            return None
        return cls(run.config, (row for row in run.metrics if row["step"] < first_step))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step more; every few of them are looked at."""
        self._keep({"step": step, **metrics})
        if step % EVERY == 0:
            self.look()

    def look(self) -> None:
        """At the steps so far."""
        if self._first:
            rows = [*self._first, *self._last]
            data = RunData(Path(), self._config, "", rows, [])
            findings = [finding for finding in diagnose(RunRecord(data)) if finding.severity != "info"]
            self.line, self.name = (findings[0].line, findings[0].rule) if findings else (None, None)

    def _keep(self, row: dict[str, Any]) -> None:
        if len(self._first) < KEPT_FIRST:
            self._first.append(row)
            return
        self._last.append(row)
        del self._last[:-KEPT_LAST]
