"""`report.html`: a run on one page, made from the files of the run alone, and `reward.png` in the same directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path


def write_report(run_directory: Path) -> Path:
    """Write `report.html` and `reward.png` and return the path of the first. `RunError` where there is no run."""
    # The doctor reads runs by this package, and servers import its figures alone.
    from whet.display.page.rendering import document
    from whet.records.directory import write_page
    from whet.rl.doctor import diagnose, read_record
    from whet.rl.report.page import TEMPLATE, values, write_png

    record = read_record(run_directory, verify=False)
    run = record.data
    figures = run.figures()
    page = document(TEMPLATE, run.name, values(run, figures, diagnose(record)), curves=bool(figures))
    path = write_page(run_directory, page)
    reward = next((figure.chart for figure in figures if figure.title == "Reward"), None)
    if reward is not None:
        write_png(replace(reward, title=f"{run.name}: reward while training"), run_directory / "reward.png")
    return path
