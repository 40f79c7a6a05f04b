"""`report.html`: an evaluation on one page, in one file, made from its directory alone."""

from __future__ import annotations

from pathlib import Path

from whet.display.page.rendering import document
from whet.evals.report.data import read_report
from whet.evals.report.page import TEMPLATE, title_of, values
from whet.evals.stored.streaming import find_results
from whet.records.directory import write_page


def write_report(directory: Path) -> Path:
    """Write `report.html` into the evaluation's directory and return its path.

    However large the evaluation, memory stays small and the page a few megabytes: rows are read one at a time, and a
    few are shown. An evaluation that has not ended is reported as far as it came. Raises `RunError` where there is
    none, and for a row that cannot be read.
    """
    directory = find_results(directory)
    data = read_report(directory)
    return write_page(directory, document(TEMPLATE, title_of(data), values(data)))
