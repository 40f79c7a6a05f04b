"""Logging and looking at samples, for scripts and notebooks. Importing whet changes no logger.

Packages written for `verifiers` log to children of the logger of that name, which is treated as whet's own is.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SAMPLE_CHARACTERS = 20_000  # of a prompt or a completion that are printed
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def setup_logging(level: str | int = "INFO", log_format: str = _FORMAT, date_format: str = "%H:%M:%S") -> None:
    """Write log lines to stderr, from `level` up. Calling it again changes the level and the format."""
    handler = logging.StreamHandler()
    handler.from_setup_logging = True  # type: ignore[attr-defined]
    handler.setFormatter(logging.Formatter(log_format, date_format))
    for logger in _loggers():
        for before in [one for one in logger.handlers if getattr(one, "from_setup_logging", False)]:
            logger.removeHandler(before)
        logger.addHandler(handler)
        logger.setLevel(_number(level))
        logger.propagate = False


_logged: set[tuple[str, str]] = set()


def log_once(logger: logging.Logger, level: int, msg: str) -> None:
    """Log a message the first time that this process has it for this logger."""
    if (logger.name, msg) not in _logged:
        _logged.add((logger.name, msg))
        logger.log(level, msg)


def warning_once(logger: logging.Logger, msg: str) -> None:
    log_once(logger, logging.WARNING, msg)


@contextmanager
def log_level(level: str | int) -> Iterator[None]:
    """Another level inside a `with` block."""
    before = [(logger, logger.level) for logger in _loggers()]
    for logger, _ in before:
        logger.setLevel(_number(level))
    try:
        yield
    finally:
        for logger, number in before:
            logger.setLevel(number)


def _loggers() -> list[logging.Logger]:
    return [logging.getLogger(name) for name in ("whet", "verifiers")]


def _number(level: str | int) -> str | int:
    return level.upper() if isinstance(level, str) else level


def print_prompt_completions_sample(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    errors: Sequence[Any],
    rewards: Sequence[float | None],
    step: int,
    num_samples: int = 1,
) -> None:
    """A table of the first rollouts of a step: the prompt, the answer, the reward or the error."""
    from rich.table import Table
    from rich.text import Text

    from whet.system.console import SafeConsole

    table = Table("prompt", "completion", "reward", title=f"step {step}", show_lines=True)
    samples = zip(prompts, completions, errors, rewards, strict=True)
    for prompt, completion, error, reward in itertools.islice(samples, num_samples):
        outcome = f"{reward:.3f}" if reward is not None else "-"
        table.add_row(
            Text(_as_text(prompt)), Text(_as_text(completion)), outcome if error is None else f"{outcome} {error!r}"
        )
    SafeConsole().print(table)


def _as_text(messages: Any) -> str:
    """Messages for a person to read, harmless to a terminal: control characters and half characters are replaced."""
    from whet.messages import as_tool_call, readable_text

    if isinstance(messages, str):
        return _harmless(messages)
    lines = []
    for message in messages or []:
        calls = [as_tool_call(call) for call in message.get("tool_calls") or []]
        reasoning = message.get("reasoning_content")
        thought = f" [reasoning] {reasoning} [/reasoning]" if reasoning else ""
        said = "".join(f" {call['name']}({call['arguments']})" for call in calls)
        lines.append(f"{message['role']}:{thought} {readable_text(message.get('content'))}{said}")
    return _harmless("\n".join(lines))


def _harmless(text: str) -> str:
    from whet.system.terminal import safe_text

    shown = text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}…"
    return "\n".join(safe_text(line, len(line)) for line in shown.split("\n"))
