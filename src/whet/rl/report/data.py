"""What a report is made of, read from the files of a run alone. A run still going, or killed, reads as well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.display.chart import Point
from whet.records.stored import environment_names
from whet.rl.monitors.protocol import EvalReport
from whet.rl.report.figures import Figure, drawn, figures_of
from whet.rl.stored.stored_run import StoredTraining


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, as its directory describes it."""

    directory: Path
    config: Mapping[str, Any]
    metrics: list[dict[str, Any]]  # one a step, in order
    evaluations: list[EvalReport]

    @property
    def name(self) -> str:
        return str(self.config.get("name", self.directory.name))

    @classmethod
    def of(cls, run: StoredTraining, ends: int | None = None) -> RunData:
        """Its metrics within `ends`, as `read_lines` has it. Raises `RunError` where they cannot be read."""
        return cls(run.directory, run.config, run.metrics(ends), run.evaluations())

    @property
    def environments(self) -> list[str]:
        """Those that were trained on, in the order of the config, by the names in metrics."""
        return environment_names(self.config)

    @property
    def steps(self) -> int:
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    def column(self, metric: str) -> list[float | None]:
        return [row.get(metric) for row in self.metrics]

    def total(self, metric: str) -> float:
        return sum(value for value in self.column(metric) if value is not None)

    def evaluation(self, moment: str) -> EvalReport | None:
        return next((report for report in reversed(self.evaluations) if report.moment == moment), None)

    def figures(self) -> list[Figure]:
        """Its curves, with held-out scores (sampled, not greedy) as marks."""
        names = dict.fromkeys(name for row in self.metrics for name in row if name != "step")
        columns = {name: self.column(name) for name in names}
        marks = self._marks()
        figures = figures_of(names, columns, self.environments, ())
        steps = [int(row["step"]) for row in self.metrics]
        charts = [drawn(figure, steps, columns, marks) for figure in figures]
        if charts and marks:
            charts[0] = replace(charts[0], note="circles: held-out tasks")
        return [one for one in charts if one.chart is not None and not one.chart.empty]

    def _marks(self) -> dict[str, list[Point]]:
        marks: dict[str, list[Point]] = defaultdict(list)
        for report in self.evaluations:
            for score in (one for whole in report.scores for one in (whole, *whole.members)):
                if score.sampling != "greedy":
                    marks[f"reward/{score.environment}/mean"].append((float(report.step), score.reward))
        return marks
