"""What is known of a rollout beside its conversation: rewards and metrics, tokens, times, errors, the answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from whet.viewer.heads import Head
from whet.viewer.widgets.cells import number, part_name, reward_bar, reward_style, seconds, signed, signed_style
from whet.viewer.widgets.lines import Line, line, wrapped

SHOWN_ELSEWHERE = {
    "prompt", "completion", "reward", "advantage", "metrics", "error", "error_chain", "long_error_chain", "answer",
    "example_id", "environment", "group", "stop_condition", "is_truncated", "is_completed", "token_usage", "timing",
    "turns", "trajectory", "tool_defs", "task", "info", "sampling", "judge_usage",
}  # fmt: skip
"""Keys of a row that are not repeated under `other columns`."""
LONGEST = 2000  # characters of a value that are shown here


def detail_lines(row: Mapping[str, Any], head: Head, passed: float, width: int) -> list[Line]:
    """Every fact, under headings."""
    lines: list[Line] = []
    for title, facts in (
        ("", _facts(row, head, passed)),
        ("metrics", _metrics(row.get("metrics"))),
        ("error", _error(row)),
        ("tokens", _pairs(row.get("token_usage"))),
        ("tokens of judges", _pairs(row.get("judge_usage"))),
        ("time", _timing(row.get("timing"))),
        ("answer", _value(row.get("answer"))),
        ("sampling", _pairs(row.get("sampling"))),
        ("info", _value(row.get("info"))),
        ("tools", _tools(row.get("tool_defs"))),
        ("other columns", _others(row)),
    ):
        body = [made for name, value, style in facts for made in _fact(name, value, style, width)]
        if body:
            lines += [line("")] if lines else []
            lines += [line((title, "bold"))] if title else []
            lines += body
    return lines


Fact = tuple[str, str, str]
"""A name, a value and the name of its style; without a name the value takes the whole line."""


def _fact(name: str, value: str, style: str, width: int) -> Iterator[Line]:
    if not name:
        yield from wrapped(value[:LONGEST], width, style)
    elif "\n" not in value and len(name) + len(value) + 2 <= width:
        yield line((f"{name}  ", "dim"), (value, style))
    else:
        yield line((name, "dim"))
        yield from wrapped(value[:LONGEST], width, style, "  ")


def _facts(row: Mapping[str, Any], head: Head, passed: float) -> Iterator[Fact]:
    reward = number(head.reward)
    if head.reward is not None:
        yield "reward", f"{reward} {reward_bar(head.reward)}".rstrip(), reward_style(head.reward, passed)
    else:
        yield "reward", "none", "dim"
    if head.advantage is not None:
        yield "advantage", signed(head.advantage), signed_style(head.advantage)
    if head.environment:
        yield "environment", head.environment, "name"
    if head.part:
        yield "step", part_name(head), ""
    if head.sampling:
        yield "sampling", head.sampling, ""
    yield "task", "none" if head.example_id is None else str(head.example_id), ""
    if row.get("group") is not None:
        yield "group", str(row["group"]), ""
    yield "stop condition", head.stop_condition or "none", ""
    if head.truncated:
        yield "truncated", "yes", "middling"
    yield "turns", str(head.turns), ""


def _metrics(metrics: Any) -> Iterator[Fact]:
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        yield str(name), number(float(value)) if is_number else _text(value), ""


def _error(row: Mapping[str, Any]) -> Iterator[Fact]:
    """The chain of causes, the error first, one a line."""
    error = row.get("error")
    if not error:
        return
    chain = row.get("error_chain") or (error.get("error_chain_repr") if isinstance(error, Mapping) else None)
    for at, link in enumerate(str(chain or _text(error)).split(" -> ")):
        yield "", link if at == 0 else f"because of {link}", "bad"


def _timing(timing: Any) -> Iterator[Fact]:
    if not isinstance(timing, Mapping):
        return
    for name in ("total", "setup", "generation", "model", "env", "scoring"):
        value = timing.get(name)
        value = value.get("duration") if isinstance(value, Mapping) else value
        if isinstance(value, int | float):
            yield name, seconds(float(value)) if value >= 0.05 else f"{1000 * value:.1f} ms", ""


def _pairs(values: Any) -> Iterator[Fact]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        yield str(name).replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else _text(value), ""
    if values and not isinstance(values, Mapping):
        yield "", _text(values), ""


def _value(value: Any) -> Iterator[Fact]:
    if value not in (None, "", {}, []):
        yield "", _text(value), ""


def _tools(tools: Any) -> Iterator[Fact]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, Mapping):
            yield str(tool.get("name")), _text(tool.get("description") or ""), ""


def _others(row: Mapping[str, Any]) -> Iterator[Fact]:
    metrics = row.get("metrics")
    known = SHOWN_ELSEWHERE | (set(metrics) if isinstance(metrics, Mapping) else set())
    for name, value in row.items():
        if name not in known and value is not None:
            yield str(name), _text(value), ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return repr(value)[:LONGEST]
