"""`whet gepa list`, `show` and `report`: searches that were started before."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import JsonOption, console, print_json, print_result

Run = Annotated[str, typer.Argument(metavar="RUN", help="A search's directory, or its name below runs/.")]


def list_searches(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = Path("runs"),
    json_output: JsonOption = False,
) -> None:
    """List searches for better prompts, newest first. One whose process is gone although it had not ended has died.

    \b
    Examples:
      whet gepa list
      whet gepa list elsewhere/runs --json
    """
    from whet.gepa.records.stored import find_searches
    from whet.gepa.records.tables import head, print_heads

    found = find_searches(folder)
    if json_output:
        print_json({"searches": [head(one) for one in found]})
    else:
        print_heads(found, console())


def show(
    run: Run,
    candidate: Annotated[
        int | None, typer.Option("--candidate", "-n", min=0, help="Show what this candidate changed; else the best.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Say what a search found: whether its best prompt is better, every candidate, and what one of them changed.

    \b
    Examples:
      whet gepa show gepa-wordle
      whet gepa show runs/gepa-wordle --candidate 3
    """
    from whet.gepa.records.stored import open_search
    from whet.gepa.records.tables import head, print_search

    search = open_search(run)
    if json_output:
        candidates = [dataclasses.asdict(one) for one in search.candidates]
        print_json({**head(search), "candidates": candidates})
    else:
        print_search(search, console(), candidate)


def report(run: Run, json_output: JsonOption = False) -> None:
    """Write report.html into a search's directory: lineage, scores over calls, prompts and what they changed.

    A search that ended has one already; this writes it again, or for one that is going on.

    \b
    Examples:
      whet gepa report gepa-wordle
    """
    from whet.gepa.records.stored import open_search
    from whet.gepa.report import write_report

    print_result({"report": str(write_report(open_search(run).directory))}, json_output)
