"""`whet eval`: models on environments' held-out tasks, and what is done with the results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from whet.cli.options import config_options, spell_out
from whet.cli.output import (
    JsonOption,
    Verbose,
    answer,
    extra,
    json_object,
    model_extras,
    print_json,
    print_result,
    set_verbosity,
)
from whet.cli.service.submit import Choices, VariableOption, submit_packed, with_choices
from whet.cli.sharing.common import login_as_key
from whet.config import options_of
from whet.evals.config import EvalConfig

if TYPE_CHECKING:
    from whet.evals.analysis.summary import EvalSummary
    from whet.service.answers import ServiceAnswer
    from whet.service.client.packed import Packed

OUTPUT_DIRECTORY: Path = EvalConfig.model_fields["output_directory"].default

app = typer.Typer(rich_markup_mode=None)


class RunCommand(TyperCommand):
    """`--shuffle` and `--resume` may come without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spell_out(args))


@app.command("run", cls=RunCommand)
@config_options(options_of(EvalConfig, without=("environment",)))
def run(
    environments: Annotated[
        list[str], typer.Argument(metavar="ENV", help="Environments (names or paths), or config files (*.toml).")
    ],
    given: dict[str, Any],
    verbose: Verbose = 0,
    json_output: JsonOption = False,
) -> None:
    """Evaluate models on held-out tasks, print the scores, and save every rollout.

    An environment may have defaults of its own for -n, -r, -t and -T: [tool.whet.eval] in its pyproject.toml. A config
    file has several evaluations, each option by its long name; what the command line says goes over it.

    \b
    Examples:
      whet eval run reverse-text
      whet eval run arithmetic -m runs/quickstart/model -n 64 -r 4
      whet eval run reverse-text -a '{"max_length": 9}' -T 0
      whet eval run calculator -m my-model -b http://localhost:8000/v1 -k MY_KEY
      whet eval run calculator -m whet/tiny:mine -b URL -k WHET_HUB_TOKEN      # a deployment, with your login
      whet eval run calculator -m mini        # a short name of configs/endpoints.toml
      whet eval run arithmetic reverse-text   # several, one after the other
      whet eval run configs/eval/sweep.toml -n 50
      whet eval run arithmetic -n 500 --resume        # continue the newest
    """
    set_verbosity(verbose)
    summaries = _evaluate(environments, given, json_output)
    if json_output:
        from whet.evals.analysis.summary import suites

        one = len(summaries) == 1
        print_json(summaries[0] if one else {"evaluations": summaries, "overall": suites(summaries)})
    else:
        from whet.evals.printing import print_summaries

        print_summaries(summaries)
    if any(summary.reward is None for summary in summaries):  # every rollout of one failed
        raise typer.Exit(1)


@app.command("submit", cls=RunCommand)
@config_options(options_of(EvalConfig, without=("environment", "save", "output_directory", "resume")))
@with_choices
def submit(
    environments: Annotated[
        list[str], typer.Argument(metavar="ENV", help="Environments (names or folders), or config files (*.toml).")
    ],
    given: dict[str, Any],
    choices: Choices,
    name: Annotated[str | None, typer.Option(help="Name of the evaluation.")] = None,
    env_var: VariableOption = None,
) -> None:
    """Queue an evaluation on the service, with the options of `whet eval run`.

    \b
    Examples:
      whet eval submit reverse-text -n 64
      whet eval submit ann/word-game@0.1.0 -m runs/first/model -r 4
      whet eval submit configs/eval/several.toml -y
    """
    with extra("train", "submitting an evaluation"):
        from whet.service.client.evaluating import pack_evaluations
        from whet.service.client.packed import secrets_of

        secrets = secrets_of([Path(one) for one in given.get("env_file", [])], env_var or [])

        def pack(service: ServiceAnswer, url: str) -> Packed:
            return pack_evaluations(environments, given, name, service, url, secrets)

        submit_packed(pack, secrets, choices)


@app.command("list")
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
    from whet.evals.printing import print_heads

    answer({"evaluations": heads}, json_output, lambda: print_heads(heads))


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    json_output: JsonOption = False,
) -> None:
    """Print the summary of a saved evaluation: rewards, metrics, errors, readiness, best and worst rollout.

    \b
    Examples:
      whet eval show outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    from whet.evals.stored.stored import open_stored

    summary = open_stored(path).summary()
    from whet.evals.printing import print_summary

    answer(summary, json_output, lambda: print_summary(summary))


@app.command("compare")
def compare_evaluations(
    before: Annotated[Path, typer.Argument(metavar="A", help="An evaluation: its directory or results file.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another of the same tasks.")],
    top: Annotated[int, typer.Option(min=0, help="Tasks to show that got worse, and that got better.")] = 5,
    json_output: JsonOption = False,
) -> None:
    """Compare two evaluations task by task: the difference, its confidence interval, and the tasks that changed most.

    \b
    Examples:
      whet eval compare outputs/evals/a outputs/evals/b
      whet eval compare outputs/evals/a outputs/evals/b --top 20
    """
    from whet.evals.analysis.compare import compare
    from whet.evals.stored.stored import open_stored

    first, second = open_stored(before), open_stored(after)
    comparison = compare(first.rows(), second.rows())
    differences = first.environment_differences(second)
    from whet.evals.printing import print_comparison

    answer(
        {**dataclasses.asdict(comparison), "environment_differences": differences},
        json_output,
        lambda: print_comparison(comparison, f"{first.name} ({before})", f"{second.name} ({after})", top, differences),
    )


@app.command("rescore")
def rescore_evaluation(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    environment: Annotated[
        str | None, typer.Option("--env", help="Id or path of the environment, if not the one it had.", metavar="ENV")
    ] = None,
    env_args: Annotated[
        str | None,
        typer.Option("--env-args", "-a", help="Arguments of load_environment, if not those it had.", metavar="JSON"),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Changed rewards to show.")] = 10,
    json_output: JsonOption = False,
) -> None:
    """Score the saved rollouts again with the rubric that the environment has today, and say which rewards changed.

    This writes a new evaluation beside the old one, which stays. The evaluated model is not called, judges are.
    Exit code 1 if no rollout could be scored. A reward that reads what results do not keep fails its rollout by name.

    \b
    Examples:
      whet eval rescore outputs/evals/reverse-text--whet--tiny/1f2e3d4c
      whet eval rescore outputs/evals/a --env ./environments/word_game --top 50
    """
    from whet.evals.printing import print_rescored
    from whet.evals.stored.rescore import rescore

    result = rescore(path, environment, None if env_args is None else json_object("--env-args", env_args))
    answer(result.as_dict(), json_output, lambda: print_rescored(result, top), ok=bool(result.scored))


@app.command("report")
def report(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    json_output: JsonOption = False,
) -> None:
    """Write report.html into an evaluation's directory: distributions, readiness, failures, samples, every task.

    An evaluation that has ended has one already; this writes it again, or for one that has not.

    \b
    Examples:
      whet eval report outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    from whet.evals.report import write_report

    print_result({"report": str(write_report(path))}, json_output)


@app.command("export")
def export(
    path: Annotated[Path, typer.Argument(help="Directory of an evaluation, or its results file.")],
    format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="csv, parquet, hf (for datasets.load_from_disk), or sft.", metavar="FORMAT"
        ),
    ] = "csv",
    to: Annotated[
        Path | None, typer.Option("--to", help="File or, for hf, directory to write; next to the results if absent.")
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", help="sft: rollouts with at least this reward.")
    ] = None,
    best_per_example: Annotated[
        int | None, typer.Option("--best-per-example", min=1, help="sft: so many of each task, by their rewards.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Write an evaluation's rollouts as a table (CSV, Parquet, a Hugging Face dataset), or the good ones to imitate.

    Parquet and datasets need: pip install 'whet[datasets]'. In CSV, text that a spreadsheet would run as a formula
    begins with a ' there. sft is JSON lines of conversations, for `whet train sft` and other trainers.

    \b
    Examples:
      whet eval export outputs/evals/reverse-text--whet--tiny/1f2e3d4c
      whet eval export outputs/evals/reverse-text--whet--tiny/1f2e3d4c --format parquet --to rollouts.parquet
      whet eval export tries --format sft --best-per-example 1 --to best.jsonl
    """
    from whet.evals.stored.export import export as write

    exported = write(path, format, to, overwrite=overwrite, min_reward=min_reward, best_per_example=best_per_example)
    said: dict[str, Any] = {"rollouts": exported.rollouts, "saved": str(exported.path)}
    print_result(said | ({"left out": dict(exported.left_out)} if exported.left_out else {}), json_output)


def _evaluate(targets: Sequence[str], given: dict[str, Any], json_output: bool) -> list[EvalSummary]:
    from whet.evals.planning.plan import plan_evals
    from whet.system.env_files import load_env_files
    from whet.system.offline import go_offline

    configs = plan_evals(targets, given, note=lambda line: print(line, file=sys.stderr, flush=True))
    if any(config.offline for config in configs):
        go_offline()
    for config in configs:
        load_env_files(config.env_file)
    login_as_key(configs)
    with model_extras(local=[config.local for config in configs]):
        from whet.evals.live.view import open_view
        from whet.evals.sessions.session import EvaluationsInterrupted, run_evals

        try:
            return run_evals(configs, open_view(quiet=json_output))
        except EvaluationsInterrupted as interrupted:
            print(interrupted, file=sys.stderr, flush=True)
            raise typer.Exit(interrupted.exit_code) from None
