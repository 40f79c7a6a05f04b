"""`whet gepa`: prompt optimisation."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.options import config_options
from whet.cli.output import (
    JsonOption,
    Verbose,
    answer,
    console,
    extra,
    model_extras,
    print_json,
    print_result,
    set_verbosity,
)
from whet.cli.service.submit import Choices, VariableOption, submit_packed, with_choices
from whet.cli.sharing.common import login_as_key
from whet.gepa.config import OPTIONS

if TYPE_CHECKING:
    from whet.gepa.types import SearchOutcome

Run = Annotated[str, typer.Argument(metavar="RUN", help="A search's directory, or its name below runs/.")]

app = typer.Typer(rich_markup_mode=None)


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
    verbose: Verbose = 0,
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
    set_verbosity(verbose)
    outcome = _search(target, given, resume, dry_run, plain or json_output)
    if json_output:
        print_json(outcome)
    elif outcome.state == "planned":
        for line in (*outcome.plan, f"planned: {outcome.message}"):
            console().print(line, soft_wrap=not console().is_terminal)
    else:
        from whet.gepa.records.stored import open_search
        from whet.gepa.records.tables import print_result_of

        print_result_of(open_search(outcome.directory), console(), outcome.resume)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command("submit")
@config_options({name: field for name, field in OPTIONS.items() if name != "runs_directory"})
@with_choices
def submit(
    target: Annotated[str, typer.Argument(metavar="ENV", help="Environment (name or folder), or a config file.")],
    given: dict[str, Any],
    choices: Choices,
    env_var: VariableOption = None,
) -> None:
    """Queue a prompt search on the service, with the options of `whet gepa run`.

    \b
    Examples:
      whet gepa submit wordle -m mini -B 500 --env-var OPENAI_API_KEY
      whet gepa submit configs/gepa/gsm8k.toml --max-cost 2
    """
    with extra("train", "submitting a search"):
        from whet.gepa.options import load_config
        from whet.service.client.evaluating import pack_search
        from whet.service.client.packed import secrets_of

        config = load_config(target, given)
        secrets = secrets_of(config.env_file, env_var or [])
        submit_packed(lambda service, url: pack_search(config, service, url, secrets), secrets, choices)


@app.command("list")
def list_searches(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = Path("runs"),
    json_output: JsonOption = False,
) -> None:
    """List prompt searches, newest first. A search whose process ended before the search did is shown as died.

    \b
    Examples:
      whet gepa list
      whet gepa list elsewhere/runs --json
    """
    from whet.gepa.records.stored import find_searches
    from whet.gepa.records.tables import head, print_heads

    searches = find_searches(folder)
    answer({"searches": [head(one) for one in searches]}, json_output, lambda: print_heads(searches, console()))


@app.command("show")
def show(
    run: Run,
    candidate: Annotated[
        int | None,
        typer.Option("--candidate", "-n", min=0, help="Show the changes of this candidate; of the best if absent."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show the result of a search: whether its best prompt is better, every candidate, and the changes of one of them.

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


@app.command("report")
def report(run: Run, json_output: JsonOption = False) -> None:
    """Write report.html into a search's directory: lineage, scores over calls, prompts and what they changed.

    A search that has ended has one already; this writes it again, or for a running search.

    \b
    Examples:
      whet gepa report gepa-wordle
    """
    from whet.gepa.records.stored import open_search
    from whet.gepa.report import write_report

    print_result({"report": str(write_report(open_search(run).directory))}, json_output)


def _search(
    target: str | None, given: dict[str, Any], resume: Path | None, dry_run: bool, plain: bool
) -> SearchOutcome:
    from whet.gepa.options import load_config, load_resumed

    config = load_config(target, given) if resume is None else load_resumed(resume, target, given)
    policy, reflector = config.policy(), config.reflector()
    login_as_key([policy, reflector])
    models = nullcontext() if dry_run else model_extras(local=[policy.local, reflector.local])
    with extra("gepa", "whet gepa", first=None if dry_run else "gepa"), models:
        from whet.gepa.run import run_search
        from whet.gepa.view import open_view

        labels = ", ".join(env.label for env in config.env)
        observer = open_view(f"{labels} with {config.model}", plain=plain)
        return run_search(config, observer, resume=resume is not None, dry_run=dry_run)
