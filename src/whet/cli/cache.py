"""`whet cache`: packages, agents and images that whet has installed or built, and makes again when they are needed."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.output import JsonOption, print_result
from whet.envs.sandboxed import packages

app = typer.Typer(rich_markup_mode=None)


def _print(folders: list[packages.CachedFolder], json_output: bool) -> None:
    rows = [
        {"folder": str(one.path), "MB": round(one.mb, 1), "unused days": round(one.unused_days, 1)} for one in folders
    ]
    print_result({"folders": rows, "MB": round(sum(one.mb for one in folders), 1)}, json_output)


@app.command("list")
def list_cache(json_output: JsonOption = False) -> None:
    """List packages for sandboxes, agents and images of Harbor's tasks: size, and days since a rollout used them.

    \b
    Examples:
      whet cache list
    """
    _print(packages.cached_folders(), json_output)


@app.command("prune")
def prune(
    unused_days: Annotated[float, typer.Option(min=0, help="Remove what was not used for so many days.")] = 30,
    json_output: JsonOption = False,
) -> None:
    """Remove what was not used for some time, and list it. A run that began before that may still need it.

    \b
    Examples:
      whet cache prune
      whet cache prune --unused-days 7
    """
    _print(packages.prune(unused_days), json_output)
