"""`whet train sft`: supervised fine-tuning on conversations."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.output import JsonOption, extra
from whet.cli.train_config import Config, Name, Resume, config_comes_first, finish, shown_instead


def sft(
    context: typer.Context,
    config: Config,
    name: Name = None,
    resume: Resume = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Read the data, print the resolved config, memory and steps, and stop.",
        ),
    ] = False,
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

    config_comes_first("whet train sft", config, context.args)
    resolved = load_sft_config(config, [*(["--name", name] if name is not None else []), *context.args])
    if shown_instead(resolved, dry_run, json_output):
        return
    with extra("train", "training"):
        from whet.rl.sft.run import run_sft

        outcome = run_sft(resolved, resume=resume, json_output=json_output)
    finish(outcome, json_output)
