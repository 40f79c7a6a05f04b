"""`whet train resume` and `stop`: runs that should go on, or end."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.output import JsonOption, extra, print_json, print_result
from whet.cli.train_config import finish
from whet.cli.train_stored import Run


def resume(
    context: typer.Context,
    run: Run,
    step: Annotated[
        int | None, typer.Option(min=1, help="Go on from the checkpoint of this step; from the newest if absent.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Go on with a run from its newest checkpoint that is whole, or from an earlier one.

    With --step, what the run did after that step is kept in its set_aside/. Keys that do not change what is learned
    (max_steps, eval, checkpointing, deployment, ...) may be given anew, as --key value.

    \b
    Examples:
      whet train resume quickstart
      whet train resume quickstart --step 50
      whet train resume quickstart --max_steps 400
    """
    from whet.rl.stored.stop_and_resume import resume_run
    from whet.rl.stored.stored_run import open_run

    stored = open_run(run)
    with extra("train", "training"):
        outcome = resume_run(stored.path, step=step, overrides=context.args, json_output=json_output)
    finish(outcome, json_output)


def stop(
    run: Run,
    patience: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.", metavar="SECONDS")
    ] = 600.0,
    json_output: JsonOption = False,
) -> None:
    """Ask a run that is going on to write a checkpoint and stop; wait, and say how it ended.

    \b
    Examples:
      whet train stop quickstart
    """
    from whet.rl.stored.stop_and_resume import stop_run
    from whet.rl.stored.stored_run import open_run

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
    print_result({**shown, **({"go on": stopped.resume} if stopped.resume else {})}, False)
