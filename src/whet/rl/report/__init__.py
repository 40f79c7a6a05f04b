"""`report.html`: a run on one page, made from the files of the run alone, and `reward.png` in the same directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from whet.rl.report.page import page
from whet.rl.report.png import write_png
from whet.runs.report import write_page


def write_report(run_directory: Path) -> Path:
    """Write `report.html` and `reward.png` and return the path of the first. `RunError` where there is no run."""
    from whet.rl.doctor import diagnose  # which reads runs by this package
    from whet.rl.doctor.reading import read_record

    record = read_record(run_directory, verify=False)
    run = record.data
    path = write_page(run_directory, page(run, diagnose(record)))
    chart = run.reward_chart()
    if not chart.empty:
        write_png(replace(chart, title=f"{run.name}: reward while training"), run_directory / "reward.png")
    return path
