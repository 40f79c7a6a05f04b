"""`whet eval list`, `show`, `compare`, `report` and `export`: evaluations that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import JsonOption, print_json, print_result
from whet.evals.config import EvalConfig

OUTPUT_DIRECTORY: Path = EvalConfig.model_fields["output_directory"].default


def list_evaluations(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = OUTPUT_DIRECTORY,
    json_output: JsonOption = False,
) -> None:
    """List the evaluations that were saved, newest first.

    \b
    Examples:
      whet eval list
      whet eval list runs --json
    """
    from whet.evals.stored.stored import list_stored

    heads = list_stored(folder)
    if json_output:
        print_json({"evaluations": heads})
        return
    from whet.evals.printing import print_heads

    print_heads(heads)


def show(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    json_output: JsonOption = False,
) -> None:
    """Say again what an evaluation found: rewards, metrics, errors, readiness, best and worst rollout.

    \b
    Examples:
      whet eval show outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    from whet.evals.stored.stored import open_stored

    summary = open_stored(path).summary()
    if json_output:
        print_json(summary)
        return
    from whet.evals.printing import print_summary

    print_summary(summary)


def compare_evaluations(
    before: Annotated[Path, typer.Argument(metavar="A", help="An evaluation: its directory or results file.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another of the same tasks.")],
    top: Annotated[int, typer.Option(min=0, help="Tasks to show that got worse, and that got better.")] = 5,
    json_output: JsonOption = False,
) -> None:
    """Compare two evaluations task by task: by how much they differ, how sure that is, and which tasks changed most.

    \b
    Examples:
      whet eval compare outputs/evals/a outputs/evals/b
      whet eval compare outputs/evals/a outputs/evals/b --top 20
    """
    from whet.evals.analysis.compare import compare
    from whet.evals.stored.stored import open_stored

    first, second = open_stored(before), open_stored(after)
    comparison = compare(first.rows(), second.rows())
    if json_output:
        print_json(comparison)
        return
    from whet.evals.printing import print_comparison

    print_comparison(comparison, f"{first.name} ({before})", f"{second.name} ({after})", top)


def report(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    json_output: JsonOption = False,
) -> None:
    """Write report.html into an evaluation's directory: distributions, readiness, failures, samples, every task.

    An evaluation that ended has one already; this writes it again, or for one that did not end.

    \b
    Examples:
      whet eval report outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    from whet.evals.report import write_report

    print_result({"report": str(write_report(path))}, json_output)


def export(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="csv, parquet, or hf (for datasets.load_from_disk).", metavar="FORMAT"),
    ] = "csv",
    to: Annotated[
        Path | None, typer.Option("--to", help="File or, for hf, directory to write; beside the results if absent.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Write an evaluation's rollouts as one table: CSV, Parquet, or a Hugging Face dataset.

    Parquet and datasets need: pip install 'whet[datasets]'. In CSV, text that a spreadsheet would run as a formula
    begins with a ' there.

    \b
    Examples:
      whet eval export outputs/evals/reverse-text--whet--tiny/1f2e3d4c
      whet eval export outputs/evals/reverse-text--whet--tiny/1f2e3d4c --format parquet --to rollouts.parquet
    """
    from whet.evals.stored.export import export as write

    exported = write(path, format, to, overwrite=overwrite)
    print_result({"rollouts": exported.rollouts, "saved": str(exported.path)}, json_output)
