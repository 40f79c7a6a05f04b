"""Stored runs and their rollouts in the terminal. What environments and configs say is made harmless."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from whet.display.text import number, print_fact, print_rows
from whet.errors import RunError
from whet.records.rollout_text import pieces
from whet.records.stored import DAMAGED, print_list
from whet.rl.doctor import line
from whet.rl.monitors.protocol import evaluation_metrics
from whet.rl.storage.run_directory import RunDirectory, step_path
from whet.rl.stored.compare import HEADLINES, RunComparison, changed, curve, held_out
from whet.rl.stored.stored_run import StoredTraining
from whet.system.files import read_lines
from whet.system.terminal import safe_lines, safe_text, sparkline

Choice = Literal["first", "best", "worst", "errored"]
SHOWN = ("name", "state", "step", "max_steps", "model", "environments", "imitates", "owner", "when", "resume")
"""What a record for programs has of a run as it is."""
MOST_LINES = 40
"""Lines of one message that are shown: the first and the last."""
CURVE = 32
RIGHT = {"step", "reward", "first", "last", "A", "B", "before", "newest", "change"}


def heads(runs: Sequence[StoredTraining]) -> list[dict[str, Any]]:
    """A line of the list for each run, as data; the reward is that of the newest step."""
    return [_head(run) for run in runs]


def _head(run: StoredTraining) -> dict[str, Any]:
    reward, fault = None, run.fault
    try:
        reward = next(reversed(curve(run.metrics(), "reward/mean")), None)
    except (RunError, *DAMAGED) as error:
        fault = fault or str(error)
    return {
        **{name: getattr(run, name) for name in SHOWN},
        "reward": reward,
        "directory": str(run.directory),
        "fault": fault,
    }


def print_heads(entries: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The list of runs; then how to continue those that ended too early."""
    rows = [
        {
            "run": safe_text(head["name"], 40),
            "state": safe_text(head["state"], 20),
            "step": f"{head['step']}/{head['max_steps'] or '?'}",
            "reward": number(head["reward"]),
            "model": safe_text(head["model"], 40),
            "trained on": safe_text(_trained_on(head), 60),
            "when": head["when"],
        }
        for head in entries
    ]
    print_list(rows, RIGHT, ((head["fault"], head["resume"]) for head in entries), console)


def _trained_on(head: Mapping[str, Any]) -> str:
    own = f"a program of {head['owner']}" if head["owner"] is not None else ""
    return ", ".join(head["environments"]) or head["imitates"] or own


def summary(run: StoredTraining) -> dict[str, Any]:
    """Everything `show` says, as data."""
    rows, evaluations = run.metrics(), run.evaluations()
    curves = {name: values for name in HEADLINES if (values := curve(rows, name))}
    return {
        **heads([run])[0],
        "last_error": run.status.get("last_error"),
        "config": changed(run.config),
        "curves": {
            name: {"first": values[0], "last": values[-1], "steps": len(values)} for name, values in curves.items()
        },
        "checkpoints": [{"step": step, "fault": fault} for step, fault in run.checkpoints()],
        "evaluations": [
            {"moment": report.moment, "step": report.step, **evaluation_metrics(report)} for report in evaluations
        ],
        "doctor": line(run.directory),
    }


def print_summary(run: StoredTraining, console: Console) -> None:
    """The plan, what is not as by default, curves, checkpoints, evaluations, what the doctor says, what to do."""
    facts = summary(run)
    print_fact("run", safe_text(f"{run.name} ({run.directory})", 300), console, fold=False)
    print_fact(
        "state", safe_text(f"{run.state} at step {run.step} of {run.max_steps or '?'}, {run.when}", 200), console
    )
    if facts["last_error"]:
        print_fact("error", safe_text(facts["last_error"], 1000), console)
    print_fact("model", safe_text(run.model, 200), console)
    print_fact("trained on", safe_text(_trained_on(facts), 400), console)
    for index, (path, value) in enumerate(facts["config"].items()):
        print_fact("config" if index == 0 else "", safe_text(f"{path} = {value!r}", 300), console, fold=False)
    rows = run.metrics()
    curves = [
        {"": name, "first": _short(values[0]), "last": _short(values[-1]), "curve": sparkline(values, CURVE)}
        for name in HEADLINES
        if (values := curve(rows, name))
    ]
    _print_table(curves, console)
    scores = [
        {
            "held-out": f"{safe_text(environment, 40)}, {safe_text(sampling, 40)}",
            "before": number(first := rewards[0][1]),
            "newest": number(last := rewards[-1][1]),
            "change": f"{last - first:+.3f}" if math.isfinite(first) and math.isfinite(last) else "-",
        }
        for (environment, sampling), rewards in held_out(run.evaluations()).items()
    ]
    _print_table(scores, console)
    console.print()
    whole = [str(check["step"]) for check in facts["checkpoints"] if check["fault"] is None]
    if run.owner is not None:
        print_fact("saved", f"whet train logs {run.directory}", console, fold=False)
    else:
        print_fact("saved", f"checkpoints of step {', '.join(whole)}, verified" if whole else "no checkpoint", console)
    for check in facts["checkpoints"]:
        if check["fault"]:
            print_fact("damaged", safe_text(f"checkpoint of step {check['step']}: {check['fault']}", 300), console)
    if facts["doctor"]:
        print_fact("doctor", safe_text(facts["doctor"], 400), console)
    if run.imitates is None and run.owner is None:
        print_fact("rollouts", f"whet view {run.directory}", console, fold=False)
    if run.resume:
        print_fact("continue", run.resume, console, fold=False)


def print_metrics(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One metric a column where they fit, else one a line with its curve."""
    if len(columns) <= 6:
        table = [
            {"step": str(row["step"]), **{name: _short(row.get(name)) if name in row else "" for name in columns}}
            for row in rows
        ]
        print_rows(table, console, {"step", *columns})
        return
    lines = []
    for name in columns:
        values = curve(rows, name)
        ends = {"first": _short(values[0]), "last": _short(values[-1])} if values else {"first": "-", "last": "-"}
        lines.append({"metric": safe_text(name, 60), **ends, "curve": sparkline(values, CURVE)})
    print_rows(lines, console, RIGHT)


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """B against A: config, curves, held-out scores."""
    print_fact("A", safe_text(comparison.a, 300), console, fold=False)
    print_fact("B", safe_text(comparison.b, 300), console, fold=False)
    if not comparison.config:
        print_fact("config", "the same", console)
    changes = [
        {"config": safe_text(path, 60), "A": safe_text(repr(a), 60), "B": safe_text(repr(b), 60)}
        for path, (a, b) in comparison.config.items()
    ]
    _print_table(changes, console, right=())
    curves = [
        {
            f"up to step {comparison.common_steps}": one.name,
            "A": _short(one.recent_a),
            "B": _short(one.recent_b),
            "curve of A": sparkline(one.a, CURVE),
            "curve of B": sparkline(one.b, CURVE),
        }
        for one in comparison.curves
    ]
    _print_table(curves, console)
    scores = [
        {
            "held-out": f"{safe_text(score.environment, 40)}, {safe_text(score.sampling, 40)}",
            "A": number(score.a),
            "B": number(score.b),
            "change": "-" if score.a is None or score.b is None else f"{score.b - score.a:+.3f}",
            "at steps": f"{score.step_a}, {score.step_b}",
        }
        for score in comparison.held_out
    ]
    _print_table(scores, console)


def _print_table(rows: Sequence[Mapping[str, str]], console: Console, right: Collection[str] = RIGHT) -> None:
    """An empty line and the table; nothing where it has no row."""
    if rows:
        console.print()
        print_rows(rows, console, right)


def _short(value: Any) -> str:
    """A number with four digits that mean something."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def rollouts_of(
    run: Path, *, step: int | None, environment: str | None, choice: Choice, count: int
) -> tuple[int, list[dict[str, Any]]]:
    """The step (the newest if None), and up to `count` of its rollouts, without their tokens.

    Raises `RunError` where the step, or the environment in it, is not there.
    """
    directory = RunDirectory(run).rollouts
    step = step if step is not None else newest_step(directory)
    path = step_path(directory, step)
    if not path.is_file():
        raise RunError(f"{run}: no rollouts of step {step} are kept; the newest are of step {newest_step(directory)}.")
    rows = [{key: value for key, value in row.items() if key != "turns"} for row in read_lines(path)]
    if environment is not None:
        known = sorted({str(row.get("environment")) for row in rows})
        if environment not in known:
            raise RunError(f"step {step} has no rollouts of {environment!r}; it has: {', '.join(known)}.")
        rows = [row for row in rows if row.get("environment") == environment]
    if choice == "errored":
        rows = [row for row in rows if row.get("error")]
    elif choice != "first":
        rows.sort(key=_reward, reverse=choice == "best")
    return step, rows[:count]


def newest_step(directory: Path) -> int:
    """Raises `RunError` where no step has rollouts."""
    steps = [int(match[1]) for path in directory.glob("step_*.jsonl") if (match := re.search(r"step_(\d+)", path.name))]
    if not steps:
        raise RunError(f"{directory}: no step with rollouts has been trained yet; a run of `whet train sft` has none.")
    return max(steps)


def print_conversation(row: Mapping[str, Any], console: Console) -> None:
    """One rollout: its reward, then its messages."""
    facts = [
        f"{safe_text(row.get('environment'), 60)}, task {safe_text(row.get('example_id'), 40)}",
        f"group {safe_text(row.get('group'), 40)}",
        f"reward {number(row.get('reward'))}",
    ]
    if row.get("advantage") is not None:
        facts.append(f"advantage {row['advantage']:+.3f}")
    if row.get("is_truncated"):
        facts.append("cut off")
    console.print(Text(", ".join(facts), "bold"), soft_wrap=True)
    for piece in pieces(row):
        for index, said in enumerate(_shortened(safe_lines(piece.text))):
            label = safe_text(piece.title, 40) if index == 0 else ""
            style = "cyan" if piece.role == "assistant" else "dim"
            console.print(Text.assemble((f"  {label:<10} ", style), said), soft_wrap=True)
    if row.get("error"):
        error = row["error"]
        chain = error.get("error_chain_str") or error.get("error") if isinstance(error, Mapping) else error
        console.print(Text.assemble(("  error      ", "red"), safe_text(chain, 1000)), soft_wrap=True)
    if row.get("answer") not in (None, ""):
        console.print(Text.assemble(("  expected   ", "dim"), safe_text(row["answer"], 1000)), soft_wrap=True)


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} more lines ...", *lines[-half:]]


def _reward(row: Mapping[str, Any]) -> float:
    reward = row.get("reward")
    return float(reward) if reward is not None else -math.inf
