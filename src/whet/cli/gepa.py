"""`whet gepa`: better prompts for a model that stays as it is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import gepa_stored
from whet.cli.config_options import config_options
from whet.cli.output import JsonOption, console, extra, print_json
from whet.gepa.config import OPTIONS

if TYPE_CHECKING:
    from whet.gepa.outcome import SearchOutcome

app = typer.Typer(rich_markup_mode=None)
app.command("list")(gepa_stored.list_searches)
app.command("show")(gepa_stored.show)
app.command("report")(gepa_stored.report)


@app.callback()
def _gepa() -> None:
    """A group even while it has a single command."""


@app.command("run")
@config_options(OPTIONS)
def run(
    target: Annotated[
        str | None, typer.Argument(metavar="ENV", help="Environment (name or path), or a config file (*.toml).")
    ] = None,
    *,
    given: dict[str, Any],
    resume: Annotated[
        Path | None, typer.Option("--resume", "-R", help="Run to continue: its directory.", metavar="RUN")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines, also in a terminal.")] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log more, on standard error; -vv logs everything.")
    ] = 0,
    json_output: JsonOption = False,
) -> None:
    """Find a better system prompt for an environment, within a budget of rollouts that is kept.

    A reflection model reads rollouts and proposes; what it proposes is accepted on paired evidence, and the best is
    compared with the first prompt on tasks that the search has never seen.

    \b
    Examples:
      whet gepa run wordle -m mini -M large -B 500
      whet gepa run wordle -m mini --dry-run          # what the budget affords
      whet gepa run configs/gepa/gsm8k.toml --max-cost 2
      whet gepa run calculator -m mini --components system_prompt,tools
      whet gepa run --resume runs/gepa-wordle -B 800  # continue, with more calls
    """
    if verbose:
        from whet.system.logs import setup_logging

        setup_logging("INFO" if verbose == 1 else "DEBUG")
    outcome = _search(target, given, resume, dry_run, plain or json_output)
    if json_output:
        print_json(outcome)
    else:
        from whet.display.columns import print_labelled
        from whet.gepa.outcome import lines

        print_labelled(lines(outcome), console(), copied=("evaluate it", "report", "continue with"))
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _search(
    target: str | None, given: dict[str, Any], resume: Path | None, dry_run: bool, plain: bool
) -> SearchOutcome:
    from whet.gepa.options import load_config, load_resumed

    config = load_config(target, given) if resume is None else load_resumed(resume, target, given)
    policy, reflector = config.policy(), config.reflector()
    with ExitStack() as stack:
        stack.enter_context(extra("gepa", "whet gepa"))
        if policy.local or reflector.local:
            stack.enter_context(extra("train", "running a model here"))
        if not (policy.local and reflector.local):
            stack.enter_context(extra("openai", "a model behind an endpoint"))
        from whet.gepa.live import make_observer
        from whet.gepa.run import run_search

        labels = ", ".join(env.label for env in config.env)
        observer = make_observer(plain, title=f"{labels} with {config.model}")
        return run_search(config, observer, resume=resume is not None, dry_run=dry_run)
