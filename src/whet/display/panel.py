"""One rollout in a terminal, as a few lines in a box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from whet.display.text import call_text, listed
from whet.messages import content_text
from whet.system.terminal import safe_text


def sample_panel(row: Mapping[str, Any], title: str, width: int, lines: int) -> Panel:
    """The messages of one rollout, in at most `lines` lines."""
    inner = max(20, width - 4)
    shown = list(_conversation(row, inner))
    if len(shown) > lines:
        shown = [*shown[: lines - 2], Text(f"... {len(shown) - lines + 1} more", style="dim"), shown[-1]]
    return Panel(
        Group(*shown),
        title=Text(safe_text(title, inner)),
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


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
