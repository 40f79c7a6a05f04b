"""`whet train run` and `sft`: train a model. The commands on runs that exist are in `train_stored.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from whet.cli import sweep, train_stored
from whet.cli.options import check_config_first
from whet.cli.output import JsonOption, extra, print_json, print_result
from whet.cli.service import runs
from whet.cli.service.submit import train_submit
from whet.cli.sharing.common import HubOption, safe
from whet.system.children import end_with_parent
from whet.system.redaction import KNOWN

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.sft.config import SftConfig


Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run's TOML file.")]
Name = Annotated[
    str | None,
    typer.Option(help="Name of the run, and of its directory under runs/; auto takes the first that is free."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run of this name from its last checkpoint.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check models, environments, data and trackers, print the config with an estimate of memory and time, and "
        "stop.",
    ),
]
OVERRIDES: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that takes any key of its config as --key value."""
ConfigT = TypeVar("ConfigT", "RunConfig", "SftConfig")

app = typer.Typer(rich_markup_mode=None)


@app.command("run", context_settings=OVERRIDES)
def run(
    context: typer.Context,
    config: Config,
    name: Name = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    json_output: JsonOption = False,
) -> None:
    """Train a model by reinforcement learning, as a config file says.

    Any key of the file can be given after it, as --key value: dots for tables, numbers for the place in a list.

    \b
    Examples:
      whet train run configs/rl/quickstart.toml
      whet train run my.toml --max_steps 200 --sampling.temperature 0.8
      whet train run my.toml --env.0.weight 2 --dry-run
      whet train run my.toml --resume
    """
    from whet.rl.config import load_run_config

    end_with_parent()
    resolved = _resolved(load_run_config, context, config, name)
    if dry_run:
        _print_config(resolved, json_output)
        return
    with extra("train", "training"):
        from whet.rl.run import run_training

        outcome = run_training(resolved, resume=resume, json_output=json_output)
    train_stored.finish(outcome, json_output)


@app.command("sft", context_settings=OVERRIDES)
def sft(
    context: typer.Context,
    config: Config,
    name: Name = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    json_output: JsonOption = False,
) -> None:
    """Fine-tune a model on conversations, as a config file says. Only the assistant's messages carry loss.

    Data is a JSONL, JSON or Parquet file of messages, or of prompt and completion; a dataset; or the good rollouts of
    an evaluation or of a training run. Any key of the file can be given after it, as --key value.

    \b
    Examples:
      whet train sft configs/sft/hours.toml
      whet train sft my.toml --num_epochs 3 --data.path more.jsonl
      whet train sft my.toml --data.path outputs/evals --data.min_reward 1.0
      whet train sft my.toml --resume
    """
    from whet.rl.sft.config import load_sft_config

    resolved = _resolved(load_sft_config, context, config, name)
    if dry_run:
        _print_config(resolved, json_output)
        return
    with extra("train", "training"):
        from whet.rl.sft.run import run_sft

        outcome = run_sft(resolved, resume=resume, json_output=json_output)
    train_stored.finish(outcome, json_output)


app.command("sweep")(sweep.train_sweep)
app.command("submit", context_settings=OVERRIDES)(train_submit)
app.command("list")(train_stored.list_runs)
app.command("show")(train_stored.show)
app.command("logs")(train_stored.logs)
app.command("metrics")(train_stored.metrics)
app.command("rollouts")(train_stored.rollouts)
app.command("compare")(train_stored.compare)
app.command("resume", context_settings=OVERRIDES)(train_stored.resume)
app.command("stop")(train_stored.stop)
app.command("export")(train_stored.export)
app.command("get")(runs.get)
app.command("restart")(runs.restart)
app.command("delete")(runs.delete)
app.command("progress")(runs.progress)
app.command("distributions")(runs.distributions)
app.command("checkpoints")(runs.checkpoints)
app.command("usage")(runs.usage)


def _resolved(
    load: Callable[[Path, list[str]], ConfigT], context: typer.Context, config: Path, name: str | None
) -> ConfigT:
    """The config with its overrides."""
    check_config_first(context, config)
    return load(config, [*(["--name", name] if name is not None else []), *context.args])


def _print_config(config: RunConfig | SftConfig, json_output: bool) -> None:
    """Check models, environments and trackers, and print the resolved config and what it will take.

    The output is a config file: everything but the config is a comment.
    """
    with extra("train", "estimating memory"):
        from whet.rl.monitors.trackers import trackers
        from whet.rl.plan import plan_training, rehearse

        with redirect_stdout(sys.stderr):  # what environments print is no part of the config
            prompt = rehearse(config)
            trackers(config, KNOWN)
        plan = replace(plan_training(config), prompt=prompt)
        values, lines = plan.as_json(), plan.lines()
    if json_output:
        print_json({**config.model_dump(mode="json", exclude_none=True), **values})
        return
    typer.echo(config.to_toml(), nl=False)
    typer.echo("\n" + "\n".join(f"# {line}" for line in lines))


# `whet train models` and `configs`: what can be trained, and config files to begin with.


@app.command("models")
def models(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """List the models that are ready: on the service, or without one on this machine. Others are fetched on first use.

    \b
    Example:
      whet train models
    """
    from whet.service.client.connection import ask_service, connect_service, service_is_set

    if hub is None and not service_is_set():
        with extra("train", "listing models"):
            from whet.models.local_models import local_models

            print_result({"models": local_models()}, json_output)
        return
    with connect_service(hub) as service:
        models = ask_service(service).models
        print_result(safe({"models": [{"model": name, "where": service.url} for name in models]}), json_output)


@app.command("configs")
def configs(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = Path("configs"),
    json_output: JsonOption = False,
) -> None:
    """List the training configs below a folder: file, model, environments or data, and whether each can be read.

    \b
    Examples:
      whet train configs
      whet train configs my-configs --json
    """
    from whet.errors import ConfigError

    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder. `whet lab setup` makes one with configs to begin with.")
    rows = [row for file in sorted(folder.rglob("*.toml")) if (row := _config_row(file)) is not None]
    print_result({"configs": rows}, json_output)
    if not rows and not json_output:
        typer.echo(f"no training config below {folder}. `whet lab setup` makes some to begin with.")


def _config_row(file: Path) -> dict[str, Any] | None:
    """None for a file that is no config of training."""
    from whet.config import read_toml
    from whet.errors import WhetError

    try:
        data = read_toml(file)
    except WhetError as error:
        return {"file": str(file), "command": "", "model": "", "learns from": "", "steps": "", "problem": str(error)}
    sections = data.get("env")
    if isinstance(data.get("data"), dict):
        command, source = "sft", str(data["data"].get("path") or data["data"].get("dataset") or "")
    elif isinstance(sections, list) and ("batch_size" in data or "max_steps" in data):
        named = [section for section in sections if isinstance(section, dict)]
        command, source = "run", ", ".join(str(section.get("id", "?")) for section in named)
    else:
        return None
    steps = data.get("max_steps", data.get("num_epochs", ""))
    model = data.get("model", "whet/tiny")
    return {"file": str(file), "command": f"train {command}", "model": model, "learns from": source, "steps": steps}
