"""What a report is made of, read from the files of a run alone. A run still going, or killed, reads as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.display.chart import Chart, Point, Series
from whet.rl.monitors.protocol import EvalReport
from whet.rl.stored.stored_run import StoredTraining
from whet.runs.stored import environment_names

KEY_METRICS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("KL, sampler to learner", ("policy/kl",), False),
    ("KL by cause", ("policy/kl_engine", "policy/kl_stale"), False),
    ("Entropy", ("policy/entropy",), False),
    ("Gradient norm", ("optim/grad_norm",), False),
    ("Learning rate", ("optim/lr",), False),
    ("Spread of rewards", ("reward/std",), False),
    ("Groups with no variance", ("groups/zero_variance_frac",), True),
    ("Trained tokens a rollout", ("seq_len/trained_mean",), False),
    ("Truncated and errored rollouts", ("rollouts/truncated_frac", "rollouts/errored_frac"), True),
    ("Seconds a step", ("time/generate", "time/train", "time/weight_sync"), False),
    ("Tokens per second", ("perf/tokens_per_s",), False),
)
"""(title, metrics, whether they are shares of one) of the small charts, in their order."""


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
    def curves(self) -> list[str]:
        """Environments and, behind each group, its members: the names of metrics `reward/<name>/mean`."""
        known = dict.fromkeys(name for row in self.metrics for name in row)
        rewards = [name.removeprefix("reward/").removesuffix("/mean") for name in known if name.startswith("reward/")]
        found = []
        for env in self.environments:
            members = [name for name in rewards if name.startswith(f"{env}/") and f"reward/{name}/mean" in known]
            found += [env, *members]
        return found

    @property
    def steps(self) -> int:
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    def column(self, metric: str) -> list[float | None]:
        return [row.get(metric) for row in self.metrics]

    def total(self, metric: str) -> float:
        return sum(value for value in self.column(metric) if value is not None)

    def evaluation(self, moment: str) -> EvalReport | None:
        return next((report for report in reversed(self.evaluations) if report.moment == moment), None)

    def main_chart(self) -> Chart:
        """What training is about: rewards, or the loss where it imitates."""
        return self.reward_chart() if self.environments else self.loss_chart()

    def loss_chart(self) -> Chart:
        """The loss of imitation, with that of validation as marks."""
        steps = self.column("step")
        marks = [(float(row["step"]), row["validation/loss"]) for row in self.metrics if row.get("validation/loss")]
        series = Series.of("training", steps, self.column("optim/loss"), marks)  # type: ignore[arg-type]
        return Chart("Loss", [series])

    def reward_chart(self) -> Chart:
        """Training rewards per environment, with the held-out scores (sampled, not greedy) as marks."""
        steps = self.column("step")
        series = [
            Series.of(name, steps, self.column(f"reward/{name}/mean"), self._held_out(name))  # type: ignore[arg-type]
            for name in self.curves
        ]
        rewards = [y for one in series for _, y in (*one.points, *one.marks)]
        return Chart("Reward", series, unit_range=all(0 <= reward <= 1 for reward in rewards))

    def _held_out(self, environment: str) -> list[Point]:
        return [
            (float(report.step), score.reward)
            for report in self.evaluations
            for whole in report.scores
            for score in (whole, *whole.members)
            if score.environment == environment and score.sampling != "greedy"
        ]

    def metric_charts(self) -> list[Chart]:
        """The small charts of every key metric the run has."""
        steps = self.column("step")
        charts = [
            Chart(title, [Series.of(_short(name), steps, self.column(name)) for name in names], unit_range=share)  # type: ignore[arg-type]
            for title, names, share in KEY_METRICS
        ]
        return [chart for chart in charts if not chart.empty]


def _short(metric: str) -> str:
    return metric.rpartition("/")[2].removesuffix("_frac").replace("_", " ")
