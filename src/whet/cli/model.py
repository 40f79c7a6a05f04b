"""`whet model`: the tiny model that ships with the package, and what is known of any model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import JsonOption, extra, print_result, progress_bar

app = typer.Typer(rich_markup_mode=None)


@app.command("build-tiny")
def build_tiny(
    out: Annotated[Path, typer.Option(help="Directory to write the model to.")] = Path("tiny"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of its data and its first weights.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Make whet/tiny from data that whet generates: the recipe of the model that ships with the package.

    Takes about 20 minutes on two cores.

    \b
    Examples:
      whet model build-tiny
      whet model build-tiny --out my-tiny --seed 1
    """
    with extra("train", "building a model"):
        from whet.models.build import build_tiny as build
        from whet.models.card import describe
    with progress_bar(quiet=json_output) as progress:
        build(out, seed=seed, progress=progress)
    print_result(describe(out), json_output)


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="whet/tiny, or a model's directory.")] = "whet/tiny",
    json_output: JsonOption = False,
) -> None:
    """Describe a model: architecture, size, tokenizer, and its card where it has one.

    \b
    Examples:
      whet model show
      whet model show runs/quickstart/model --json
    """
    with extra("train", "describing a model"):
        from whet.models.card import describe

        description = describe(model)
    print_result(description, json_output)
