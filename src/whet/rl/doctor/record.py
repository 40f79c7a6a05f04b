"""What rules look at: a run as it was written down, and its numbers as series. Pure.

Rules see numbers through windows: the `last` few steps against the `first` few. A step alone says little (a batch is a
sample of tasks), so fewer than `MIN_STEPS` steps say nothing.

Changes that several rules propose, as configs that a run can be made with.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from whet.rl.report.data import RunData

# What the doctor says: a finding, what shows it, what to change. Plain data, the same in terminal, page and JSON.

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""error: the run does not learn or does not continue; warning: it learns less than it could; info: worth knowing."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change to make: a key of the config with its new value, or (`key` None) what a config cannot say."""

    why: str
    key: str | None = None  # as on the command line: sampling.max_tokens, env.0.weight
    value: Any = None
    now: Any = None  # the key's value in the run

    @property
    def text(self) -> str:
        """`key = value  (now 24): why`, as it would stand in the file."""
        if self.key is None:
            return self.why
        was = "" if self.now is None else f"  (now {toml_value(self.now)})"
        return f"{self.key} = {toml_value(self.value)}{was}: {self.why}"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that is wrong."""

    rule: str
    severity: Severity
    what: str  # one sentence
    evidence: Sequence[str]  # sentences with numbers and the steps they are from
    changes: Sequence[Advice]  # most important first

    @property
    def line(self) -> str:
        """The finding and its first change on one line."""
        return f"{self.what}: {self.changes[0].text}" if self.changes else self.what

    @property
    def view(self) -> dict[str, Any]:
        """As the dashboard and a report have it."""
        changes = [{**asdict(one), "text": one.text} for one in self.changes]
        return {
            "severity": self.severity,
            "rule": self.rule,
            "title": self.what,
            "evidence": list(self.evidence),
            "change": changes[0]["text"] if changes else None,
            "changes": changes,
        }


Found: TypeAlias = tuple[Severity, str, Sequence[str], Sequence[Advice]]
"""What a rule yields: a `DoctorFinding` without the name of its rule."""


def rounded(value: float) -> float:
    """A number that a person would write: two digits of it."""
    return float(f"{value:.2g}")


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, float):
        return f"{value:g}" if value != int(value) or abs(value) >= 1e6 else f"{value:.1f}"
    return json.dumps(value)


def most_urgent_first(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """By severity; of equal ones in the order of the rules."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


WINDOW = 10
"""Steps at the end that stand for how the run is now: long enough that the luck of a batch evens out."""
OPENING = 5
"""Steps at the beginning that it is compared with: before much was learned."""
MIN_STEPS = 5
"""Steps below which nothing is reported of a trend or a level."""
KEPT_FIRST, KEPT_LAST = 5, 50
"""Steps that are held while a run goes on: what rules call the beginning, and as much as they look back."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A metric over steps, without the steps that do not have it."""

    steps: Sequence[int]
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def span(self) -> str:
        """`steps 41 to 50`."""
        return f"step {self.steps[0]}" if len(self) == 1 else f"steps {self.steps[0]} to {self.steps[-1]}"

    def last(self, count: int = WINDOW) -> MetricSeries:
        return MetricSeries(self.steps[-count:], self.values[-count:])

    def first(self, count: int = OPENING) -> MetricSeries:
        return MetricSeries(self.steps[:count], self.values[:count])

    def means(self, width: int) -> MetricSeries:
        """The mean of each `width` values in a row, at the last of their steps."""
        ends = range(width, len(self) + 1)
        return MetricSeries(
            [self.steps[end - 1] for end in ends],
            [math.fsum(self.values[end - width : end]) / width for end in ends],
        )


@dataclass(frozen=True, slots=True)
class Life:
    """What became of the run's process."""

    state: str = "running"  # as status.json has it; `died` where it says so of a run that no process holds
    silent_seconds: float = 0.0  # since its last heartbeat
    last_error: str | None = None
    stalled: Sequence[str] = ()  # what it waits for longer than usual, since its last step
    faults: Sequence[str] = ()  # of checkpoints that cannot be trusted
    checkpoints: Sequence[int] | None = None  # their steps; None where it was not read


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, as far as it has come. While it runs, rules may be given its metrics alone."""

    data: RunData
    life: Life = Life()
    errors: Sequence[Row] = ()  # of errors.jsonl
    rollouts: Sequence[Row] = ()  # of the newest step
    first_rollouts: Sequence[Row] = field(default=())  # of the first

    def as_seen_live(self) -> RunRecord:
        """Only the steps that are held while it is running; itself where those are all."""
        rows = self.data.metrics
        if len(rows) <= KEPT_FIRST + KEPT_LAST:
            return self
        return RunRecord(replace(self.data, metrics=[*rows[:KEPT_FIRST], *rows[-KEPT_LAST:]], evaluations=[]))

    @property
    def environments(self) -> list[str]:
        return self.data.environments

    @property
    def steps(self) -> int:
        return self.data.steps

    def series(self, metric: str) -> MetricSeries:
        points = [(int(row["step"]), float(row[metric])) for row in self.data.metrics if row.get(metric) is not None]
        return MetricSeries([step for step, _ in points], [value for _, value in points])

    def recent(self, metric: str, count: int = WINDOW) -> MetricSeries:
        """The last steps of a metric."""
        return self.series(metric).last(count)

    def level(self, metric: str) -> float:
        """The mean of a metric over the last steps; 0 where none has it."""
        series = self.recent(metric)
        return series.mean if len(series) else 0.0

    def setting(self, key: str, default: Any = None) -> Any:
        """A value of the config by its path, such as `sampling.max_tokens`; `default` where it is not set."""
        value: Any = self.data.config
        for part in key.split("."):
            if isinstance(value, Mapping):
                value = value.get(part)
            else:
                value = value[int(part)] if isinstance(value, list) and int(part) < len(value) else None
            if value is None:
                return default
        return value

    def change(self, key: str, value: Any, why: str) -> Advice:
        """`key = value`, with what it is now."""
        return Advice(why, key, value, self.setting(key))

    def scaled(self, key: str, default: int, factor: int, why: str) -> Advice:
        """`factor` times what a key is now, or its default where it is not set."""
        return self.change(key, factor * int(self.setting(key, default)), why)

    def unless_set(self, key: str, value: Any, why: str) -> list[Advice]:
        """`key = value` where the key is 0, false or absent; otherwise nothing."""
        return [] if self.setting(key) else [self.change(key, value, why)]

    @property
    def noise(self) -> float:
        """By how much the mean reward of a step varies by chance: the deviation of rewards, over the root of groups.

        Rollouts of a group resemble each other, so it is groups that count, and the largest deviation of any step:
        this is the most it can be.
        """
        spread = self.series("reward/std")
        return max(spread.values, default=0.0) / math.sqrt(self.groups)

    @property
    def groups(self) -> int:
        return max(1, int(self.setting("batch_size", 1)) // max(1, int(self.setting("rollouts_per_example", 1))))

    @property
    def asynchronous(self) -> bool:
        return int(self.setting("max_async_level", 0)) > 0

    def rollouts_of(self, environment: str) -> list[Row]:
        return [row for row in self.rollouts if row.get("environment") == environment]


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rollout rows by group."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.get("group")].append(row)
    return list(groups.values())


def share(rows: Sequence[Row], name: str) -> float | None:
    """Share of the rows in which a yes-or-no field that they have is yes; None where none has it."""
    known = [bool(row[name]) for row in rows if row.get(name) is not None]
    return sum(known) / len(known) if known else None


LARGEST_RATE = 1e-3
"""Largest learning rate proposed for AdamW and Muon: beyond it steps are too large for models of any size.
A fraction of a rate far outside of the usual range would still be outside. SGD's rates have no such range."""
GROUP_SIZE = 8
"""Smallest group proposed: the default of training."""


def lower_rate(run: RunRecord, factor: float, why: str) -> Advice:
    """The learning rate divided by `factor`, and at most the largest sensible one."""
    rate = float(run.setting("learning_rate", 1e-5)) / factor
    if run.setting("optimizer.type", "adamw") != "sgd":
        rate = min(rate, LARGEST_RATE)
    return run.change("learning_rate", rounded(rate), why)


def larger_groups(run: RunRecord, why: str) -> list[Advice]:
    """Twice the group size, and at least `GROUP_SIZE`; with a batch and a concurrency that hold such groups.

    Empty where a batch of several groups would become a single one, or rollouts could not run at once.
    """
    size, batch = int(run.setting("rollouts_per_example", 8)), int(run.setting("batch_size", 8))
    wanted = max(2 * size, GROUP_SIZE)
    if int(run.setting("max_concurrent", 512)) < wanted:
        return []
    changes = [run.change("rollouts_per_example", wanted, why)]
    if batch % wanted:
        if size >= GROUP_SIZE:
            return []
        whole = -(-batch // wanted) * wanted
        changes.append(run.change("batch_size", whole, f"a batch holds whole groups of {wanted}"))
    return changes


def anchored(run: RunRecord) -> list[Advice]:
    """A KL term, where there is none."""
    return run.unless_set("algorithm.kl_coef", 0.01, "holds the policy to what the run began with")


def calmer(run: RunRecord) -> list[Advice]:
    """Smaller steps, and what else keeps a policy where it is."""
    clipped = []
    if not run.setting("optimizer.max_grad_norm", 1.0):
        clipped = [run.change("optimizer.max_grad_norm", 1.0, "a single batch can then not move it far")]
    return [lower_rate(run, 10, "smaller steps; resume from a checkpoint before the fall"), *clipped, *anchored(run)]
