"""The report of a training run as one HTML page, from the run's data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from whet.display.chart import Chart
from whet.display.conversation import expected_html, messages_html
from whet.display.document import document
from whet.display.html import Html, join, tag
from whet.display.svg import figure
from whet.display.text import number
from whet.rl.doctor.finding import DoctorFinding
from whet.rl.monitors.progress import Difference, ScoreComparison, compare
from whet.rl.report.data import RunData
from whet.rl.report.samples import Pair, TrainedGroup, before_and_after, trained_samples
from whet.system.terminal import duration

PAIRED = "± is half the width of the 95 % interval of the change, paired over tasks."


def page(run: RunData, findings: Sequence[DoctorFinding] = ()) -> str:
    """The whole document."""
    body = [
        _head(run),
        findings_html(findings),
        _curves(run),
        _comparison(run),
        _pairs(before_and_after(run.directory / "rollouts")),
        _metrics(run.metric_charts()),
        _trained(trained_samples(run.directory / "rollouts", [int(row["step"]) for row in run.metrics])),
        tag("h2", "Config"),
        tag("details", tag("summary", "config.toml, as it was resolved"), tag("pre", run.config_text)),
    ]
    return document(run.name, body)


def _head(run: RunData) -> Html:
    config = run.config
    tiles = [*_headline(run), ("steps", str(run.steps))]
    if seconds := run.total("time/step"):
        tiles.append(("of training", duration(seconds)))
        rate = sum((row.get("perf/tokens_per_s") or 0) * (row.get("time/step") or 0) for row in run.metrics) / seconds
        tiles.append(("trained tokens per second", f"{rate:,.0f}"))
    shape = _reinforced(run) if run.environments else _imitated(run)
    what = f"{config.get('model')} {shape}, learning rate {config.get('learning_rate')}, seed {config.get('seed')}"
    shown = [tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in tiles]
    return join(tag("h1", run.name), tag("p", what, class_="sub"), tag("div", *shown, class_="tiles"))


def _reinforced(run: RunData) -> str:
    rollouts = run.config.get("rollouts_per_example", 1)
    groups = run.config.get("batch_size", 0) // max(1, rollouts)
    return f"on {', '.join(run.environments)}; {groups} tasks x {rollouts} rollouts a step"


def _imitated(run: RunData) -> str:
    data = run.config.get("data", {})
    return f"imitates {data.get('path') or data.get('dataset')}; {run.config.get('batch_size')} rows a step"


def _headline(run: RunData) -> list[tuple[str, str]]:
    """Mean held-out reward before and after, for each way of sampling."""
    ways, rows = compare(run.evaluation("before"), run.evaluation("after"))
    rewards = [row for row in rows if row.quantity == "reward" and not row.member]
    if not rewards:
        return []
    found = {way: rewards[-1].values[way] for way in ways}
    return [
        (f"held-out reward, {way}", f"{number(one.before, 2)} → {number(one.after, 2)}") for way, one in found.items()
    ]


def _curves(run: RunData) -> Html:
    chart = run.main_chart()
    if chart.empty:
        return tag("p", "No step has been trained yet.", class_="note")
    marks = any(series.marks for series in chart.series)
    held_out = " Circles: held-out tasks." if run.environments else " Circles: rows that are never trained on."
    note = "Thin: each step. Thick: smoothed." + (held_out if marks else "")
    return join(tag("h2", chart.title), figure(chart, 1000, 340), tag("p", note, class_="note"))


def _comparison(run: RunData) -> Html:
    before, after = run.evaluation("before"), run.evaluation("after")
    ways, rows = compare(before, after)
    if not rows:
        return join()
    head = [
        tag("tr", tag("th"), *(tag("th", way, colspan=3, class_="way") for way in ways)),
        tag("tr", tag("th"), *(tag("th", name) for _ in ways for name in ("before", "after", "change"))),
    ]
    errors = sum(score.errors for report in (before, after) if report for score in report.scores)
    paired = any(one.reach is not None for row in rows for one in row.values.values())
    return join(
        tag("h2", "Held-out tasks, before and after"),
        tag("table", *head, *(_row(row, ways) for row in rows)),
        tag("p", PAIRED, class_="note") if paired else join(),
        tag("p", f"{errors} errored rollouts are left out of the means.", class_="note") if errors else join(),
    )


def _row(row: ScoreComparison, ways: list[str]) -> Html:
    cells = []
    for way in ways:
        one = row.values[way]
        cells += [tag("td", number(one.before)), tag("td", number(one.after)), _change(one)]
    minor = row.member or row.quantity != "reward"
    kind = "metric" if minor else "total" if row.environment == "mean" else None
    name = row.environment if row.quantity == "reward" else row.quantity.replace("_", " ")
    return tag("tr", tag("td", name), *cells, class_=kind)


def _change(one: Difference) -> Html:
    change = one.change
    if change is None or not math.isfinite(change):
        return tag("td", "-")
    text = f"{change:+.3f}" + ("" if one.reach is None else f" ± {one.reach:.3f}")
    return tag("td", text, class_=("up" if change > 0 else "down") if one.is_real and change else None)


def _metrics(charts: list[Chart]) -> Html:
    if not charts:
        return join()
    figures = [tag("div", tag("h3", chart.title), figure(chart, 400, 190)) for chart in charts]
    return join(tag("h2", "Training"), tag("div", *figures, class_="small"))


def _pairs(pairs: list[Pair]) -> Html:
    if not pairs:
        return join()
    parts: list[Html] = [tag("h2", "The same held-out task, before and after training")]
    for pair in pairs:
        task = f"task {pair.before.get('example_id')}, {pair.sampling}: {pair.why}"
        parts += [
            tag("h3", f"{pair.environment}, {task}"),
            tag("div", messages_html(pair.before.get("prompt")), expected_html(pair.before), class_="task"),
            tag("div", _rollout("before", pair.before), _rollout("after", pair.after), class_="pair"),
        ]
    return join(*parts)


def _trained(groups: list[TrainedGroup]) -> Html:
    if not groups:
        return join()
    parts: list[Html] = [
        tag("h2", "Rollouts that were trained on"),
        tag("p", "Best and worst of a group: the first is made more likely, the second less.", class_="note"),
    ]
    for group in groups:
        parts += [
            tag("h3", f"step {group.step}, {group.environment}"),
            tag("div", messages_html(group.best.get("prompt")), expected_html(group.best), class_="task"),
            tag("div", _rollout("best", group.best), _rollout("worst", group.worst), class_="pair"),
        ]
    return join(*parts)


def _rollout(label: str, row: Mapping[str, Any]) -> Html:
    facts = f"reward {number(row.get('reward'))}"
    if row.get("advantage") is not None:
        facts += f", advantage {row['advantage']:+.3f}"
    if row.get("is_truncated"):
        facts += ", cut off"
    return tag(
        "div",
        tag("header", tag("b", label), tag("span", facts)),
        messages_html(row.get("completion")),
        class_="rollout",
    )


def findings_html(findings: Sequence[DoctorFinding]) -> Html:
    """What is wrong, what shows it, and what to change; nothing where nothing is wrong."""
    if not findings:
        return join()
    return join(tag("h2", "What the doctor found"), *map(_finding, findings))


def _finding(finding: DoctorFinding) -> Html:
    changes = [tag("li", tag("b", "Change: "), change.text) for change in finding.changes]
    evidence = [tag("li", line) for line in finding.evidence]
    return join(
        tag(
            "h3",
            tag("span", finding.severity, class_="down" if finding.severity == "error" else None),
            ": ",
            finding.what,
        ),
        tag("ul", *evidence, *changes),
    )
