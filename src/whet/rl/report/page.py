"""The report as one HTML page: no network, no file beside it.

Everything that comes from a run is escaped by `html.py`. Should that ever fail, the page's own content policy still
lets nothing run but the script whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whet.messages import content_text
from whet.rl.monitors.progress import Comparison, compare
from whet.rl.monitors.views import call_text, number
from whet.rl.report.chart import Chart
from whet.rl.report.data import RunData
from whet.rl.report.html import Html, join, tag
from whet.rl.report.samples import Pair, TrainedGroup, before_and_after, trained_samples
from whet.rl.report.svg import COLOURS, svg_chart
from whet.terminal import duration

MOST_TEXT = 4000
"""Characters of one message that are shown."""


def page(run: RunData) -> str:
    """The whole document."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    body = [
        _head(run),
        _curves(run),
        _comparison(run),
        _pairs(before_and_after(run.directory / "rollouts")),
        _metrics(run.metric_charts()),
        _trained(trained_samples(run.directory / "rollouts", [int(row["step"]) for row in run.metrics])),
        tag("h2", "Config"),
        tag("details", tag("summary", "config.toml, as it was resolved"), tag("pre", run.config_text)),
        tag("script", Html(script)),
    ]
    meta = join(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{run.name} - whet"),
        tag("style", Html(style)),
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{meta}</head>\n{tag("body", *body)}\n</html>\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _head(run: RunData) -> Html:
    config = run.config
    tiles = [*_headline(run), ("steps", str(run.steps))]
    if seconds := run.total("time/step"):
        tiles.append(("of training", duration(seconds)))
        rate = sum((row.get("perf/tokens_per_s") or 0) * (row.get("time/step") or 0) for row in run.metrics) / seconds
        tiles.append(("trained tokens per second", f"{rate:,.0f}"))
    groups = config.get("batch_size", 0) // max(1, config.get("rollouts_per_example", 1))
    what = (
        f"{config.get('model')} on {', '.join(run.environments)}; {groups} tasks x "
        f"{config.get('rollouts_per_example')} rollouts a step, learning rate {config.get('learning_rate')}, "
        f"seed {config.get('seed')}"
    )
    shown = [tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in tiles]
    return join(tag("h1", run.name), tag("p", what, class_="sub"), tag("div", *shown, class_="tiles"))


def _headline(run: RunData) -> list[tuple[str, str]]:
    """Mean held-out reward before and after, for each way of sampling."""
    ways, rows = compare(run.evaluation("before"), run.evaluation("after"))
    rewards = [row for row in rows if row.quantity == "reward"]
    if not rewards:
        return []
    return [
        (f"held-out reward, {way}", f"{number(before, 2)} → {number(after, 2)}")
        for way in ways
        for before, after in [rewards[-1].values[way]]
    ]


def _curves(run: RunData) -> Html:
    chart = run.reward_chart()
    if chart.empty:
        return tag("p", "No step has been trained yet.", class_="note")
    marks = any(series.marks for series in chart.series)
    note = "Thin: each step. Thick: smoothed." + (" Circles: held-out tasks." if marks else "")
    return join(tag("h2", "Reward"), _figure(chart, 1000, 340), tag("p", note, class_="note"))


def _figure(chart: Chart, width: int, height: int) -> Html:
    names = [tag("span", series.name, class_=f"c{index % COLOURS}") for index, series in enumerate(chart.series)]
    legend = tag("div", *names, class_="legend") if len(names) > 1 else join()
    return join(legend, tag("div", svg_chart(chart, width, height), class_="figure"))


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
    return join(
        tag("h2", "Held-out tasks, before and after"),
        tag("table", *head, *(_row(row, ways) for row in rows)),
        tag("p", f"{errors} errored rollouts are left out of the means.", class_="note") if errors else join(),
    )


def _row(row: Comparison, ways: list[str]) -> Html:
    cells = []
    for way in ways:
        before, after = row.values[way]
        cells += [tag("td", number(before)), tag("td", number(after)), _change(before, after)]
    kind = "metric" if row.quantity != "reward" else "total" if row.environment == "mean" else None
    name = row.environment if row.quantity == "reward" else row.quantity.replace("_", " ")
    return tag("tr", tag("td", name), *cells, class_=kind)


def _change(before: float | None, after: float | None) -> Html:
    change = math.nan if before is None or after is None else after - before
    if not math.isfinite(change):
        return tag("td", "-")
    return tag("td", f"{change:+.3f}", class_="up" if change > 0 else "down" if change < 0 else None)


def _metrics(charts: list[Chart]) -> Html:
    if not charts:
        return join()
    figures = [tag("div", tag("h3", chart.title), _figure(chart, 400, 190)) for chart in charts]
    return join(tag("h2", "Training"), tag("div", *figures, class_="small"))


def _pairs(pairs: list[Pair]) -> Html:
    if not pairs:
        return join()
    parts: list[Html] = [tag("h2", "The same held-out task, before and after training")]
    for pair in pairs:
        task = f"task {pair.before.get('example_id')}, {pair.sampling}: {pair.why}"
        parts += [
            tag("h3", f"{pair.environment}, {task}"),
            tag("div", _messages(pair.before.get("prompt")), _expected(pair.before), class_="task"),
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
            tag("div", _messages(group.best.get("prompt")), _expected(group.best), class_="task"),
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
        _messages(row.get("completion")),
        class_="rollout",
    )


def _expected(row: Mapping[str, Any]) -> Html:
    answer = row.get("answer")
    return join(tag("p", "expected", class_="role"), tag("pre", _cut(str(answer)))) if answer else join()


def _messages(value: Any) -> Html:
    if isinstance(value, str):
        return tag("div", tag("pre", _cut(value)), class_="other")
    return join(*_each_message(value or ()))


def _each_message(messages: Iterable[Any]) -> Iterable[Html]:
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        role = str(message.get("role", ""))
        calls = "".join(f"\n{call_text(call)}" for call in message.get("tool_calls") or ())
        thought = message.get("reasoning_content")
        said = content_text(message.get("content")) + calls
        yield tag(
            "div",
            tag("p", {"assistant": "model"}.get(role, role), class_="role"),
            tag("pre", _cut(f"(thinking) {thought}\n{said}" if thought else said).strip("\n")),
            class_="assistant" if role == "assistant" else "other",
        )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… ({len(text) - MOST_TEXT:,} more characters)"
