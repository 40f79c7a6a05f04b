"""The data of a library's runs, with what is kept between requests."""

from __future__ import annotations

from whet.dashboard.data.checkpoints import CheckpointChecks, checkpoints
from whet.dashboard.data.facts import Findings
from whet.dashboard.data.machine import ProcessUse
from whet.dashboard.data.series import MetricSeries
from whet.dashboard.data.stores import Stores
from whet.dashboard.data.tokens import Tokenizers
from whet.dashboard.data.watching import Watcher
from whet.dashboard.library import LibraryRun, RunLibrary


class DashboardData:
    """One for each library and process; used by all threads."""

    def __init__(self, library: RunLibrary) -> None:
        self.library = library
        self.series = MetricSeries()
        self.stores = Stores()
        self.tokenizers = Tokenizers()
        self.checks = CheckpointChecks()
        self.use = ProcessUse()
        self.watcher = Watcher(self)
        self._findings = Findings()

    def findings(self, run: LibraryRun, patience: float | None = None) -> list[dict[str, object]] | None:
        """What the doctor says, the most urgent first; None where it has not ended in `patience` seconds."""
        return self._findings.of(run, lambda: self._faults(run), patience)

    def _faults(self, run: LibraryRun) -> list[str]:
        """Of the newest checkpoint; what is not hashed yet counts as whole."""
        if run.kind not in ("training", "sft"):
            return []
        return [f"step_{one['step']}: {one['fault']}" for one in checkpoints(self.checks, run)[-1:] if one["fault"]]

    def close(self) -> None:
        """Stop what runs in the background."""
        self.watcher.close()
        self.stores.close()
        self.checks.close()
