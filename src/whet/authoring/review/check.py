"""`whet env check`: review a package, and print what to fix. What comes from the package is made harmless first.

Nothing of it is read or run here, but in processes of its own (`isolation.py`): once to read its files and to see what
importing does, and twice, with different hash seeds, to load it and to have scripted models attempt some tasks. A
review helps an honest author and a reader of foreign code; a package that is out to deceive runs in the process that
reports on it, and could lie.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from whet.authoring.review.about_runs import (
    first_of,
    last_started,
    mean_rewards,
    review_files,
    review_import,
    review_load,
    review_rewards,
    review_rows,
)
from whet.authoring.review.findings import SEVERITIES, Finding, Report, Severity, ordered
from whet.authoring.review.isolation import Ran, run
from whet.authoring.review.observations import BatchCost, Closed, Event, Loaded, Read, Rolled, Rows
from whet.authoring.review.package import project_folder
from whet.authoring.review.probes import RIGHT
from whet.envs.loading import Location, locate
from whet.errors import ConfigError
from whet.system.console import SafeConsole
from whet.system.terminal import safe_text

TASKS = 5
TIMEOUT_S = 300.0
HASH_SEEDS = (1, 2)
STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
LIMIT = 600


def check_environment(
    environment: str,
    env_args: Mapping[str, Any] | None = None,
    *,
    tasks: int = TASKS,
    timeout_s: float = TIMEOUT_S,
    sandbox: bool = True,
) -> Report:
    """Review a package.

    Args:
        environment: An id, or a path to a package or a module.
        env_args: Arguments of load_environment.
        tasks: Tasks that scripted models attempt.
        timeout_s: Seconds for all of it.
        sandbox: Run the package's code in bubblewrap, without a network.

    Raises `WhetError` where there is no such environment, and where there is no sandbox.
    """
    if tasks < 1 or timeout_s <= 0:
        raise ConfigError(f"need at least one task and a time limit above 0 s, got {tasks} and {timeout_s:g}.")
    location = locate(environment)
    folder = project_folder(location.path)
    findings: list[Finding] = []
    if not sandbox:
        findings.append(Finding.of("not-isolated", "the package's code ran here with your rights (--no-sandbox)"))
    deadline = time.monotonic() + timeout_s
    request, readable = request_for(environment, env_args or {}, tasks)

    def ran(what: str, hash_seed: int) -> Ran:
        left = max(0.1, deadline - time.monotonic())
        return run(what, request, timeout_s=left, hash_seed=hash_seed, sandbox=sandbox, readable=readable)

    imported = ran("import", HASH_SEEDS[0])
    read = first_of(Read, imported.events)
    findings += review_files(imported.events, imported.ended)
    findings += review_import(imported.events, imported.printed, imported.ended) if read is not None else []
    first, facts = Ran((), "", None), {}
    if not any(finding.code in ("import-fails", "unfinished") for finding in findings):
        assert read is not None
        first = ran("load", HASH_SEEDS[0])
        again = ran("load", HASH_SEEDS[1]) if first.ended is None else Ran((), "", None)
        findings += review_load(first.events, first.ended, sandbox)
        findings += review_rows(first.events, again.events)
        findings += review_rewards(first.events, again.events, read.settings)
        findings += [finding for one in (first, again) for finding in _ending(one)]
        facts = facts_of(first.events)
    excuses = read.settings.ignore if read is not None else {}
    return Report(environment, str(folder or location.path), ordered(findings, excuses), facts)


def request_for(environment: str, env_args: Mapping[str, Any], tasks: int) -> tuple[dict[str, Any], list[Path]]:
    """The request to the process that runs a package's code, and the files that it may read."""
    location = locate(environment)
    request = {"environment": _absolute(environment, location), "args": dict(env_args), "tasks": tasks}
    return request, _readable(project_folder(location.path), location)


def facts_of(events: tuple[Event, ...]) -> dict[str, Any]:
    """What was measured."""
    facts: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Loaded):
            facts |= {"kind": event.kind, "load_seconds": event.seconds, "rewards": event.weights}
        elif isinstance(event, Rows):
            facts["train_rows"] = event.train.rows if event.train else 0
            facts["eval_rows"] = event.eval.rows if event.eval else 0
    rolled = [event for event in events if isinstance(event, Rolled)]
    batches = [event for event in events if isinstance(event, BatchCost)]
    rollouts = sum(batch.rollouts for batch in batches)
    if rollouts:
        facts["rollouts"] = rollouts
        facts["seconds_per_rollout"] = sum(batch.seconds for batch in batches) / rollouts
        facts["mean_rewards"] = mean_rewards(rolled)
    return facts


def _ending(ran: Ran) -> list[Finding]:
    """A process that did not get to the end, after it had loaded the environment."""
    loaded = first_of(Loaded, ran.events)
    closed = any(isinstance(event, Closed) for event in ran.events)
    failed = loaded is not None and loaded.error is not None
    if loaded is None or ((failed or closed) and ran.ended is None):
        return []
    at = last_started(ran.events)
    where = f"at the probe '{at}'" if at else "while its rows were built"
    where = "after load_environment had failed" if failed else where
    return [
        Finding.of("unfinished", f"the check stopped {where}: {ran.ended or 'it ended early'}", _remedy(ran), where=at)
    ]


def _remedy(ran: Ran) -> str:
    last = ran.printed.strip().splitlines()[-1:] if ran.ended and "more than" not in ran.ended else []
    return f"It printed: {last[0]}" if last else "Look for what takes so long, or give it more with --timeout."


def _readable(folder: Path | None, location: Location) -> list[Path]:
    """The package's own files that it may read. For a single module not its whole folder, which may be a home."""
    if folder is not None:
        return [folder]
    siblings = location.path.parent.glob("*.py") if location.path.suffix == ".py" and location.root is not None else []
    return [location.path, *siblings]


def _absolute(environment: str, location: Location) -> str:
    """What finds the environment from any directory."""
    if location.root is None:
        return environment
    if location.path.suffix == ".py" and location.path.parent.name.replace("-", "_") != location.module:
        return str(location.path)
    return str(location.root if location.root.name.replace("-", "_") == location.module else location.path)


def print_report(report: Report, console: Console | None = None) -> None:
    """Every finding with what to do, then what was measured, then the verdict."""
    console = console or SafeConsole()
    for finding in report.findings:
        where = f"  {safe_text(finding.where, LIMIT)}" if finding.where else ""
        head = Text.assemble((f"{finding.severity:<8}", STYLES[finding.severity]), (finding.code, "bold"), where)
        console.print(head, soft_wrap=True)
        for text in (finding.message, finding.fix):
            if text:
                console.print(Text(f"        {safe_text(text, LIMIT)}"), soft_wrap=True)
    for line in fact_lines(report):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(verdict(report), style="bold"), soft_wrap=True)


def fact_lines(report: Report) -> Iterator[str]:
    facts = report.facts
    if facts.get("kind"):
        rows = f"{facts.get('train_rows', 0)} training and {facts.get('eval_rows', 0)} evaluation tasks"
        yield f"loaded    {safe_text(facts['kind'])} with {rows} in {facts['load_seconds']:.2f} s"
    if "rollouts" in facts:
        each = 1000 * facts["seconds_per_rollout"]
        yield f"tried     {facts['rollouts']} rollouts of scripted models, {each:.1f} ms each"
        means: dict[str, float] = facts["mean_rewards"]
        earned = sorted((item for item in means.items() if item[1]), key=lambda item: -item[1])
        right = [item for item in earned if item[0].startswith(RIGHT)][:1]
        shown = right + [item for item in earned if not item[0].startswith(RIGHT)]
        text = ", ".join(f"{probe} {mean:.2f}" for probe, mean in shown)
        yield f"rewards   {text + '; everything else 0' if text else 'all 0'}"


def verdict(report: Report) -> str:
    counts = ", ".join(
        f"{count} {severity}{'' if count == 1 else 's'}"
        for severity in SEVERITIES
        if (count := report.count(severity)) or severity == "error"
    )
    return f"{safe_text(report.environment)}: {counts}"
