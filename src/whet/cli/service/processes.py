"""`whet service`: the processes of the training service."""

from __future__ import annotations

from typing import Any

import typer

from whet.cli.options import config_options
from whet.cli.output import extra
from whet.config import options_of, validate
from whet.service.runner.serve import RunnerConfig, serve_runner

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def _service() -> None:
    """Train as a service: a queue of submitted runs, runners, a dashboard."""


@app.command("runner")
@config_options(options_of(RunnerConfig))
def runner(*, given: dict[str, Any]) -> None:
    """Start runs of the queue on this machine until Ctrl-C. What runs then lives on; the next runner follows it.

    Runs are kept apart by bubblewrap: one sees its own folder, Python and the model cache, and nothing of the service.

    \b
    Examples:
      whet service runner
      whet service runner --data /srv/whet --database postgresql://whet@db/whet
      whet service runner --readable /srv/models --name gpu-1
    """
    config = validate(RunnerConfig, given, "command line")
    with extra("service", "a runner"):
        serve_runner(config, lambda line: typer.echo(f"{line}; Ctrl-C stops it, its runs go on", err=True))
