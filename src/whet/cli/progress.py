"""A progress bar on standard error for commands that take minutes; plain lines without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Told a stage's name, how much of it is done, and of how much."""


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` to hand to a room. `quiet` shows nothing."""
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty():
        with _bar() as progress:
            yield progress
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield progress


def _lines() -> Progress:
    """A line for each tenth of a stage."""
    shown: dict[str, int] = {}

    def progress(stage: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if shown.get(stage) != tenth:
            shown[stage] = tenth
            print(f"{stage} {done}/{total}", file=sys.stderr, flush=True)

    return progress
