"""`whet doctor`: problems of a run, or of what an evaluation says about training, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli.output import JsonOption, extra, print_json
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from rich.text import Text

    from whet.rl.doctor import Diagnosis, DoctorFinding

STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
FEW_STEPS = 5


def doctor_command(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run: its directory or name; or a saved evaluation's directory.")
    ],
    json_output: JsonOption = False,
) -> None:
    """Diagnose a run: problems with their evidence and the change to make, most urgent first.

    The run may be running, dead or finished. For an evaluation it reports whether training would improve the model.
    Exit code: 0 when nothing keeps the run from learning (there may be warnings), 1 when something does, 2 when there
    is no such run.

    \b
    Examples:
      whet doctor runs/my-run
      whet doctor my-run --json
      whet doctor outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    with extra("train", "the doctor"):
        from whet.rl.doctor import examine

        diagnosis = examine(path)
    if json_output:
        print_json(diagnosis)
    else:
        _print(diagnosis)
    if diagnosis.ill:
        raise typer.Exit(1)


def _print(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    from whet.system.console import SafeConsole

    console = SafeConsole(highlight=False)
    unit = "step" if diagnosis.what == "run" else "rollouts:"
    console.print(Text(safe_text(f"{diagnosis.path}: {diagnosis.state}, {unit} {diagnosis.step}")), soft_wrap=True)
    for finding in diagnosis.findings:
        console.print()
        for text in _lines(finding):
            console.print(text, soft_wrap=True)
    if not diagnosis.findings:
        few = diagnosis.what == "run" and diagnosis.step < FEW_STEPS
        why = f" yet: most rules look at {FEW_STEPS} steps or more" if few else ""
        console.print(f"nothing is wrong{why}")


def _lines(finding: DoctorFinding) -> list[Text]:
    from rich.text import Text

    head = Text(f"{finding.severity:<8} ", style=STYLES[finding.severity])
    head.append(safe_text(finding.what, 400), style="bold")
    head.append(f"  [{finding.rule}]", style="dim")
    evidence = [Text(f"         {safe_text(line, 600)}") for line in finding.evidence]
    return [head, *evidence, *(Text(f"       > {safe_text(change.text, 600)}") for change in finding.changes)]
