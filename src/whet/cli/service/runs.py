"""`whet train get`, `restart`, `delete`, `progress`, `distributions`, `checkpoints`, `usage`; `list`, `stop` there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from whet.cli.output import JsonOption, console, print_json, print_result
from whet.cli.service.common import (
    AnyRun,
    CapCost,
    CapHours,
    CapTokens,
    NothingAsked,
    ServiceRun,
    caps_of,
    is_of_service,
    moment,
    run_facts,
    run_row,
    service_run,
    size_text,
)
from whet.cli.sharing.common import HubOption, safe
from whet.errors import ConfigError
from whet.system.terminal import BLOCKS, safe_text

FACTS = {"started": "started", "last sign": "heartbeat", "error": "last_error"}
"""Label and field of a run's status."""
What = Literal["adapter", "model", "checkpoint"]


def list_service_runs(
    *,
    kind: str | None,
    state: str | None,
    owner: str | None,
    search: str | None,
    count: int,
    hub: str | None,
    json_output: bool,
) -> None:
    """The newest runs of the service."""
    from itertools import islice

    from whet.service.answers import SubmittedRun
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        pages = service.items(SubmittedRun, "/runs", kind=kind, state=state, owner=owner, search=search)
        runs = [run.as_dict() for run in islice(pages, count)]
    if json_output:
        print_json({"runs": runs})
    elif runs:
        print_result({"runs": [run_row(run) for run in runs]}, False)
    else:
        typer.echo("no run like that on the service. Submit one: whet train submit CONFIG")


def get(run: AnyRun, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Show a run: its state and why, how far it is, what it costs. Of one of this machine as `whet train show`.

    \b
    Examples:
      whet train get 1f2e3d4c5b6a7988
      whet train get ann/quickstart --json
    """
    if not is_of_service(run) and hub is None:
        from whet.cli.train_stored import show

        show(run, json_output)
        return
    with service_run(run, hub) as (service, shown):
        print_result(safe(shown.as_dict() if json_output else run_facts(shown, service.url)), json_output)


def stop_on_service(run: str, patience: float, json_output: bool) -> None:
    """Stop a run of the service, and wait for its end."""
    from whet.service.answers import SubmittedRun
    from whet.service.client.following import run_path, wait_for_end

    with service_run(run) as (service, shown):
        stopped = service.ask(SubmittedRun, "POST", run_path(shown, "stop"), retry=True)
        if patience:
            stopped = wait_for_end(service, stopped, patience)
        facts = {"run": stopped.id, "state": stopped.state, "reason": stopped.reason, "step": stopped.step}
        if not json_output and stopped.ended:
            facts["continue"] = f"whet train restart {stopped.id}"
        print_result(safe(stopped.as_dict() if json_output else facts), json_output)


def restart(
    run: ServiceRun,
    step: Annotated[
        int | None, typer.Option(min=1, help="Continue from this checkpoint; from the newest if absent.")
    ] = None,
    cap_hours: CapHours = None,
    cap_tokens: CapTokens = None,
    cap_cost: CapCost = None,
    yes: NothingAsked = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Queue a run of the service again, to continue from a checkpoint. Here: whet train resume.

    Caps are those of all its attempts together; one that is given takes the place of what the run had.

    \b
    Examples:
      whet train restart 1f2e3d4c5b6a7988
      whet train restart ann/quickstart --step 50 --cap-hours 8
    """
    from whet.service.answers import SubmittedRun
    from whet.service.client.following import run_path

    _of_service_alone(run, hub, "whet train resume")
    with service_run(run, hub) as (service, shown):
        body = {"step": step, "caps": caps_of(cap_hours, cap_tokens, cap_cost)}
        queued = service.ask(SubmittedRun, "POST", run_path(shown, "restart"), json=body)
        facts = {"run": queued.id, "state": queued.state, "place": queued.place, "reason": queued.reason}
        print_result(safe(queued.as_dict() if json_output else facts), json_output)


def delete(
    run: ServiceRun,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Delete a run of the service with its rollouts and checkpoints. One that runs has to be stopped first.

    \b
    Example:
      whet train delete 1f2e3d4c5b6a7988
    """
    from whet.service.client.following import run_path

    _of_service_alone(run, hub, "rm -r, on its directory")
    with service_run(run, hub) as (service, shown):
        if not yes and not typer.confirm(
            f"delete {shown.owner}/{shown.name} ({shown.id}, {shown.state}) with all its files?", err=True
        ):
            raise typer.Exit(1)
        service.send("DELETE", f"/api/v1{run_path(shown)}")
    print_result({"deleted": shown.id}, True) if json_output else typer.echo(f"{shown.id} is deleted")


def progress(run: AnyRun, hub: HubOption = None, json_output: JsonOption = False) -> None:
    """Show how far a run is, what it waits for, and what its processes use.

    \b
    Example:
      whet train progress quickstart
    """
    if not is_of_service(run) and hub is None:
        from whet.rl.stored.stored_run import open_run

        stored = open_run(run)
        answer: dict[str, Any] = {"state": stored.state, "step": stored.step, "status": stored.status}
        _print_progress({**stored.status, "state": stored.state} if json_output else answer, json_output)
        return
    from whet.service.client.following import run_path

    with service_run(run, hub) as (service, shown):
        answer = service.send("GET", f"/api/v1{run_path(shown, 'progress')}").json()
    _print_progress(answer, json_output)


def _print_progress(answer: Mapping[str, Any], json_output: bool) -> None:
    """The facts as labelled lines, and a line for each process: within the width of a terminal."""
    if json_output:
        print_json(safe(dict(answer)))
        return
    from whet.display.text import print_fact, print_rows

    out = console()
    status, used, waits = (answer.get(name) or {} for name in ("status", "processes", "waits_for"))
    steps = f"{answer.get('step') or 0}" + (f" of {answer['max_steps']}" if answer.get("max_steps") else "")
    facts = {"state": answer.get("state"), "reason": answer.get("reason"), "step": steps, "waits for": ", ".join(waits)}
    facts |= {label: status.get(name) for label, name in FACTS.items()} if isinstance(status, dict) else {}
    for label, value in facts.items():
        if value not in (None, ""):
            print_fact(label, safe_text(value, 1_000), out)
    rows = [
        {
            "pid": str(one["pid"]),
            "memory": "" if one["memory"] is None else size_text(one["memory"]),
            "cores": "" if one["cores"] is None else f"{one['cores']:.2f}",
            "process": safe_text(one["name"], max(20, out.width - 30)),
        }
        for one in used.get("processes", ())
    ]
    print_rows(rows, out, {"pid", "memory", "cores"}) if rows else None


def distributions(
    run: ServiceRun,
    step: Annotated[int | None, typer.Option("--step", "-s", min=1, help="Step; the newest if absent.")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Print histograms of rewards, advantages and lengths of a step, by environment.

    \b
    Examples:
      whet train distributions 1f2e3d4c5b6a7988
      whet train distributions ann/quickstart --step 20 --json
    """
    _of_service_alone(run, hub, "whet view")
    from whet.service.client.following import DistributionsAnswer, indexed

    with service_run(run, hub) as (service, of):
        answer = indexed(service, DistributionsAnswer, of, "distributions", {} if step is None else {"step": str(step)})
    if json_output:
        print_json(answer.model_dump(mode="json"))
        return
    for name, histogram in answer.histograms.items():
        _print_histogram(name, histogram)
    if not answer.histograms:
        typer.echo(f"no rollout{'' if step is None else f' of step {step}'} yet")


def checkpoints(
    run: AnyRun,
    download: Annotated[
        What | None, typer.Option("--download", help="Fetch an adapter, a whole model or a checkpoint.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Which one to fetch; the newest if absent.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="New folder for it.", metavar="DIR", show_default="NAME-step_N-WHAT")
    ] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """List the checkpoints of a run, or fetch one from the service.

    An adapter is for PEFT, vLLM and `whet eval run`, a model for transformers, a checkpoint for `whet train`.

    \b
    Examples:
      whet train checkpoints 1f2e3d4c5b6a7988
      whet train checkpoints ann/quickstart --download adapter --to my-adapter
    """
    if not is_of_service(run) and hub is None:
        from whet.rl.stored.stored_run import open_run

        if download is not None:
            raise ConfigError(f"{run} is on this machine already. Write weights with: whet train export {run}")
        listed = [{"step": number, "fault": fault} for number, fault in open_run(run).checkpoints()]
        print_result({"checkpoints": listed}, json_output)
        return
    from whet.service.client.following import download as fetch
    from whet.service.client.following import run_path

    with service_run(run, hub) as (service, shown):
        answer = service.send("GET", f"/api/v1{run_path(shown, 'checkpoints')}").json()
        listed = answer["items"]
        if download is None:
            rows = listed if json_output else [_checkpoint_row(one) for one in listed]
            print_result(safe({"checkpoints": rows}), json_output)
            return
        whole = [one["step"] for one in listed if not one.get("fault")]
        if not whole or (step is not None and step not in whole):
            there = ", ".join(map(str, sorted(whole))) or "none"
            raise ConfigError(
                f"{shown.id} has no whole checkpoint{'' if step is None else f' of step {step}'}: {there}."
            )
        chosen = max(whole) if step is None else step
        archives = next(one for one in listed if one["step"] == chosen).get("archives")
        if archives is not None and download not in archives:
            has = " or ".join(archives) or "nothing that can be fetched"
            raise ConfigError(f"step {chosen} of {shown.id} has no {download}; it has: {has}.")
        target = to or Path(f"{shown.name}-step_{chosen}-{download}")
        fetch(service, shown, chosen, download, target)
    print_result({"saved": str(target), "step": chosen, "what": download}, json_output)


def _checkpoint_row(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": checkpoint["step"],
        "size": size_text(checkpoint.get("bytes") or 0),
        "written": moment(checkpoint.get("modified")),
        "fault": checkpoint.get("fault") or "",
        "can be fetched": checkpoint.get("archives") or [],
        "can be served": bool(checkpoint.get("deployable")),
    }


def usage(
    owner: Annotated[
        str | None, typer.Option(help="User or organisation.", show_default="`whet config`'s, or you")
    ] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show what an owner used of the service: seconds, tokens, cost, by day; and its limits.

    \b
    Example:
      whet train usage --owner my-team
    """
    from whet.hub.client.publish import default_owner
    from whet.service.client.connection import connect_service

    with connect_service(hub) as service:
        chosen = owner or default_owner(service)
        answer = service.send("GET", "/api/v1/usage", params={"owner": chosen}).json()
    print_result(safe(answer), json_output)


def _of_service_alone(run: str, hub: str | None, instead: str) -> None:
    """Raises `ConfigError` for a run of this machine, and where there is no service."""
    from whet.service.client.connection import connect_service
    from whet.service.client.runs import is_here

    if hub is None and is_here(run):
        raise ConfigError(f"{run} is a run of this machine, not of the service. For those: {instead}")
    connect_service(hub).__exit__()


def _print_histogram(name: str, histogram: dict[str, Any]) -> None:
    """A line for each environment: its values from the lowest to the highest, each bar in parts of the tallest."""
    edges = histogram["edges"]
    typer.echo(safe(f"{name}  {edges[0]:.4g} to {edges[-1]:.4g}"))
    width = max(map(len, histogram["counts"]), default=0)
    for environment, counts in histogram["counts"].items():
        tallest = max([1, *counts])
        bars = "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // tallest)] if count else " " for count in counts)
        mean = histogram["means"].get(environment)
        typer.echo(safe(f"  {environment:<{width}}  |{bars}|  mean {mean:.4g}, of {sum(counts)}"))
