"""`whet eval`: models on environments' held-out tasks. What is done with results later is in `eval_stored.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from whet.cli import eval_stored
from whet.cli.optional_values import spell_out
from whet.cli.output import JsonOption, extra, json_object, print_json
from whet.evals.config import EvalConfig

if TYPE_CHECKING:
    from whet.evals.summary import EvalSummary

app = typer.Typer(rich_markup_mode=None)
app.command("list")(eval_stored.list_evaluations)
app.command("show")(eval_stored.show)
app.command("compare")(eval_stored.compare_evaluations)
app.command("report")(eval_stored.report)
app.command("export")(eval_stored.export)

DEFAULTS = EvalConfig(environment="-")
"""Every field but the environment has a default, which is its option's."""

JSON_OPTIONS = {"sampling_args": "--sampling-args", "env_args": "--env-args", "extra_env_kwargs": "--extra-env-kwargs"}
NOT_OPTIONS = {"environments", "json_output", "verbose"}
"""Parameters of the command that are not fields of the config."""


class RunCommand(TyperCommand):
    """`--shuffle` and `--resume` may come without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spell_out(args))


@app.callback()
def _eval() -> None:
    """A group even while it has a single command."""


def _help(field: str) -> str | None:
    return EvalConfig.model_fields[field].description


@app.command("run", cls=RunCommand)
def run(
    ctx: typer.Context,
    environments: Annotated[
        list[str], typer.Argument(metavar="ENV", help="Environments (names or paths), or config files (*.toml).")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=_help("model"))] = DEFAULTS.model,
    base_url: Annotated[
        str | None, typer.Option("--base-url", "-b", help=_help("base_url"), metavar="URL")
    ] = DEFAULTS.base_url,
    api_key_var: Annotated[
        str, typer.Option("--api-key-var", "-k", help=_help("api_key_var"), metavar="NAME")
    ] = DEFAULTS.api_key_var,
    endpoints: Annotated[Path, typer.Option("--endpoints", "-e", help=_help("endpoints"))] = DEFAULTS.endpoints,
    env_file: Annotated[list[Path] | None, typer.Option("--env-file", help=_help("env_file"), metavar="FILE")] = None,
    num_examples: Annotated[
        int, typer.Option("--num-examples", "-n", help=_help("num_examples"))
    ] = DEFAULTS.num_examples,
    rollouts_per_example: Annotated[
        int, typer.Option("--rollouts-per-example", "-r", help=_help("rollouts_per_example"))
    ] = DEFAULTS.rollouts_per_example,
    max_concurrent: Annotated[
        int, typer.Option("--max-concurrent", "-c", help=_help("max_concurrent"))
    ] = DEFAULTS.max_concurrent,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-t", help=_help("max_tokens"))
    ] = DEFAULTS.max_tokens,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-T", help=_help("temperature"))
    ] = DEFAULTS.temperature,
    sampling_args: Annotated[
        str, typer.Option("--sampling-args", "-S", help=_help("sampling_args"), metavar="JSON")
    ] = "{}",
    env_args: Annotated[str, typer.Option("--env-args", "-a", help=_help("env_args"), metavar="JSON")] = "{}",
    extra_env_kwargs: Annotated[
        str, typer.Option("--extra-env-kwargs", "-x", help=_help("extra_env_kwargs"), metavar="JSON")
    ] = "{}",
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", help=_help("shuffle"), metavar="[SEED]")
    ] = DEFAULTS.shuffle,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help=_help("timeout"), metavar="SECONDS")
    ] = DEFAULTS.timeout,
    max_retries: Annotated[int, typer.Option("--max-retries", help=_help("max_retries"))] = DEFAULTS.max_retries,
    state_columns: Annotated[
        list[str] | None, typer.Option("--state-columns", "-C", help=_help("state_columns"), metavar="NAME,...")
    ] = None,
    independent_scoring: Annotated[
        bool, typer.Option("--independent-scoring", "-i", help=_help("independent_scoring"))
    ] = DEFAULTS.independent_scoring,
    workers: Annotated[int | None, typer.Option("--workers", "-w", help=_help("workers"))] = DEFAULTS.workers,
    seed: Annotated[int | None, typer.Option("--seed", help=_help("seed"))] = DEFAULTS.seed,
    dtype: Annotated[str, typer.Option("--dtype", help=_help("dtype"))] = DEFAULTS.dtype,
    threads: Annotated[int | None, typer.Option("--threads", help=_help("threads"))] = DEFAULTS.threads,
    save: Annotated[bool, typer.Option("--save/--no-save", "-s", help=_help("save"))] = DEFAULTS.save,
    output_directory: Annotated[
        Path, typer.Option("--output-directory", "-o", help=_help("output_directory"))
    ] = DEFAULTS.output_directory,
    resume: Annotated[str | None, typer.Option("--resume", "-R", help=_help("resume"), metavar="[PATH]")] = None,
    offline: Annotated[bool, typer.Option("--offline", help=_help("offline"))] = DEFAULTS.offline,
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
    given = {name: value for name, value in ctx.params.items() if name not in NOT_OPTIONS and _is_given(ctx, name)}
    for name, option in JSON_OPTIONS.items():
        if name in given:
            given[name] = json_object(option, given[name])
    if state_columns is not None:
        given["state_columns"] = [part.strip() for column in state_columns for part in column.split(",")]
    if resume is not None:
        given["resume"] = Path(resume) if resume else True
    if verbose:
        from whet.system.logs import setup_logging

        setup_logging("INFO" if verbose == 1 else "DEBUG")
    summaries = _evaluate(environments, given, json_output)
    if json_output:
        print_json(summaries[0] if len(summaries) == 1 else {"evaluations": summaries})
    else:
        from whet.evals.view import print_summaries

        print_summaries(summaries)
    if any(summary.reward is None for summary in summaries):  # every rollout of one failed
        raise typer.Exit(1)


def _evaluate(targets: Sequence[str], given: dict[str, Any], json_output: bool) -> list[EvalSummary]:
    from whet.evals.offline import go_offline
    from whet.evals.plan import plan_evals
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
        from whet.evals.session import EvaluationsInterrupted, run_evals

        try:
            return run_evals(configs, open_view(quiet=json_output))
        except EvaluationsInterrupted as interrupted:
            print(interrupted, file=sys.stderr, flush=True)
            raise typer.Exit(interrupted.exit_code) from None


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line, if only with the value it has anyway."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
