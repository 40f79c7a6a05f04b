"""The report of a training run as one HTML page, from the run's data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from whet.display.chart import Chart
from whet.display.conversation import expected_html, messages_html
from whet.display.html import Html, document, join, tag
from whet.display.svg import figure
from whet.display.text import number
from whet.rl.doctor.finding import DoctorFinding
from whet.rl.monitors.progress import Difference, ScoreComparison, compare
from whet.rl.report.data import RunData
from whet.rl.report.samples import Pair, Row, TrainedGroup, before_and_after, trained_samples
from whet.runs.report import head, section, settings, small
from whet.system.terminal import duration

PAIRED = "± is half the width of the 95 % interval of the change, paired over tasks."


def page(run: RunData, findings: Sequence[DoctorFinding] = ()) -> str:
    """The whole document."""
    config = (run.directory / "config.toml").read_text(encoding="utf-8")
    body = [
        _head(run),
        findings_html(findings),
        _curves(run),
        _comparison(run),
        _pairs(before_and_after(run.directory / "rollouts")),
        _metrics(run.metric_charts()),
        _trained(trained_samples(run.directory / "rollouts", [int(row["step"]) for row in run.metrics])),
        settings("Config", "config.toml, as it was resolved", config),
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
    return head(run.name, [what], tiles)


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
        return small("No step has been trained yet.")
    marks = any(series.marks for series in chart.series)
    held_out = " Circles: held-out tasks." if run.environments else " Circles: rows that are never trained on."
    note = "Thin: each step. Thick: smoothed." + (held_out if marks else "")
    return section(chart.title, figure(chart, 1000, 340), small(note))


def _comparison(run: RunData) -> Html:
    before, after = run.evaluation("before"), run.evaluation("after")
    ways, rows = compare(before, after)
    if not rows:
        return join()
    heads = [
        tag("tr", tag("th"), *(tag("th", way, colspan=3, class_="way") for way in ways)),
        tag("tr", tag("th"), *(tag("th", name) for _ in ways for name in ("before", "after", "change"))),
    ]
    errors = sum(score.errors for report in (before, after) if report for score in report.scores)
    paired = any(one.reach is not None for row in rows for one in row.values.values())
    return section(
        "Held-out tasks, before and after",
        tag("table", *heads, *(_row(row, ways) for row in rows)),
        small(PAIRED if paired else ""),
        small(f"{errors} errored rollouts are left out of the means." if errors else ""),
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
    figures = [tag("div", tag("h3", chart.title), figure(chart, 400, 190)) for chart in charts]
    return section("Training", tag("div", *figures, class_="small") if figures else join())


def _pairs(pairs: list[Pair]) -> Html:
    shown = [
        _two(
            f"{pair.environment}, task {pair.before.get('example_id')}, {pair.sampling}: {pair.why}",
            ("before", pair.before),
            ("after", pair.after),
        )
        for pair in pairs
    ]
    return section("The same held-out task, before and after training", *shown)


def _trained(groups: list[TrainedGroup]) -> Html:
    shown = [
        _two(f"step {group.step}, {group.environment}", ("best", group.best), ("worst", group.worst))
        for group in groups
    ]
    note = "Best and worst of a group: the first is made more likely, the second less."
    return section("Rollouts that were trained on", *shown, note=note)


def _two(title: str, left: tuple[str, Row], right: tuple[str, Row]) -> Html:
    """Two rollouts of one task, next to each other."""
    return join(
        tag("h3", title),
        tag("div", messages_html(left[1].get("prompt")), expected_html(left[1]), class_="task"),
        tag("div", _rollout(*left), _rollout(*right), class_="pair"),
    )


def _rollout(label: str, row: Row) -> Html:
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
    return section("What the doctor found", *map(_finding, findings))


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
