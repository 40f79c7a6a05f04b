"""The report of a training run, from the run's data: values of `training.html`, and `reward.png`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.display.chart import Chart, Plot, smoothed
from whet.errors import MissingExtraError
from whet.records.directory import RUN_CONFIG
from whet.records.rollout_text import EXCERPT, conversation
from whet.rl.doctor.record import DoctorFinding
from whet.rl.monitors.progress import compare
from whet.rl.report.data import Figure, RunData
from whet.rl.storage.run_directory import evaluation_path, step_path
from whet.system.files import read_lines, write_whole
from whet.system.terminal import safe_text

TEMPLATE = "training.html"


def values(run: RunData, figures: Sequence[Figure], findings: Sequence[DoctorFinding] = ()) -> dict[str, Any]:
    """What the template needs."""
    before, after = run.evaluation("before"), run.evaluation("after")
    ways, rows = compare(before, after)
    rollouts = run.directory / "rollouts"
    seconds = run.total("time/step")
    tokens = sum((row.get("perf/tokens_per_s") or 0) * (row.get("time/step") or 0) for row in run.metrics)
    return {
        "run": run,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "findings": [one.view for one in findings],
        "figures": figures,
        "curves": _curves(figures),
        "ways": ways,
        "comparison": rows,
        "rewards": [row for row in rows if row.quantity == "reward" and not row.member],
        "errors": sum(score.errors for report in (before, after) if report for score in report.scores),
        "pairs": before_and_after(rollouts),
        "trained": trained_samples(rollouts, [int(row["step"]) for row in run.metrics]),
        "messages_of": lambda row, part: conversation(row, part, EXCERPT),
        "config_text": (run.directory / RUN_CONFIG).read_text(encoding="utf-8"),
    }


def _curves(figures: Sequence[Figure]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The data of the figures, for the script of the page: points and held-out scores by metric."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {"series": {}, "marks": {}}
    for figure in figures:
        for name, line in zip(figure.names, figure.chart.series if figure.chart else (), strict=True):
            for kind, points in (("series", line.points), ("marks", line.marks)):
                if points:
                    curves[kind][name] = [(round(x, 1), float(f"{y:.5g}")) for x, y in points]
    return curves


# Which rollouts a report shows. Pure choices, the same for the same files; an honest mix, not only the best.

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One held-out task under the policy before and after training, sampled in the same way."""

    why: str  # how the pair was chosen
    environment: str
    sampling: str
    before: Row
    after: Row


def before_and_after(directory: Path) -> list[Pair]:
    """For every environment: the task that gained most (if one gained), a typical one, and the one that lost most."""
    before, after = (evaluation_path(directory, moment, 0) for moment in ("before", "after"))
    if not (before.is_file() and after.is_file()):
        return []
    return pair_up(read_lines(before), read_lines(after))


def pair_up(before: Iterable[Row], after: Iterable[Row]) -> list[Pair]:
    """Rollouts of the same task, sampling and position in their group; sampled rather than greedy where both are."""
    first, second = _keyed(before), _keyed(after)
    common = [key for key in first if key in second]
    pairs: list[Pair] = []
    for environment in dict.fromkeys(key[0] for key in common):
        keys = [key for key in common if key[0] == environment]
        sampled = [key for key in keys if key[1] != "greedy"] or keys
        ordered = sorted(sampled, key=lambda key: second[key]["reward"] - first[key]["reward"])
        gain, loss = (second[key]["reward"] - first[key]["reward"] for key in (ordered[-1], ordered[0]))
        chosen = {"the largest gain": ordered[-1]} if gain > 0 else {}
        chosen["a typical task"] = ordered[len(ordered) // 2]
        if loss < 0:
            chosen["the largest loss"] = ordered[0]
        shown = set()
        for why, key in chosen.items():
            if key not in shown:
                shown.add(key)
                pairs.append(Pair(why, environment, key[1], first[key], second[key]))
    return pairs


def _keyed(rows: Iterable[Row]) -> dict[tuple[str, str, str, int], Row]:
    """By environment, sampling, task and position in the group; without rollouts that failed."""
    keyed: dict[tuple[str, str, str, int], Row] = {}
    positions: dict[tuple[str, str, str], int] = {}
    for row in rows:
        task = (str(row.get("environment")), str(row.get("sampling")), str(row.get("example_id")))
        positions[task] = position = positions.get(task, -1) + 1
        if row.get("error") is None and row.get("reward") is not None:
            keyed[(*task, position)] = row
    return keyed


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """Two rollouts of one task of one trained step, as far apart in advantage as the group goes."""

    step: int
    environment: str
    best: Row
    worst: Row


def trained_samples(directory: Path, steps: Sequence[int], per_step: int = 3) -> list[TrainedGroup]:
    """From the first, the middle and the last step: of each environment the group whose rewards differ most."""
    if not steps:
        return []
    shown = dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]))
    groups = []
    for step in shown:
        path = step_path(directory, step)
        if path.is_file():
            groups += _widest_groups(step, read_lines(path))[:per_step]
    return groups


def _widest_groups(step: int, rows: Iterable[Row]) -> list[TrainedGroup]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("advantage") is not None:
            groups.setdefault((str(row.get("environment")), str(row.get("group"))), []).append(row)
    widest: dict[str, TrainedGroup] = {}
    for (environment, _), group in groups.items():
        ordered = sorted(group, key=lambda row: -float(row["advantage"]))
        one = TrainedGroup(step, environment, ordered[0], ordered[-1])
        if environment not in widest or _width(one) > _width(widest[environment]):
            widest[environment] = one
    return list(widest.values())


def _width(group: TrainedGroup) -> float:
    return float(group.best["advantage"]) - float(group.worst["advantage"])


# `reward.png`: the reward curve as a picture, for a README or a message. Drawn with Pillow, whose own font is used, so
# that it looks the same everywhere.

WIDTH, HEIGHT = 1200, 675
SHARPNESS = 2  # drawn this much larger and scaled down, since Pillow does not smooth lines
INK, FAINT, GRID, PAPER = (31, 35, 40), (101, 109, 118), (225, 228, 232), (255, 255, 255)
PALETTE = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (120, 94, 240))
"""Okabe and Ito's colours, which people who see fewer colours can tell apart."""


def write_png(chart: Chart, path: Path) -> None:
    """Draw `chart` and replace `path`."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing reward.png", "train") from error
    scale = SHARPNESS
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), PAPER)
    draw = ImageDraw.Draw(image)
    title, label = ImageFont.load_default(26 * scale), ImageFont.load_default(19 * scale)
    left, top = 80 * scale, 120 * scale
    width, height = WIDTH * scale - left - 30 * scale, HEIGHT * scale - top - 60 * scale
    x_axis, y_axis = chart.axes()
    position = Plot(x_axis, y_axis, left, top, width, height).position
    draw.text((left, 26 * scale), chart.title, INK, font=title)
    for tick in y_axis.ticks:
        _, y = position((x_axis.low, tick))
        draw.line([(left, y), (left + width, y)], GRID, width=scale)
        draw.text((left - 10 * scale, y), y_axis.label(tick), FAINT, font=label, anchor="rm")
    for tick in x_axis.ticks:
        x, _ = position((tick, y_axis.low))
        draw.text((x, top + height + 10 * scale), f"{tick:g}", FAINT, font=label, anchor="ma")
    draw.text((left + width, HEIGHT * scale - 8 * scale), chart.x_label, FAINT, font=label, anchor="rs")
    for index, series in enumerate(chart.series):
        colour = PALETTE[index % len(PALETTE)]
        if len(series.points) >= 20:
            faint = tuple(round(0.3 * ink + 0.7 * paper) for ink, paper in zip(colour, PAPER, strict=True))
            draw.line([position(point) for point in series.points], faint, width=2 * scale, joint="curve")
        if len(series.points) > 1:
            draw.line([position(point) for point in smoothed(series.points)], colour, width=4 * scale, joint="curve")
        for mark in series.marks:
            x, y = position(mark)
            reach = 7 * scale
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=PAPER, outline=colour, width=3 * scale)
    x, y = float(left), 80.0 * scale
    for index, series in enumerate(chart.series):
        name = safe_text(series.name, 40)
        length = draw.textlength(name, font=label) + 56 * scale
        if x + length > left + width:
            x, y = float(left), y + 24 * scale
        draw.rectangle((x, y - 3 * scale, x + 22 * scale, y + 3 * scale), fill=PALETTE[index % len(PALETTE)])
        draw.text((x + 30 * scale, y), name, INK, font=label, anchor="lm")
        x += length
    png = io.BytesIO()
    image.reduce(scale).save(png, format="PNG", optimize=True)
    write_whole(path, png.getvalue(), durable=False)
