"""`whet gepa`: better prompts for a model that stays as it is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import gepa_stored
from whet.cli.output import JsonOption, console, extra, json_object, print_json
from whet.gepa.config import EnvSection, GepaConfig

if TYPE_CHECKING:
    from whet.gepa.outcome import SearchOutcome

app = typer.Typer(rich_markup_mode=None)
app.command("list")(gepa_stored.list_searches)
app.command("show")(gepa_stored.show)
app.command("report")(gepa_stored.report)

DEFAULTS = GepaConfig(name="run", env=(EnvSection(id="-"),))
"""What an option that is written nowhere comes to."""
COMPONENTS, PERFECT = ",".join(DEFAULTS.components), DEFAULTS.perfect_score or 1.0

JSON_OPTIONS = {
    "sampling": "--sampling-args",
    "reflection_sampling": "--reflection-sampling-args",
    "env_args": "--env-args",
}
NOT_KEYS = {"target", "resume", "dry_run", "plain", "json_output", "verbose"}
"""Parameters of the command that are not keys of the config."""


@app.callback()
def _gepa() -> None:
    """A group even while it has a single command."""


def _help(field: str) -> str | None:
    return GepaConfig.model_fields[field].description


@app.command("run")
def run(
    ctx: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="ENV", help="Environment (name or path), or a config file (*.toml).")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=_help("model"))] = DEFAULTS.model,
    reflection_model: Annotated[
        str | None, typer.Option("--reflection-model", "-M", help=_help("reflection_model"))
    ] = DEFAULTS.reflection_model,
    base_url: Annotated[
        str | None, typer.Option("--base-url", "-b", help=_help("base_url"), metavar="URL")
    ] = DEFAULTS.base_url,
    reflection_base_url: Annotated[
        str | None, typer.Option("--reflection-base-url", help=_help("reflection_base_url"), metavar="URL")
    ] = DEFAULTS.reflection_base_url,
    api_key_var: Annotated[
        str, typer.Option("--api-key-var", "-k", help=_help("api_key_var"), metavar="NAME")
    ] = DEFAULTS.api_key_var,
    reflection_api_key_var: Annotated[
        str | None, typer.Option("--reflection-api-key-var", help=_help("reflection_api_key_var"), metavar="NAME")
    ] = DEFAULTS.reflection_api_key_var,
    endpoints: Annotated[Path, typer.Option("--endpoints", "-e", help=_help("endpoints"))] = DEFAULTS.endpoints,
    env_file: Annotated[list[Path] | None, typer.Option("--env-file", help=_help("env_file"), metavar="FILE")] = None,
    max_calls: Annotated[int, typer.Option("--max-calls", "-B", help=_help("max_calls"))] = DEFAULTS.max_calls,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help=_help("max_cost"), metavar="DOLLARS")
    ] = DEFAULTS.max_cost,
    num_train: Annotated[int, typer.Option("--num-train", "-n", help=_help("num_train"))] = DEFAULTS.num_train,
    num_val: Annotated[int, typer.Option("--num-val", "-N", help=_help("num_val"))] = DEFAULTS.num_val,
    minibatch_size: Annotated[
        int, typer.Option("--minibatch-size", help=_help("minibatch_size"))
    ] = DEFAULTS.minibatch_size,
    perfect_score: Annotated[float, typer.Option("--perfect-score", help=_help("perfect_score"))] = PERFECT,
    state_columns: Annotated[
        str, typer.Option("--state-columns", "-C", help=_help("state_columns"), metavar="NAME,...")
    ] = "",
    components: Annotated[str, typer.Option("--components", help=_help("components"), metavar="KIND,...")] = COMPONENTS,
    seed_prompt: Annotated[
        str | None, typer.Option("--seed-prompt", help=_help("seed_prompt"), metavar="TEXT|FILE")
    ] = DEFAULTS.seed_prompt,
    max_concurrent: Annotated[
        int, typer.Option("--max-concurrent", "-c", help=_help("max_concurrent"))
    ] = DEFAULTS.max_concurrent,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-t", help="Most new tokens in one turn of the model.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-T", help="Softmax temperature of the model; 0 is greedy.")
    ] = None,
    sampling: Annotated[str, typer.Option("--sampling-args", "-S", help=_help("sampling"), metavar="JSON")] = "{}",
    reflection_sampling: Annotated[
        str, typer.Option("--reflection-sampling-args", help=_help("reflection_sampling"), metavar="JSON")
    ] = "{}",
    env_args: Annotated[
        str, typer.Option("--env-args", "-a", help="Arguments of load_environment.", metavar="JSON")
    ] = "{}",
    timeout: Annotated[
        float | None, typer.Option("--timeout", help=_help("timeout"), metavar="SECONDS")
    ] = DEFAULTS.timeout,
    seed: Annotated[int | None, typer.Option("--seed", help=_help("seed"))] = DEFAULTS.seed,
    dtype: Annotated[str, typer.Option("--dtype", help=_help("dtype"))] = DEFAULTS.dtype,
    threads: Annotated[int | None, typer.Option("--threads", help=_help("threads"))] = DEFAULTS.threads,
    offline: Annotated[bool, typer.Option("--offline", help=_help("offline"))] = DEFAULTS.offline,
    name: Annotated[
        str, typer.Option("--name", help="The run is the directory runs/<name>; auto takes the first that is free.")
    ] = "auto",
    runs_directory: Annotated[
        Path, typer.Option("--runs-directory", help=_help("runs_directory"))
    ] = DEFAULTS.runs_directory,
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
      whet gepa run --resume runs/gepa-wordle -B 800  # go on, with more calls
    """
    given = {key: value for key, value in ctx.params.items() if key not in NOT_KEYS and _is_given(ctx, key)}
    for key, option in JSON_OPTIONS.items():
        if key in given:
            given[key] = json_object(option, given[key])
    given = {key: _plain(value) for key, value in given.items()}
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


def _plain(value: Any) -> Any:
    """A value as a TOML file would have it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line, if only with the value it has anyway."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
