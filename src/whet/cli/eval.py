"""`whet eval`: models on environments' held-out tasks. What is done with results later is in `eval_stored.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from whet.cli import eval_stored
from whet.cli.config_options import config_options
from whet.cli.optional_values import spell_out
from whet.cli.output import JsonOption, extra, print_json
from whet.config import options_of
from whet.evals.config import EvalConfig

if TYPE_CHECKING:
    from whet.evals.analysis.summary import EvalSummary

app = typer.Typer(rich_markup_mode=None)
app.command("list")(eval_stored.list_evaluations)
app.command("show")(eval_stored.show)
app.command("compare")(eval_stored.compare_evaluations)
app.command("report")(eval_stored.report)
app.command("export")(eval_stored.export)


class RunCommand(TyperCommand):
    """`--shuffle` and `--resume` may come without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spell_out(args))


@app.callback()
def _eval() -> None:
    """A group even while it has a single command."""


@app.command("run", cls=RunCommand)
@config_options(options_of(EvalConfig, without=("environment",)))
def run(
    environments: Annotated[
        list[str], typer.Argument(metavar="ENV", help="Environments (names or paths), or config files (*.toml).")
    ],
    given: dict[str, Any],
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Log more, on standard error; -vv logs everything.")
    ] = 0,
    json_output: JsonOption = False,
) -> None:
    """Try models on held-out tasks, say how well they did, and keep every rollout.

    An environment may have defaults of its own for -n, -r, -t and -T: [tool.whet.eval] in its pyproject.toml. A config
    file has several evaluations, each option by its long name; what the command line says goes over it.

    \b
    Examples:
      whet eval run reverse-text
      whet eval run arithmetic -m runs/quickstart/model -n 64 -r 4
      whet eval run reverse-text -a '{"max_length": 9}' -T 0
      whet eval run calculator -m my-model -b http://localhost:8000/v1 -k MY_KEY
      whet eval run calculator -m mini        # a short name of configs/endpoints.toml
      whet eval run arithmetic reverse-text   # several, one after the other
      whet eval run configs/eval/sweep.toml -n 50
      whet eval run arithmetic -n 500 --resume        # continue the newest
    """
    if verbose:
        from whet.system.logs import setup_logging

        setup_logging("INFO" if verbose == 1 else "DEBUG")
    summaries = _evaluate(environments, given, json_output)
    if json_output:
        print_json(summaries[0] if len(summaries) == 1 else {"evaluations": summaries})
    else:
        from whet.evals.printing import print_summaries

        print_summaries(summaries)
    if any(summary.reward is None for summary in summaries):  # every rollout of one failed
        raise typer.Exit(1)


def _evaluate(targets: Sequence[str], given: dict[str, Any], json_output: bool) -> list[EvalSummary]:
    from whet.evals.offline import go_offline
    from whet.evals.planning.plan import plan_evals
    from whet.system.env_files import load_env_files

    configs = plan_evals(targets, given, note=lambda line: print(line, file=sys.stderr, flush=True))
    if any(config.offline for config in configs):
        go_offline()
    for config in configs:
        load_env_files(config.env_file)
    with ExitStack() as stack:
        if any(config.local for config in configs):
            stack.enter_context(extra("train", "running a model here"))
        if not all(config.local for config in configs):
            stack.enter_context(extra("openai", "a model behind an endpoint"))
        from whet.evals.live import open_view
        from whet.evals.sessions.session import EvaluationsInterrupted, run_evals

        try:
            return run_evals(configs, open_view(quiet=json_output))
        except EvaluationsInterrupted as interrupted:
            print(interrupted, file=sys.stderr, flush=True)
            raise typer.Exit(interrupted.exit_code) from None
