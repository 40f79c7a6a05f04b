"""Time to a mean reward: the quickstart's mix trained synchronously and asynchronously, one after the other.

    python benchmarks/asynchronous.py [--goal 0.8] [--rounds 3] [--picture docs/pictures/asynchronous.svg] [--json]

All are the real command with the same config and number of threads in all; the asynchronous ones, which sample half a
batch or a whole one ahead, divide them between engine and learner. The clock begins when everything is loaded and stops
when the mean reward of five steps reaches the goal. Each round has a seed of its own and runs every schedule once; the
ratio to the synchronous run is taken within a round. Best on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from whet.display.chart import Chart, Series
from whet.display.page.rendering import templates

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "rl" / "quickstart.toml"
WHET = Path(sys.executable).with_name("whet")
STEP = re.compile(r"step (\d+)/\d+\s+reward (-?[\d.]+)")
SCHEDULES = {
    "synchronous": ("--max_async_level", "0"),
    "half a batch ahead": ("--max_async_level", "1", "--oversampling_factor", "0.5"),
    "a batch ahead": ("--max_async_level", "1"),
}
STYLE = """<style>
svg { font: 12px sans-serif; background: white } .grid { stroke: #ddd } .axis { fill: #555 } .end { text-anchor: end }
path { fill: none } .raw { stroke-opacity: .25; stroke-width: 1 } .line { stroke-width: 2 }
.c0 { stroke: #1f77b4; fill: none } .c1 { stroke: #d62728; fill: none } .c2 { stroke: #2ca02c; fill: none }
</style>"""


class Reached(NamedTuple):
    """One step: seconds since training began, and the mean reward of its batch."""

    seconds: float
    reward: float


def train(options: Sequence[str], directory: Path) -> list[Reached]:
    command = [str(WHET), "train", "run", str(CONFIG), "--runs_directory", str(directory), "--name", "run"]
    command += ["--eval.before", "false", "--eval.after", "false", *options]
    curve: list[Reached] = []
    began = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("run: "):
                began = time.monotonic()
            elif found := STEP.match(line):
                assert began is not None
                curve.append(Reached(time.monotonic() - began, float(found[2])))
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return curve


def smoothed(curve: list[Reached], width: int = 5) -> list[Reached]:
    """Means over the last `width` steps."""
    return [
        Reached(curve[end - 1].seconds, statistics.fmean(step.reward for step in curve[end - width : end]))
        for end in range(width, len(curve) + 1)
    ]


def seconds_to(goal: float, curve: list[Reached]) -> float | None:
    return next((step.seconds for step in smoothed(curve) if step.reward >= goal), None)


def ratio_to(base: Sequence[float | None], times: Sequence[float | None]) -> float:
    """The median over rounds; a run that never got there has an infinite one."""
    ratios = [
        math.inf if mine is None else mine / (theirs or math.nan) for theirs, mine in zip(base, times, strict=True)
    ]
    return statistics.median(ratios)


def picture(curves: dict[str, list[Reached]]) -> str:
    lines = [Series.of(name, [s.seconds for s in curve], [s.reward for s in curve]) for name, curve in curves.items()]
    chart = Chart(title="mean reward", series=lines, x_label="seconds")
    names = "".join(
        f'<text x="{60 + 170 * at}" y="16" class="c{at}" style="stroke: none; fill: {colour}">{name}</text>'
        for at, (name, colour) in enumerate(zip(curves, ("#1f77b4", "#d62728", "#2ca02c"), strict=False))
    )
    svg = str(templates().get_template("drawings.html").module.lines(chart, 640, 320)).strip()  # type: ignore[attr-defined]
    return svg.replace(">", f' xmlns="http://www.w3.org/2000/svg">{STYLE}{names}', 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goal", type=float, default=0.8, help="mean reward to reach")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument("--picture", type=Path, help="write the curves of the last round to this file")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    options = parser.parse_args()
    found: dict[str, list[float | None]] = {name: [] for name in SCHEDULES}
    steps: dict[str, list[float]] = {name: [] for name in SCHEDULES}
    curves: dict[str, list[Reached]] = {}
    for seed in range(options.rounds):
        for name, schedule in SCHEDULES.items():
            with tempfile.TemporaryDirectory() as directory:
                same = ("--seed", str(seed), "--max_steps", str(options.steps))
                curves[name] = train([*schedule, *same], Path(directory))
            found[name].append(seconds_to(options.goal, curves[name]))
            steps[name].append(curves[name][-1].seconds / len(curves[name]))
    if not options.json:
        print(f"{'schedule':<24} {'s to ' + format(options.goal, 'g'):>24} {'ratio':>7} {'s a step':>10}")
        for name, times in found.items():
            texts = ", ".join("never" if seconds is None else f"{seconds:.1f}" for seconds in times)
            ratio = ratio_to(found["synchronous"], times)
            print(f"{name:<24} {texts:>24} {ratio:>7.2f} {statistics.median(steps[name]):>10.2f}")
    if options.picture is not None:
        options.picture.write_text(picture(curves), encoding="utf-8")
    print(json.dumps({"benchmark": "asynchronous", "goal": options.goal, "seconds": found, "seconds_a_step": steps}))


if __name__ == "__main__":
    main()
