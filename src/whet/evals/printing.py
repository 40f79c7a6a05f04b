"""Evaluations in the terminal: a summary, a comparison, tables. Control characters of models' texts are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from whet.display.picture import sample_panel
from whet.display.text import LABEL, error_lines, number, pairs_text, print_fact, print_rows, usage_text
from whet.evals.analysis.compare import Comparison
from whet.evals.analysis.readiness import Readiness
from whet.evals.analysis.statistics import MeanInterval, Percentiles
from whet.evals.analysis.summary import EvalSummary, MemberSummary, SuiteSummary, suites
from whet.evals.stored.stored import StoredHead
from whet.records.directory import REPORT
from whet.records.stored import print_list
from whet.system.console import SafeConsole
from whet.system.terminal import duration, safe_text

if TYPE_CHECKING:
    from whet.evals.stored.rescore import Rescored

MEASURED = ("reward", "tasks", "pass@k", "errors", "tokens", "seconds", "cost", "judges", "readiness")
"""Columns that follow those which say what was evaluated."""
RIGHT = {"tasks", "pass@k", "rollouts", "errors", "tokens", "seconds", "cost", "judges"}
"""Columns of numbers."""


def print_summaries(summaries: Sequence[EvalSummary], console: Console | None = None) -> None:
    """What a session found: one evaluation in full, several as a table with a verdict on each."""
    if len(summaries) == 1:
        print_summary(summaries[0], console)
    else:
        print_table(summaries, console)


def print_summary(summary: EvalSummary, console: Console | None = None) -> None:
    """The summary, a line a fact, with the best and the worst rollout."""
    console = console or SafeConsole()
    width = min(console.width, 110)
    for row, name in zip(summary.samples, ("best rollout", "worst rollout"), strict=False):
        reward = number(row.get("reward"), 2)
        console.print(sample_panel(row, f"{name}, task {row['example_id']}: reward {reward}", width, 8))
    for label, text in summary_lines(summary):
        print_fact(label, text, console, fold=label not in ("saved", "report"))


def summary_lines(summary: EvalSummary) -> list[tuple[str, str]]:
    """(label, text) for everything known; an empty label continues the line before."""
    lines = [
        (
            "evaluated",
            f"{safe_text(summary.environment)} with {safe_text(summary.model)}, {summary.sampling}: "
            f"{summary.examples} tasks x {summary.rollouts_per_example} rollouts in {seconds_text(summary.seconds)}",
        ),
        ("reward", _reward(summary.reward)),
    ]
    for index, (name, member) in enumerate(summary.members.items()):
        label = "" if index else "members"
        lines.append((label, f"{safe_text(name, 60)}: {_reward(member.reward)}{_tasks(member)}"))
    if summary.varied:
        lines.insert(1, ("varied", varied_text(summary.varied)))
    if summary.metrics:
        lines.append(("metrics", pairs_text(summary.metrics)))
    if summary.pass_at_k:
        lines.append(("pass@k", f"{pairs_text(summary.pass_at_k)} (passed: reward >= {summary.pass_threshold:g})"))
        lines.append(("pass^k", pairs_text(summary.pass_all_k)))
    if summary.errors:
        kinds = pairs_text(summary.error_kinds)
        lines.append(("errors", f"{summary.errors} of {summary.rollouts} rollouts ({kinds}), left out of the means"))
        lines += [("", line) for line in error_lines(summary.error_examples)]
    if summary.truncated_frac:
        lines.append(("truncated", f"{summary.truncated_frac:.0%} of the rollouts were cut off"))
    if summary.parse_failed_frac:
        lines.append(("unread", f"the parser found no answer in {summary.parse_failed_frac:.0%} of the rollouts"))
    lines += _effort(summary)
    if summary.cost is not None:
        lines.append(("cost", f"${summary.cost:.4f} in all, ${summary.cost / summary.rollouts:.6f} a rollout"))
    if summary.judge_usage:
        lines.append(("judges", f"{usage_text(summary.judge_usage)} in all"))
    lines += _readiness(summary.readiness)
    if summary.results is not None:
        lines.append(("saved", str(summary.results)))
        if (report := summary.results / REPORT).is_file():
            lines.append(("report", str(report)))
    return lines


def print_comparison(
    comparison: Comparison,
    before: str,
    after: str,
    top: int,
    environment: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """B against A: the difference, the verdict, and the tasks that changed most, losses first.

    `environment` has a line for each way in which B's environment is another than A's.
    """
    console = console or SafeConsole()
    difference = comparison.difference
    interval = "" if difference.low is None else f" (95 % interval {difference.low:+.3f} to {difference.high:+.3f})"
    lines = [
        ("A", f"{safe_text(before, 300)}: reward {comparison.before:.3f}"),
        ("B", f"{safe_text(after, 300)}: reward {comparison.after:.3f}"),
        ("difference", f"{difference.mean:+.3f}{interval}, paired over {len(comparison.changes)} tasks"),
        ("verdict", comparison.verdict),
        ("tasks", f"{comparison.worse} worse, {comparison.better} better, {comparison.equal} equal"),
    ]
    if comparison.only_before or comparison.only_after:
        lines.append(("left out", f"{comparison.only_before} tasks only in A, {comparison.only_after} only in B"))
    lines += [("differs", f"the environment, A to B: {safe_text(line, 300)}") for line in environment]
    for label, text in lines:
        print_fact(label, text, console)
    losses = [change for change in comparison.changes if change.difference < 0][:top]
    gains = [change for change in reversed(comparison.changes) if change.difference > 0][:top]
    for title, changes in (("worse", losses), ("better", gains)):
        for number_of, change in enumerate(changes):
            rewards = f"{change.before:.2f} -> {change.after:.2f}  task {safe_text(change.example_id, 20)}: "
            label = title if number_of == 0 else ""
            console.print(Text.assemble((f"{label:<{LABEL}}", "bold"), rewards, safe_text(change.question, 80)))


def _reward(reward: MeanInterval | None) -> str:
    if reward is None:
        return "unknown: every rollout failed"
    if reward.interval is None:
        return f"{reward.mean:.3f} (one task: no interval)"
    return f"{reward.mean:.3f} (95 % interval {reward.interval}, over tasks)"


def _tasks(member: MemberSummary) -> str:
    errors = f", {member.errors} of {member.rollouts} rollouts failed" if member.errors else ""
    return f"; {member.examples} task{'' if member.examples == 1 else 's'}{errors}"


def _effort(summary: EvalSummary) -> Iterator[tuple[str, str]]:
    """Tokens and time of a rollout: on average, and how far they spread."""
    if summary.output_tokens is not None:
        text = f"{summary.input_tokens or 0:,.0f} in, {summary.output_tokens:,.0f} out a rollout"
        if summary.output_token_percentiles is not None:
            text += f" (out: {_percentiles(summary.output_token_percentiles, lambda value: f'{value:,.0f}')})"
        yield "tokens", text
    if summary.rollout_seconds is not None:
        yield "time", f"a rollout: {_percentiles(summary.rollout_seconds, seconds_text)}"


def _percentiles(values: Percentiles, text: Callable[[float], str]) -> str:
    return f"median {text(values.p50)}, 90 % {text(values.p90)}, 99 % {text(values.p99)}"


def _readiness(readiness: Readiness) -> Iterator[tuple[str, str]]:
    reasons = readiness.reasons
    yield "readiness", f"{readiness.verdict} for training: {reasons}" if reasons else readiness.verdict
    for line in readiness.advice:
        yield "", line


def print_table(summaries: Sequence[EvalSummary], console: Console | None = None) -> None:
    """The evaluations of one session, numbered, what a sweep varied in columns of its own.

    What all have in common stands above. Below, by their numbers, what to change for training, and where each is saved.
    """
    console = console or SafeConsole()
    rows = [*map(summary_cells, summaries), *map(_suite_cells, suites(summaries))]
    common = [name for name in ("environment", "model") if len({row[name] for row in rows}) == 1]
    if common:
        print_fact("evaluated", ", ".join(f"{name} {rows[0][name]}" for name in common), console)
        rows = [{name: value for name, value in row.items() if name not in common} for row in rows]
    leading = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in MEASURED]
    rows = [{**{name: row.get(name, "") for name in leading}, **row} for row in rows]
    numbers = [str(position + 1) if position < len(summaries) else "" for position in range(len(rows))]
    print_rows([{"": at, **row} for at, row in zip(numbers, rows, strict=True)], console, RIGHT)
    advice: dict[str, list[str]] = {}
    for position, summary in enumerate(summaries, start=1):
        for line in summary.readiness.advice:
            advice.setdefault(line, []).append(str(position))
    for position, summary in enumerate(summaries, start=1):
        for line in error_lines(summary.error_examples):
            print_fact("errors", f"{position}: {line}", console)
    for line, numbers in advice.items():
        print_fact(", ".join(numbers), line, console)
    for position, summary in enumerate(summaries, start=1):
        if summary.results is not None:
            print_fact("saved", f"{position}: {summary.results}", console, fold=False)


def summary_cells(summary: EvalSummary) -> dict[str, str]:
    """One evaluation by column. What is unknown is empty."""
    varied = {
        name.removeprefix("args."): value
        for name, value in summary.varied.items()
        if name not in ("environment", "model")
    }
    largest = max(summary.pass_at_k, key=int, default=None)
    return {
        "environment": safe_text(summary.environment, 40),
        "model": safe_text(summary.model, 40),
        **{safe_text(name, 30): _value(value) for name, value in varied.items()},
        "reward": _reward_cell(summary.reward),
        "tasks": str(summary.examples),
        "pass@k": "" if largest is None else f"@{largest} {summary.pass_at_k[largest]:.3f}",
        "errors": f"{summary.errors}/{summary.rollouts}",
        "tokens": "" if summary.output_tokens is None else f"{summary.output_tokens:,.0f}",
        "seconds": f"{summary.seconds:.1f}",
        "cost": "" if summary.cost is None else f"${summary.cost:.4f}",
        "judges": _judges(summary.judge_usage),
        "readiness": summary.readiness.verdict,
    }


def _suite_cells(suite: SuiteSummary) -> dict[str, str]:
    return {
        "environment": f"all {suite.environments}",
        "model": safe_text(suite.model, 40),
        "reward": _reward_cell(suite.reward),
        "tasks": str(suite.examples),
        "errors": f"{suite.errors}/{suite.rollouts}",
        "seconds": f"{suite.seconds:.1f}",
        "cost": "" if suite.cost is None else f"${suite.cost:.4f}",
    }


def print_heads(heads: Sequence[StoredHead], console: Console | None = None) -> None:
    """The list of saved evaluations, a line each; then how to continue those that did not end."""
    console = console or SafeConsole()
    print_list([_head_cells(head) for head in heads], RIGHT, ((head.fault, head.resume) for head in heads), console)


def print_rescored(result: Rescored, top: int, console: Console | None = None) -> None:
    """How many rewards changed, `top` of them, what could not be scored and why, and where the new evaluation is."""
    console = console or SafeConsole()
    kept = f", {result.failed_before} had failed before" if result.failed_before else ""
    print_fact("rescored", f"{result.scored} of {result.rollouts} rollouts{kept}", console)
    print_fact("reward", f"{number(result.reward_before, 3)} before, {number(result.reward, 3)} now", console)
    print_fact("changed", f"{len(result.changed)} of {result.rollouts} rewards", console)
    for one in result.changed[:top]:
        attempt = "" if one.rollout is None else f", rollout {one.rollout}"
        text = f"task {safe_text(one.example_id, 60)}{attempt}: {number(one.before, 3)} -> {number(one.after, 3)}"
        print_fact("", text, console)
    for why, examples in result.unscored.items():
        shown = ", ".join(safe_text(one, 30) for one in list(dict.fromkeys(examples))[:5])
        print_fact("unscored", f"{len(examples)} rollouts (task {shown}): {safe_text(why, 400)}", console)
    print_fact("saved", str(result.saved), console, fold=False)


def varied_text(varied: Mapping[str, Any]) -> str:
    """`temperature=0.5 args.level=2`."""
    return " ".join(f"{safe_text(name, 30)}={_value(value)}" for name, value in varied.items())


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _head_cells(head: StoredHead) -> dict[str, str]:
    return {
        "date": head.date[:16],
        "environment": safe_text(head.environment, 40),
        "model": safe_text(head.model, 40),
        "varied": varied_text(head.varied),
        "state": "" if head.state == "finished" else head.state,
        "reward": "" if head.reward is None else f"{head.reward:.3f}",
        "rollouts": str(head.rollouts) if head.state == "finished" else f"{head.done}/{head.rollouts}",
        "errors": str(head.errors),
        "directory": str(head.directory),
    }


def _reward_cell(reward: MeanInterval | None) -> str:
    if reward is None:
        return ""
    return f"{reward.mean:.3f}" + (f" ({reward.interval})" if reward.interval else "")


def _judges(usage: Mapping[str, float]) -> str:
    """Their cost; where it is unknown, the tokens they used."""
    if not usage:
        return ""
    if "cost" in usage:
        return f"${usage['cost']:.4f}"
    return f"{usage['input_tokens'] + usage['output_tokens']:,.0f} tokens"


def _value(value: Any) -> str:
    return safe_text(f"{value:g}" if isinstance(value, float) else value, 30)
