"""`whet train list`, `show`, `metrics`, `rollouts`, `logs`, `compare`, `resume`, `stop`, `export`: runs that exist."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whet.cli.output import JsonOption, answer, console, extra, print_json, print_result
from whet.cli.service import runs
from whet.cli.service.common import AnyRun, NothingAsked, is_of_service, service_run, since_when
from whet.cli.service.runs import list_service_runs
from whet.cli.sharing.common import HubOption
from whet.errors import ConfigError
from whet.hub.client.settings import hub_is_set
from whet.records.stored import RUNS
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.rl.monitors.protocol import Outcome

Run = AnyRun
LocalRun = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name below runs/.")]
LONGEST_LINE = 10_000


def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = RUNS,
    service: Annotated[bool, typer.Option("--service", help="List runs of the service instead.")] = False,
    kind: Annotated[
        Literal["training", "sft", "evaluation", "search"] | None, typer.Option(help="Of the service: only these.")
    ] = None,
    state: Annotated[
        Literal["queued", "starting", "running", "finished", "failed", "stopped"] | None,
        typer.Option(help="Of the service: only those in this state."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Of the service: those of a user or an organisation.")] = None,
    search: Annotated[str | None, typer.Option(help="Of the service: a part of the name or the model.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Of the service: how many.")] = 50,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """List runs, newest first. A run whose process ended before the run did is shown as died.

    Where there is no runs/ and `whet login` knows a service, its runs are listed.

    \b
    Examples:
      whet train list
      whet train list elsewhere/runs --json
      whet train list --service --state running
    """
    elsewhere = folder == RUNS and not folder.exists() and hub_is_set()
    if service or hub or kind or state or owner or search or elsewhere:
        list_service_runs(
            kind=kind, state=state, owner=owner, search=search, count=count, hub=hub, json_output=json_output
        )
        return
    from whet.rl.stored.stored_run import find_runs
    from whet.rl.stored.views import heads, print_heads

    runs = heads(find_runs(folder))
    answer({"runs": runs}, json_output, lambda: print_heads(runs, console()))


def show(run: Run, json_output: JsonOption = False) -> None:
    """Show a run: state, config, curves, checkpoints (each is verified), held-out scores, diagnosis.

    \b
    Examples:
      whet train show quickstart
      whet train show runs/quickstart --json
    """
    if is_of_service(run):
        runs.get(run, None, json_output)
        return
    from whet.rl.stored.stored_run import open_run
    from whet.rl.stored.views import print_summary, summary

    stored = open_run(run)
    if json_output:
        print_json(summary(stored))
    else:
        print_summary(stored, console())


def metrics(
    run: Run,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Metrics; reward/ means all that begin with reward/."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Show every n-th step, and the last.")] = 1,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Print the metrics of a run: a line for each step, or (with more than six) a line for each metric with its curve.

    Of a run of the service at most 1,000 steps, thinned so that the lowest and the highest values stay.

    \b
    Examples:
      whet train metrics quickstart
      whet train metrics quickstart reward/mean policy/kl --every 10
      whet train metrics quickstart reward/ eval/ --csv > rewards.csv
    """
    from whet.rl.stored.compare import chosen, numbers_of
    from whet.rl.stored.stored_run import open_run
    from whet.rl.stored.views import print_metrics

    if as_csv and json_output:
        raise ConfigError("--csv and --json are two ways to print the same: choose one.")
    if is_of_service(run):
        from whet.service.client.following import metric_rows

        with service_run(run) as (service, shown):
            numbers = metric_rows(service, shown, names or [])
    else:
        numbers = numbers_of(open_run(run))
    columns, rows = chosen(numbers, names or [], every)
    if json_output:
        print_json({"metrics": [{name: row[name] for name in ("step", *columns) if name in row} for row in rows]})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["step", *map(safe_text, columns)])
        writer.writerows(
            [row["step"], *("" if row.get(name) is None else row[name] for name in columns)] for row in rows
        )
    else:
        print_metrics(columns, rows, console())


def rollouts(
    run: Run,
    step: Annotated[
        int | None, typer.Option("--step", "-s", min=1, help="Step they were trained in; the newest if absent.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Only rollouts of this environment.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The highest rewards first.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="The lowest rewards first.")] = False,
    errored: Annotated[bool, typer.Option("--errored", help="Only those that failed.")] = False,
    count: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 3,
    json_output: JsonOption = False,
) -> None:
    """Print rollouts of a training step. To browse all of them: whet view RUN.

    \b
    Examples:
      whet train rollouts quickstart
      whet train rollouts quickstart --step 20 --env calculator --worst -n 5
    """
    from whet.rl.stored.stored_run import open_run
    from whet.rl.stored.views import Choice, print_conversation, rollouts_of

    if best + worst + errored > 1:
        raise ConfigError("--best, --worst and --errored each choose rollouts: give one of them.")
    choice: Choice = "best" if best else "worst" if worst else "errored" if errored else "first"
    if is_of_service(run):
        from whet.service.client.following import step_rollouts

        with service_run(run) as (service, shown):
            of_step, rows = step_rollouts(service, shown, step=step, environment=env, choice=choice, count=count)
            browse = f"{service.url}/runs/{shown.id}/rollouts?step={of_step}"
    else:
        stored = open_run(run)
        of_step, rows = rollouts_of(stored.directory, step=step, environment=env, choice=choice, count=count)
        browse = f"whet view {stored.directory}"
    if json_output:
        print_json({"step": of_step, "rollouts": rows})
        return
    out = console()
    out.print(f"step {of_step}" + ("" if rows else ": no rollout like that"))
    for row in rows:
        out.print()
        print_conversation(row, out)
    out.print(f"\nall of them: {browse}", soft_wrap=True)


def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")] = False,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Only the last lines, so many.")] = None,
    search: Annotated[str | None, typer.Option(help="Only lines with this text, in any case.", metavar="TEXT")] = None,
    level: Annotated[
        Literal["info", "warning", "error"] | None, typer.Option(help="Only lines of this level, or worse.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only lines since then: 10m, 2h, 1d, or a time.")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Print the log of a run: its terminal output and every warning.

    \b
    Examples:
      whet train logs quickstart
      whet train logs quickstart -f
      whet train logs 1f2e3d4c5b6a7988 -n 50 --level warning --since 2h
    """
    if follow and json_output:
        raise ConfigError("--json is one answer and --follow has no end: leave one out.")
    moment = since_when(since)
    if hub is not None or is_of_service(run):
        from whet.service.client.following import log_lines

        with service_run(run, hub) as (service, shown):
            _print_lines(
                log_lines(service, shown, follow=follow, tail=count, search=search, level=level, since=moment),
                json_output,
            )
        return
    from whet.records.log import MOST_LINES, LogQuery, read_log
    from whet.rl.stored.stored_run import open_run

    query = LogQuery(
        limit=MOST_LINES if count is None else count,
        tail=count is not None,
        search=search or "",
        level=level.upper() if level else "",
        since=moment,
    )
    _print_lines(read_log(open_run(run).directory, query, follow=follow), json_output)


def _print_lines(lines: Iterable[str], json_output: bool) -> None:
    if json_output:
        print_json({"lines": list(lines)})
        return
    for line in lines:
        sys.stdout.write(safe_text(line, LONGEST_LINE) + "\n")
        sys.stdout.flush()


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run: its directory, or its name below runs/.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    json_output: JsonOption = False,
) -> None:
    """Compare two runs: differences of their configs, curves, held-out scores.

    \b
    Examples:
      whet train compare quickstart quickstart-2
    """
    from whet.rl.stored.compare import compare_runs
    from whet.rl.stored.stored_run import open_run
    from whet.rl.stored.views import print_comparison

    comparison = compare_runs(open_run(a), open_run(b))
    answer(comparison, json_output, lambda: print_comparison(comparison, console()))


def resume(
    context: typer.Context,
    run: LocalRun,
    step: Annotated[
        int | None, typer.Option(min=1, help="Resume from the checkpoint of this step; from the newest if absent.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Resume a run from its newest complete checkpoint, or from an earlier one.

    With --step, what the run did after that step is archived in its set_aside/. Keys that do not
    change the training itself (max_steps, eval, checkpointing, deployment, ...) may be changed, as --key value.

    \b
    Examples:
      whet train resume quickstart
      whet train resume quickstart --step 50
      whet train resume quickstart --max_steps 400
    """
    from whet.rl.stored.stored_run import open_run, resume_run

    stored = open_run(run)
    with extra("train", "training"):
        outcome = resume_run(stored.directory, step=step, overrides=context.args, json_output=json_output)
    finish(outcome, json_output)


def stop(
    run: Run,
    patience: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.", metavar="SECONDS")
    ] = 600.0,
    yes: NothingAsked = False,
    json_output: JsonOption = False,
) -> None:
    """Stop a running run after a checkpoint; wait, and report how it ended.

    \b
    Examples:
      whet train stop quickstart
    """
    if is_of_service(run):
        runs.stop_on_service(run, patience, json_output)
        return
    from whet.rl.stored.stored_run import open_run, stop_run

    stopped = stop_run(open_run(run), patience=patience)
    if json_output:
        print_json(stopped)
        return
    shown = {
        "run": str(stopped.run),
        "state": stopped.state,
        "what": stopped.message,
        "checkpoint": "none" if stopped.checkpoint is None else f"step {stopped.checkpoint}",
    }
    print_result({**shown, **({"continue": stopped.resume} if stopped.resume else {})}, False)


def export(
    run: LocalRun,
    step: Annotated[
        int | None, typer.Option(min=1, help="Of which checkpoint; the newest that is whole if absent.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help="peft, model, merged, or gguf; by default what was trained.", metavar="FORMAT"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Directory to write, or a .gguf file; in exports/ of the run if absent."),
    ] = None,
    metadata_from: Annotated[
        Path | None, typer.Option(help="GGUF file with the model's tokenizer; default: the one it was read from.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Write the weights of a checkpoint for other programs.

    peft is the adapter of a run with [lora], for peft and vLLM; merged is its whole model with the adapter added in;
    model is the whole model of a run that trained all weights, for transformers; gguf is either for llama.cpp: the
    adapter in float32, or the whole model in float16.

    \b
    Examples:
      whet train export quickstart
      whet train export my-lora --step 50 --format merged --to exports/my-model
      whet train export my-lora --format gguf
    """
    from whet.rl.stored.stored_run import open_run

    stored = open_run(run)
    with extra("train", "exporting weights"):
        from whet.rl.stored.export import export_run

        exported = export_run(stored, step=step, format=format, to=to, overwrite=overwrite, metadata_from=metadata_from)
    said = {"saved": str(exported.saved), "step": exported.step, "format": exported.format}
    print_result(said | ({"next": exported.next_command} if exported.next_command else {}), json_output)


def finish(outcome: Outcome, json_output: bool) -> None:
    """Print the outcome, and leave with its exit status: 0 finished, 130 interrupted, 1 failed."""
    if json_output:
        print_json(outcome)
    if outcome.state != "finished":
        raise typer.Exit(130 if outcome.state == "interrupted" else 1)
