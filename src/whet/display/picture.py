"""Parts of a picture in a terminal: lines with labels, bars, boxes, and one rollout in a box.

Text from models and environments goes through `safe_text` and into `Text` objects, never through markup. Nothing is
shown by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from whet.display.text import LABEL, call_text, listed
from whet.messages import content_text
from whet.system.terminal import duration, safe_text


def one_line(text: Text | str, style: str = "") -> Text:
    """Never more than one line: what does not fit is cut."""
    made = text if isinstance(text, Text) else Text(text, style=style)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def labelled(label: str, text: str, style: str = "") -> Text:
    """A line with a label."""
    return one_line(Text.assemble((f"{label:<{LABEL}}", "bold"), (text, style)))


def bar(done: int, total: int, width: int, label: str, *, head: str = "", reserved: int = 0) -> Text:
    """How far something has come: a bar, then `label`. What is `reserved` at its end is dotted."""
    head = f"{head} " if head else ""
    room = max(8, min(40, width - len(head) - len(label)))
    full = room * min(done, total) // total if total else 0
    dotted = min(room - full, room * reserved // total) if total else 0
    drawn = ("━" * full, "green"), ("─" * (room - full - dotted), "dim"), ("┄" * dotted, "dim")
    return one_line(Text.assemble((head, "bold"), *drawn, label))


def times_text(elapsed: float, remaining: float | None, *, at_most: bool = False) -> str:
    """`1:05, 20 s left`."""
    left = "" if remaining is None else f", {'at most ' if at_most else ''}{duration(remaining)} left"
    return f"{duration(elapsed)}{left}"


def rate_text(rate: float | None, unit: str) -> str:
    """`2.5 rollouts/s`; nothing while it is unknown."""
    return "" if rate is None else f"{rate:.1f} {unit}/s" if rate < 10 else f"{rate:,.0f} {unit}/s"


def boxed(lines: Sequence[RenderableType], title: str, width: int) -> Panel:
    """Lines in a box with a title."""
    return Panel(
        Group(*lines),
        title=Text(title),
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


def sample_panel(row: Mapping[str, Any], title: str, width: int, lines: int) -> Panel:
    """The messages of one rollout, in at most `lines` lines."""
    inner = max(20, width - 4)
    shown = list(_conversation(row, inner))
    if len(shown) > lines:
        shown = [*shown[: lines - 2], Text(f"... {len(shown) - lines + 1} more", style="dim"), shown[-1]]
    return boxed(shown, safe_text(title, inner), width)


def _conversation(row: Mapping[str, Any], width: int) -> Iterator[Text]:
    for message in [*_messages(row.get("prompt")), *_messages(row.get("completion"))]:
        role = str(message.get("role", ""))
        spoken = content_text(message.get("content"))
        for call in listed(message.get("tool_calls")):
            spoken += f" {call_text(call)}"
        label = {"assistant": "model", "text": "prompt"}.get(role, role)
        line = Text(
            f"{safe_text(label, 9):<9}", style="bold" if role == "assistant" else "", no_wrap=True, overflow="ellipsis"
        )
        yield line.append(_fit(spoken.strip(), max(1, width - 9), from_start=role == "assistant"))


def _fit(text: str, width: int, *, from_start: bool) -> str:
    """`text` on one line: its start, or its start and its end, where the question of a prompt mostly is."""
    if len(text) <= width or from_start:
        return safe_text(text, width)
    head = width // 3
    return f"{safe_text(text[: head - 1], head)}…{safe_text(text[head - width :], width - head)}"


def _messages(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"role": "text", "content": value}]
    return [message for message in listed(value) if isinstance(message, Mapping)]
