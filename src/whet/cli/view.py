"""`whet view`: rollouts of evaluations and of training, in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from whet.errors import RunError


def view_command(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="Directory of an evaluation or of a run, its results file, or a folder with many of them.",
            show_default="outputs/evals and runs",
        ),
    ] = None,
) -> None:
    """Look at rollouts: a list to narrow, sort and search, each conversation, a group side by side, the tokens.

    \b
    Examples:
      whet view
      whet view outputs/evals/reverse-text--whet--tiny/1f2e3d4c
      whet view runs/quickstart
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunError("whet view needs a terminal. Use `whet eval list` and `whet eval show PATH` without one.")
    from whet.viewer.app import view

    code = view(path)
    if code:
        raise typer.Exit(code)
