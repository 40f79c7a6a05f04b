"""What a report is made of, read from the files of a run alone. A run still going, or killed, reads as well."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.display.chart import Chart, Point, Series
from whet.records.stored import environment_names
from whet.rl.monitors.protocol import EvalReport
from whet.rl.stored.stored_run import StoredTraining

# Which curves a page draws of a run: of the dashboard and of `report.html`. Pure.

KEY_METRICS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("KL, sampler to learner", ("policy/kl",), False),
    ("KL by cause", ("policy/kl_engine", "policy/kl_stale"), False),
    ("Entropy", ("policy/entropy",), False),
    ("Gradient norm", ("optim/grad_norm",), False),
    ("Learning rate", ("optim/lr",), False),
    ("Mean advantage", ("advantage/mean",), False),
    ("Spread of rewards", ("reward/std",), False),
    ("Groups with no variance", ("groups/zero_variance_frac",), True),
    ("Trained tokens a rollout", ("seq_len/trained_mean",), False),
    ("Truncated and errored rollouts", ("rollouts/truncated_frac", "rollouts/errored_frac"), True),
    ("Seconds a step", ("time/generate", "time/train", "time/weight_sync"), False),
    ("Tokens per second", ("perf/tokens_per_s",), False),
    ("Memory, MiB", ("memory/rollouts_mib", "memory/learn_mib", "memory/publish_mib", "memory/peak_mib"), False),
)
"""(title, metrics, whether they are shares of one) of the small charts, in their order."""
PHASES = ("model", "environment", "score", "longest")
"""What the time of a rollout is spent on, and the time of the longest one."""
COUNTS = ("/mean", "/num_turns", "_calls")
"""Endings of metrics that are no reward functions; the list of all metrics has them."""

TITLES = {
    "reward/mean": "Reward",
    "optim/loss": "Loss",
    "validation/loss": "Validation loss",
    "rollouts/truncated_frac": "Truncated rollouts",
    "staleness/mean": "Staleness, steps",
    "time/step": "Seconds a step",
}
"""Of metrics that share a chart in reports."""

Columns = Mapping[str, Sequence[float | None]]
"""A value for each step, by the name of the metric."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: its metrics, each with a label of its own."""

    title: str
    names: list[str]
    labels: list[str]
    share: bool = False  # values are between 0 and 1: always show all of that
    wide: bool = False
    note: str = ""
    chart: Chart | None = field(default=None, compare=False)
    """What is drawn for a page without scripts."""


def figures_of(
    known: Iterable[str], series: Columns, environments: Sequence[str], chosen: Sequence[str]
) -> list[Figure]:
    """The figures of a run: rewards, what was chosen, each environment's reward functions, then the key metrics."""
    names = list(known)
    figures = [_rewards(names, environments, series)]
    figures += [Figure(name, [name], [name]) for name in chosen if name in names]
    for environment in environments:
        figures += _functions(environment, names, series)
        phases = [f"time/{environment}/{phase}" for phase in PHASES if f"time/{environment}/{phase}" in names]
        figures += [
            Figure(f"{environment}: seconds of a rollout", phases, [one.rpartition("/")[2] for one in phases])
        ] * bool(phases)
    for title, metrics, share in KEY_METRICS:
        here = [name for name in metrics if name in names and name not in chosen]
        figures.append(Figure(title, here, [_short(name) for name in here], share))
    return [figure for figure in figures if figure.names]


def _rewards(names: Sequence[str], environments: Sequence[str], series: Columns) -> Figure:
    curves = [f"reward/{name}/mean" for name in with_members(environments, names) if f"reward/{name}/mean" in names]
    if not curves:
        losses = [name for name in ("optim/loss", "validation/loss") if name in names]
        return Figure("Loss", losses, ["training", "validation"][: len(losses)], wide=True)
    labels = [name.removeprefix("reward/").removesuffix("/mean") for name in curves]
    return Figure("Reward", curves, labels, is_share(series, curves), wide=True)


def with_members(environments: Iterable[str], names: Sequence[str]) -> list[str]:
    """Environments and, behind each group, its members, which have metrics `reward/<group>/<member>/mean`."""
    rewards = [name[7:-5] for name in names if name.startswith("reward/") and name.endswith("/mean")]
    return [name for one in environments for name in (one, *(two for two in rewards if two.startswith(f"{one}/")))]


def _functions(environment: str, names: Sequence[str], series: Columns) -> list[Figure]:
    """Reward functions and metrics of an environment: those between 0 and 1 together, and the others."""
    before = f"reward/{environment}/"
    here = [name for name in names if name.startswith(before) and not name.endswith(COUNTS)]
    shares = [name for name in here if is_share(series, [name])]
    others = [name for name in here if name not in shares]
    return [
        Figure(
            f"{environment}{what}", metrics, [name.removeprefix(before) for name in metrics], share=metrics is shares
        )
        for what, metrics in ((": reward functions", shares), (": other metrics", others))
    ]


def is_share(series: Columns, names: Iterable[str]) -> bool:
    """Whether all values are between 0 and 1."""
    values = [value for name in names for value in series.get(name, ()) if value is not None]
    return bool(values) and all(0 <= value <= 1 for value in values)


def _short(name: str) -> str:
    return name.rpartition("/")[2].removesuffix("_frac").replace("_", " ")


def title_of(name: str) -> str:
    """What a metric is called where it has a chart of its own."""
    if name in TITLES:
        return TITLES[name]
    if name.startswith("reward/"):
        return name.removeprefix("reward/").removesuffix("/mean")
    return next((title for title, names, _ in KEY_METRICS if names == (name,)), name)


def drawn(figure: Figure, steps: Sequence[int], series: Columns, marks: Mapping[str, Sequence[Point]]) -> Figure:
    """The same with its chart. `marks` are held-out scores by metric."""
    lines = [
        Series.of(label, steps, series.get(name) or [None] * len(steps), marks.get(name, ()))
        for name, label in zip(figure.names, figure.labels, strict=True)
    ]
    return replace(figure, chart=Chart(figure.title, lines, unit_range=figure.share))


def extremes(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """The newest value, the lowest and the highest."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (finite[-1], min(finite), max(finite)) if finite else (None, None, None)


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
