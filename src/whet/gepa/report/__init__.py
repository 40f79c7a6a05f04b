"""`report.html`: a search on one page, in one file, made from its directory alone."""

from __future__ import annotations

from pathlib import Path

from whet.display.page.rendering import document
from whet.gepa.records.stored import open_search
from whet.gepa.report.data import read_report
from whet.gepa.report.page import TEMPLATE, values
from whet.records.report import write_page


def write_report(directory: Path) -> Path:
    """Write `report.html` into the directory of a search and return its path.

    A search that has not ended is reported as far as it came; however many its calls, the page is a few megabytes.
    Raises `RunError` where there is no search, and for a file of it that is damaged.
    """
    search = open_search(directory)
    return write_page(search.directory, document(TEMPLATE, search.title, values(read_report(search))))
