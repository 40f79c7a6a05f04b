"""Rollouts of a run in the terminal: which to show, and each as lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from whet.display.text import call_text, listed, number
from whet.errors import RunError
from whet.messages import content_text
from whet.rl.storage.rollout_log import step_path
from whet.rl.storage.run_directory import RunDirectory
from whet.system.files import read_lines
from whet.system.terminal import safe_lines, safe_text

Choice = Literal["first", "best", "worst", "errored"]
MOST_LINES = 40
"""Lines of one message that are shown: the first and the last."""


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
    steps = [int(found[1]) for path in directory.glob("step_*.jsonl") if (found := re.search(r"step_(\d+)", path.name))]
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
    for role, text in _said(row):
        for index, line in enumerate(_shortened(safe_lines(text))):
            label = safe_text(role, 10) if index == 0 else ""
            console.print(
                Text.assemble((f"  {label:<10} ", "cyan" if role == "model" else "dim"), line), soft_wrap=True
            )
    if row.get("error"):
        error = row["error"]
        chain = error.get("error_chain_str") or error.get("error") if isinstance(error, Mapping) else error
        console.print(Text.assemble(("  error      ", "red"), safe_text(chain, 1000)), soft_wrap=True)
    if row.get("answer") not in (None, ""):
        console.print(Text.assemble(("  expected   ", "dim"), safe_text(row["answer"], 1000)), soft_wrap=True)


def _said(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("prompt", "completion"):
        value = row.get(part)
        if isinstance(value, str):
            yield ("model" if part == "completion" else "prompt"), value
        for message in listed(value):
            if not isinstance(message, Mapping):
                continue
            role = str(message.get("role", ""))
            calls = [call_text(call) for call in listed(message.get("tool_calls"))]
            thought = message.get("reasoning_content")
            texts = [f"(thinking) {thought}" if thought else "", content_text(message.get("content")), *calls]
            yield ("model" if role == "assistant" else role), "\n".join(filter(None, texts))


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} more lines ...", *lines[-half:]]


def _reward(row: Mapping[str, Any]) -> float:
    reward = row.get("reward")
    return float(reward) if reward is not None else -math.inf
